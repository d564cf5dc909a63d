"""Holds what the broker knows of a user's password: SCRAM credentials, as Kafka keeps them in `/config/users`.

The text of a credential is Kafka's (ScramCredentialUtils), byte for byte:
`salt=<base64>,stored_key=<base64>,server_key=<base64>,iterations=<number>`, as the value of the setting that is named
as the mechanism. A password cannot be computed from it, but who has the server key can pose as the broker.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from ottla.core.runtime import random_bytes
from ottla.security.config import SCRAM_SHA_256, SCRAM_SHA_512

ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16384
SALT_BYTES: Final = 24

HASHES: Final[Mapping[str, str]] = MappingProxyType({SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"})
"""The hash function of each SCRAM mechanism, as `hashlib` names it."""

MECHANISM_OF_NUMBER: Final[Mapping[int, str]] = MappingProxyType({1: SCRAM_SHA_256, 2: SCRAM_SHA_512})
"""Of requests and of Kafka's metadata records (ScramMechanism.type)."""

NUMBER_OF_MECHANISM: Final[Mapping[str, int]] = MappingProxyType(
    {name: number for number, name in MECHANISM_OF_NUMBER.items()}
)


class ScramCredential(NamedTuple):
    """The part of a password that the broker keeps, for one mechanism."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations}, [hidden])"


class TokenCredential(NamedTuple):
    """The credential of a delegation token, whose user is its owner."""

    owner: str
    credential: ScramCredential
    expires_at_ms: int


class ScramUsers(Protocol):
    """Finds credentials by the mechanism's name."""

    def user(self, name: str, mechanism: str) -> ScramCredential | None:
        """Return the credential of a user."""
        ...

    def token(self, token_id: str, mechanism: str) -> TokenCredential | None:
        """Return the credential of a delegation token that has not expired."""
        ...


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Compute PBKDF2. It takes milliseconds: not on the event loop."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


def from_salted_password(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Return the credential of a password that the client has salted (AlterUserScramCredentials)."""
    name = HASHES[mechanism]
    client_key = hmac.digest(salted, b"Client Key", name)
    return ScramCredential(
        salt, hashlib.new(name, client_key).digest(), hmac.digest(salted, b"Server Key", name), iterations
    )


def from_password(mechanism: str, password: str, *, iterations: int = ITERATIONS_MIN) -> ScramCredential:
    """Return a credential with a new salt. It takes milliseconds: not on the event loop."""
    salt = random_bytes(SALT_BYTES)
    return from_salted_password(mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations)


def to_text(credential: ScramCredential) -> str:
    """Encode a credential as Kafka does."""
    salt, stored, server = (b64encode(part).decode() for part in credential[:3])
    return f"salt={salt},stored_key={stored},server_key={server},iterations={credential.iterations}"


def from_text(text: str) -> ScramCredential:
    """Decode a credential. Raises ValueError, which does not show it.

    >>> from_text("salt=YWI=,stored_key=YWI=,server_key=YWI=,iterations=4096")
    ScramCredential(iterations=4096, [hidden])
    """
    fields = dict(field.split("=", 1) for field in text.split(",") if "=" in field)
    try:
        salt, stored, server = (b64decode(fields[name], validate=True) for name in ("salt", "stored_key", "server_key"))
        return ScramCredential(salt, stored, server, int(fields["iterations"]))
    except (KeyError, ValueError, binascii.Error):
        raise ValueError("not a SCRAM credential: [hidden]") from None
