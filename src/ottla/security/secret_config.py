"""Declares the settings by which secrets that are set while the broker runs are encrypted in the metadata store."""

from __future__ import annotations

from typing import Final

from ottla.core.settings import Section, Type, setting

ITERATIONS_MIN: Final = 100_000
ITERATIONS_MAX: Final = 10_000_000


class SecretConfig(Section):
    """Holds the secret of the password encoder, and its parameters."""

    secret: str = setting(
        "password.encoder.secret", default="", kind=Type.PASSWORD,
        doc="Encrypts secret settings of this broker that AlterConfigs sets, in the metadata store. Without it they "
        "are refused.",
    )  # fmt: skip
    old_secret: str = setting(
        "password.encoder.old.secret", default="", kind=Type.PASSWORD,
        doc="The secret before `password.encoder.secret` was changed: at the start what it had encrypted is encrypted "
        "again.",
    )  # fmt: skip
    iterations: int = setting(
        "password.encoder.iterations", default=120_000, kind=Type.INT, at_least=ITERATIONS_MIN, at_most=ITERATIONS_MAX,
        doc="Iterations of PBKDF2. Kafka's default of 4,096 is too few today; values with it are still read.",
    )  # fmt: skip
    key_factory: str = setting(
        "password.encoder.keyfactory.algorithm", default="PBKDF2WithHmacSHA512", kind=Type.STRING,
        choices=("PBKDF2WithHmacSHA256", "PBKDF2WithHmacSHA512"),
        doc="How the key is derived from `password.encoder.secret`.",
    )  # fmt: skip
    cipher: str = setting(
        "password.encoder.cipher.algorithm", default="AES/GCM/NoPadding", kind=Type.STRING,
        choices=("AES/GCM/NoPadding",), no_effect="there is one cipher",
        doc="The cipher. Values that Kafka encrypted with `AES/CBC/PKCS5Padding` are still read.",
    )  # fmt: skip
    key_bits: str = setting(
        "password.encoder.key.length", default="256", kind=Type.STRING, choices=("128", "192", "256"),
        doc="Length of the key in bits.",
    )  # fmt: skip
