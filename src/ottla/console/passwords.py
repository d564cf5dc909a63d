"""Checks passwords against a file of hashes: a line `name:scrypt$SALT$HASH` for each user, in base64."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ottla.core.runtime import random_bytes

_N, _R, _P = 1 << 15, 8, 1
_MEMORY: Final = 64 << 20
_SALT_BYTES: Final = 16
PASSWORD_MAX: Final = 1024


class InvalidPasswordFile(ValueError):
    """Reports the line of a file of passwords that cannot be read."""


def hash_password(password: str) -> str:
    """Return the hash of a password as the file has it."""
    salt = random_bytes(_SALT_BYTES)
    return f"scrypt${base64.b64encode(salt).decode()}${base64.b64encode(_hash(password, salt)).decode()}"


class PasswordFile:
    """The users of a file, read once."""

    def __init__(self, users: Mapping[str, tuple[bytes, bytes]]) -> None:
        self._users = dict(users)
        self._nothing = random_bytes(_SALT_BYTES), b""

    @classmethod
    def read(cls, path: Path) -> PasswordFile:
        """Read a file. Raises InvalidPasswordFile or OSError."""
        users = {}
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            name, _, rest = line.partition(":")
            kind, _, hashed = rest.strip().partition("$")
            salt, _, digest = hashed.partition("$")
            try:
                if not name or kind != "scrypt":
                    raise ValueError("write name:scrypt$SALT$HASH")
                users[name] = base64.b64decode(salt, validate=True), base64.b64decode(digest, validate=True)
            except (ValueError, binascii.Error) as error:
                raise InvalidPasswordFile(f"{path}, line {number}: {error}; make it with --hash-password") from None
        if not users:
            raise InvalidPasswordFile(f"{path} has no user")
        return cls(users)

    def is_right(self, name: str, password: str) -> bool:
        """Check a password; takes as long for a name that is not there. Blocks for some 50 ms."""
        salt, digest = self._users.get(name, self._nothing)
        return hmac.compare_digest(_hash(password[:PASSWORD_MAX], salt), digest)


def _hash(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=_N, r=_R, p=_P, maxmem=_MEMORY)
