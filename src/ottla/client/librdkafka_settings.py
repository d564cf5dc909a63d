"""Converts the security of client options to the settings of librdkafka, for `ottla bench` with confluent-kafka."""

from __future__ import annotations

from ottla.client.connection import Security
from ottla.client.tls import Tls
from ottla.security.config import OAUTHBEARER
from ottla.security.key_stores import KeyStore, as_pem, openssl_cipher


class NotForLibrdkafka(ValueError):
    """Security that librdkafka has no settings for."""


def librdkafka_settings(security: Security) -> dict[str, str]:
    """Return the settings by librdkafka's names. Raises NotForLibrdkafka, and InvalidKeyStore for its files.

    Certificates go as PEM text, whatever the stores are: librdkafka would need other settings for each kind.
    """
    settings = {"security.protocol": security.protocol}
    if security.sasl is not None:
        if security.sasl.is_token:
            raise NotForLibrdkafka("it cannot sign in with a delegation token")
        if security.sasl.mechanism == OAUTHBEARER:
            raise NotForLibrdkafka("it takes no token of OAUTHBEARER from a file or a command")
        settings |= {
            "sasl.mechanism": security.sasl.mechanism,
            "sasl.username": security.sasl.username,
            "sasl.password": security.sasl.password,
        }
    return settings if security.tls is None else {**settings, **_tls_settings(security.tls)}


def _tls_settings(tls: Tls) -> dict[str, str]:
    if tls.protocols:
        raise NotForLibrdkafka("ssl.enabled.protocols has no equivalent")
    settings = {"ssl.endpoint.identification.algorithm": "https" if tls.check_hostname else "none"}
    if tls.trust is not None:
        settings["ssl.ca.pem"] = _text(tls.trust, keys=False)
    if tls.chain is not None:
        identity = _text(tls.chain, keys=True)
        settings["ssl.certificate.pem"] = identity
        settings["ssl.key.pem"] = identity if tls.key is None else _text(tls.key, keys=True)
        if password := tls.key_password or tls.chain.password:
            settings["ssl.key.password"] = password
    if tls.ciphers:
        settings["ssl.cipher.suites"] = ":".join(map(openssl_cipher, tls.ciphers))
    return settings


def _text(store: KeyStore, *, keys: bool) -> str:
    return as_pem(store, keys=keys).decode("ascii")
