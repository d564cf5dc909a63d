"""Knows the delegation tokens of the cluster (KIP-48): their secrets, and who may do what with them.

The secret of a token is the HMAC of its id with `delegation.token.secret.key`; it is computed and stored nowhere. A
client signs in with the id as its name and the HMAC, in base64, as its password, by SCRAM with `tokenauth=true`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Generator, Mapping
from typing import Final

from ottla.core.clock import Clock
from ottla.core.runtime import random_bytes
from ottla.core.slices import WorkSlice
from ottla.metadata_store.token_znodes import StoredToken, TokenInformation
from ottla.security.config import TokenConfig
from ottla.security.sasl.credentials import ScramCredential

ITERATIONS: Final = 4_096
"""Of the SCRAM credential of a token: the least of SCRAM, as in Kafka. The password is random, not a person's."""

_SALT_BYTES: Final = 16
_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class DelegationTokens:
    """Finds the tokens in the present snapshot of the cluster."""

    def __init__(self, config: TokenConfig, *, clock: Clock, stored: Callable[[], Mapping[str, StoredToken]]) -> None:
        self.config = config
        self._key = config.secret_key.encode()
        self._clock, self._stored = clock, stored
        self._ids: dict[bytes, str] = {}  # by the HMAC
        self._known: Mapping[str, StoredToken] = {}  # of which `_ids` has the HMACs
        self._hmacs: dict[str, bytes] = {}  # by id: those of `_ids`
        self._scram: dict[tuple[str, str], ScramCredential] = {}

    def __repr__(self) -> str:
        return "DelegationTokens()"

    def hmac_of(self, token_id: str) -> bytes:
        """Return the secret of a token."""
        return hmac.digest(self._key, token_id.encode(), "sha512")

    def find(self, token_id: str) -> TokenInformation | None:
        """Return a token that is valid now."""
        stored = self._stored().get(token_id)
        if stored is None or stored.information.is_expired(self._clock.wall_ms()):
            return None
        return stored.information

    def id_of(self, secret: bytes, slices: WorkSlice) -> Generator[None, None, str]:
        """Return the id of the token with this HMAC, valid or not; empty if there is none.

        In slices: the HMACs of tokens that are new since the last call are computed, and there may be many.
        """
        stored = self._stored()
        if stored is not self._known:
            for token_id in stored.keys() - self._hmacs.keys():
                self._hmacs[token_id] = of_token = self.hmac_of(token_id)
                self._ids[of_token] = token_id
                if slices.spend():
                    yield
            for token_id in self._hmacs.keys() - stored.keys():
                del self._ids[self._hmacs.pop(token_id)]
            self._known = stored
        token_id = self._ids.get(secret, "")
        return token_id if token_id and hmac.compare_digest(self.hmac_of(token_id), secret) else ""

    def credential(self, token_id: str, mechanism: str) -> ScramCredential | None:
        """Return the SCRAM credential of a token that is valid now; None if there is none.

        The first for a token and a mechanism takes 2 ms.
        """
        if self.find(token_id) is None or mechanism not in _HASHES:
            self._scram.pop((token_id, mechanism), None)
            return None
        key = token_id, mechanism
        if key not in self._scram:
            stored = self._stored()
            self._scram = {name: known for name, known in self._scram.items() if name[0] in stored}
            self._scram[key] = _scram(base64.b64encode(self.hmac_of(token_id)), _HASHES[mechanism])
        return self._scram[key]


def _scram(password: bytes, hash_name: str) -> ScramCredential:
    salt = random_bytes(_SALT_BYTES)
    salted = hashlib.pbkdf2_hmac(hash_name, password, salt, ITERATIONS)
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    stored_key = hashlib.new(hash_name, client_key).digest()
    return ScramCredential(salt, stored_key, hmac.digest(salted, b"Server Key", hash_name), ITERATIONS)
