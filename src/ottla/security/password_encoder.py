"""Encrypts secrets for the metadata store, in the format of Kafka's password encoder (3.x), and decrypts them.

A value is a list `name:value,name:value` with the ciphertext and all parameters. Kafka with the same secret can read
what is written here, and what Kafka wrote is read here. New values are encrypted with AES-GCM: one key for all of a
process, derived with PBKDF2 from the secret and a random salt, and a random initialization vector for each value.

Functions here take 50 ms or more where a key has to be derived: they are called in a thread.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections import OrderedDict
from typing import Final

from ottla.core.runtime import random_bytes
from ottla.security.config import ITERATIONS_MAX

_HASHES: Final = {"PBKDF2WithHmacSHA1": "sha1", "PBKDF2WithHmacSHA256": "sha256", "PBKDF2WithHmacSHA512": "sha512"}
_GCM, _CBC = "AES/GCM/NoPadding", "AES/CBC/PKCS5Padding"
_TAG_BITS: Final = 128
_SALT_BYTES: Final = 32
_VECTOR_BYTES: Final = 12
_KEYS_MAX: Final = 64
_KEY_BITS: Final = (128, 192, 256)
_MISSING_LIBRARY: Final = (
    "it needs the library cryptography: pip install '.[keystores]' in a clone, or 'FILE.whl[keystores]'"
)


class PasswordNotDecoded(Exception):
    """Reports a value that cannot be decrypted: the secret is another, or it is malformed. It has no part of either."""


def why_unusable() -> str:
    """Return why secrets cannot be encrypted here; empty if they can."""
    try:
        from cryptography.hazmat.primitives.ciphers import aead  # noqa: F401
    except ImportError:
        return _MISSING_LIBRARY
    return ""


def is_encoded(text: str) -> bool:
    """Return whether the text has the form of an encrypted value.

    >>> is_encoded("secret"), is_encoded("encryptedPassword:YQ==,salt:YQ==,iterations:4096")
    (False, True)
    """
    return "encryptedPassword" in _parameters(text)


class PasswordEncoder:
    """Encrypts and decrypts with one secret."""

    def __init__(
        self, secret: str, *, iterations: int = 120_000, key_factory: str = "PBKDF2WithHmacSHA512", key_bits: int = 256
    ) -> None:
        assert key_bits in _KEY_BITS, "the settings were checked"
        self._secret = secret.encode()
        self._iterations, self._key_factory, self._key_bits = iterations, key_factory, key_bits
        self._salt = random_bytes(_SALT_BYTES)
        self._keys: OrderedDict[tuple[str, int, int, bytes], bytes] = OrderedDict()

    def __repr__(self) -> str:
        return "PasswordEncoder()"

    def encode(self, password: str) -> str:
        """Encrypt a secret."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        vector = random_bytes(_VECTOR_BYTES)
        key = self._key(self._key_factory, self._key_bits, self._iterations, self._salt)
        encrypted = AESGCM(key).encrypt(vector, password.encode(), None)
        fields = {
            "keyFactoryAlgorithm": self._key_factory,
            "cipherAlgorithm": _GCM,
            "keyLength": str(self._key_bits),
            "salt": base64.b64encode(self._salt).decode(),
            "iterations": str(self._iterations),
            "encryptedPassword": base64.b64encode(encrypted).decode(),
            "passwordLength": str(len(password.encode("utf-16-le")) // 2),  # as Java counts it
            "initializationVector": base64.b64encode(vector).decode(),
            "authenticationTagLength": str(_TAG_BITS),
        }
        return ",".join(f"{name}:{value}" for name, value in fields.items())

    def decode(self, text: str) -> str:
        """Decrypt a value. Raises PasswordNotDecoded."""
        from cryptography.exceptions import InvalidTag

        try:
            return self._decrypt(_parameters(text)).decode()
        except (InvalidTag, KeyError, ValueError) as error:  # the last of them could show a part of the secret
            raise PasswordNotDecoded(f"it cannot be decrypted ({type(error).__name__})") from None

    def _decrypt(self, fields: dict[str, str]) -> bytes:
        from cryptography.hazmat.primitives import padding
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        iterations, key_bits = int(fields["iterations"]), int(fields["keyLength"])
        factory, cipher = fields["keyFactoryAlgorithm"], fields["cipherAlgorithm"]
        if not 1 <= iterations <= ITERATIONS_MAX or factory not in _HASHES or key_bits not in _KEY_BITS:
            raise PasswordNotDecoded("its parameters are not supported")
        salt, vector = _decoded(fields["salt"]), _decoded(fields["initializationVector"])
        encrypted = _decoded(fields["encryptedPassword"])
        key = self._key(factory, key_bits, iterations, salt)
        if cipher == _GCM and fields.get("authenticationTagLength") == str(_TAG_BITS):
            return AESGCM(key).decrypt(vector, encrypted, None)
        if cipher != _CBC:
            raise PasswordNotDecoded("its cipher is not supported")
        decryptor = Cipher(algorithms.AES(key), modes.CBC(vector)).decryptor()
        unpadder = padding.PKCS7(algorithms.AES.block_size).unpadder()
        padded = decryptor.update(encrypted) + decryptor.finalize()
        password = unpadder.update(padded) + unpadder.finalize()
        if len(password.decode().encode("utf-16-le")) // 2 != int(fields["passwordLength"]):
            raise PasswordNotDecoded("its length is another: the secret is not that which encrypted it")
        return password

    def _key(self, factory: str, bits: int, iterations: int, salt: bytes) -> bytes:
        name = factory, bits, iterations, salt
        if name not in self._keys:
            self._keys[name] = hashlib.pbkdf2_hmac(_HASHES[factory], self._secret, salt, iterations, bits // 8)
            if len(self._keys) > _KEYS_MAX:
                self._keys.popitem(last=False)
        return self._keys[name]


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise PasswordNotDecoded("it is malformed") from None


def _parameters(text: str) -> dict[str, str]:
    return {name.strip(): value.strip() for name, _, value in (part.partition(":") for part in re.split(",", text))}
