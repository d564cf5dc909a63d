"""Authenticates by SCRAM (RFC 5802, RFC 7677), without channel binding, as Kafka does.

Written on `hashlib` and `hmac`: docs/design/security.md says why no library. A user that does not exist goes the way of
one with a wrong password, with a salt that is always the same for its name. Kafka's extension `tokenauth=true` says
that the user name is the id of a delegation token.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from typing import Final

from ottla.core.runtime import random_bytes
from ottla.security.sasl.credentials import HASHES, ITERATIONS_MIN, ScramCredential, ScramUsers, TokenCredential
from ottla.security.sasl.mechanism import AuthenticationFailed, Principal

_NAME: Final = r"(?:[^=,\x00]|=2C|=3D)+"
_EXTENSIONS: Final = r"(?:,[A-Za-z]+=[^,\x00]+)*"
_BASE64: Final = r"[A-Za-z0-9+/]*={0,2}"
_CLIENT_FIRST: Final = re.compile(
    rf"(?P<header>n,(?:a=(?P<authzid>{_NAME}))?,)"
    rf"(?P<bare>n=(?P<name>{_NAME}),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?P<extensions>{_EXTENSIONS}))"
)
_CLIENT_FINAL: Final = re.compile(
    rf"(?P<without_proof>c=(?P<binding>{_BASE64}),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+){_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)
_NONCE_BYTES: Final = 24
_TOKEN_EXTENSION: Final = "tokenauth=true"  # noqa: S105 - no password
OTHER_AUTHORIZATION_ID: Final = (
    "Authentication failed: Client requested an authorization id that is different from username"
)


class ScramExchange:
    """The server's half of one exchange: the client's first message, and its final one."""

    def __init__(self, mechanism: str, users: ScramUsers, unknown_users_key: bytes) -> None:
        self.principal: Principal | None = None
        self._mechanism, self._hash = mechanism, HASHES[mechanism]
        self._users, self._unknown_users_key = users, unknown_users_key
        self._client: Principal | None = (
            None  # the user that the client says to be; None: no user that the broker knows
        )
        self._user = ""
        self._credential: ScramCredential | None = None
        self._nonce = self._bare = self._header = self._server_first = ""

    def evaluate(self, token: bytes) -> bytes:
        """Return the answer to the client's next message. Raises AuthenticationFailed."""
        try:
            message = token.decode()
        except UnicodeDecodeError:
            raise AuthenticationFailed("a SCRAM message that is not text", user=self._user) from None
        return self._first(message) if self._credential is None else self._final(message, self._credential)

    def _first(self, message: str) -> bytes:
        match = _CLIENT_FIRST.fullmatch(message)
        if match is None:
            raise AuthenticationFailed("the first message is not one of SCRAM")
        self._user = name = _unescaped(match["name"])
        authorization_id = match["authzid"]
        if authorization_id is not None and _unescaped(authorization_id) != name:
            raise AuthenticationFailed("another authorization id", answer=OTHER_AUTHORIZATION_ID, user=name)
        if _TOKEN_EXTENSION in match["extensions"].split(","):
            token = self._users.token(name, self._mechanism)
            credential = None if token is None else token.credential
            self._client = None if token is None else _owner(token)
        else:
            credential = self._users.user(name, self._mechanism)
            self._client = None if credential is None else Principal(name)
        if credential is None or credential.iterations < ITERATIONS_MIN:
            self._client, credential = None, self._unknown(name)
        self._credential = credential
        self._header, self._bare = match["header"], match["bare"]
        self._nonce = match["nonce"] + b64encode(random_bytes(_NONCE_BYTES)).decode()
        salt = b64encode(credential.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={credential.iterations}"
        return self._server_first.encode()

    def _unknown(self, name: str) -> ScramCredential:
        """Return a credential that no password has."""
        size = hashlib.new(self._hash).digest_size
        salt = hmac.digest(self._unknown_users_key, f"{self._mechanism} {name}".encode(), "sha256")
        return ScramCredential(_as_kafka_salts(salt), random_bytes(size), random_bytes(size), ITERATIONS_MIN)

    def _final(self, message: str, credential: ScramCredential) -> bytes:
        match = _CLIENT_FINAL.fullmatch(message)
        if match is None:
            raise AuthenticationFailed("the final message is not one of SCRAM", user=self._user)
        if not hmac.compare_digest(match["nonce"], self._nonce):  # all of it: an end of it could be replayed
            raise AuthenticationFailed("the nonce of the final message is not that of the exchange", user=self._user)
        try:
            binding, proof = b64decode(match["binding"], validate=True), b64decode(match["proof"], validate=True)
        except binascii.Error:
            raise AuthenticationFailed("the final message is not one of SCRAM", user=self._user) from None
        if binding != self._header.encode():
            raise AuthenticationFailed("the channel binding is not that of the first message", user=self._user)
        signed = f"{self._bare},{self._server_first},{match['without_proof']}".encode()
        signature = hmac.digest(credential.stored_key, signed, self._hash)
        if len(proof) != len(signature):
            raise AuthenticationFailed("the proof has another length", user=self._user)
        client_key = bytes(a ^ b for a, b in zip(signature, proof, strict=True))
        is_right = hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), credential.stored_key)
        if not is_right or self._client is None:
            raise AuthenticationFailed("wrong password or unknown user", user=self._user)
        self.principal = self._client
        return b"v=" + b64encode(hmac.digest(credential.server_key, signed, self._hash))


def _owner(token: TokenCredential) -> Principal:
    return Principal(token.owner, is_token=True, expires_at_ms=token.expires_at_ms)


def _unescaped(name: str) -> str:
    """Return a name as it is.

    >>> _unescaped("a=2Cb=3Dc")
    'a,b=c'
    """
    return name.replace("=2C", ",").replace("=3D", "=")


_DIGITS: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"


def _as_kafka_salts(seed: bytes) -> bytes:
    """Return a salt that looks like those which Kafka's tools make: a number of 130 bits in base 36."""
    number = int.from_bytes(seed, "big") >> (8 * len(seed) - 130)
    digits = bytearray()
    while number:
        number, digit = divmod(number, 36)
        digits.append(_DIGITS[digit])
    return bytes(reversed(digits))
