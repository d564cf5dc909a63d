"""Builds what TLS needs from the settings of a listener: its context, and how certificates become principals."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ottla.net.identity import USER, ConnectionIdentity
from ottla.net.tls import TlsTerms
from ottla.security.config import TlsConfig
from ottla.security.distinguished_names import Certificate, distinguished_name, read_certificate
from ottla.security.key_stores import InvalidKeyStore, KeyStore, load_identity, load_trusted, set_versions
from ottla.security.principal_mapping import InvalidRules, PrincipalMapper

_VERIFY_MODES = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class LoadedTls(NamedTuple):
    """Holds the terms of a listener, and the certificates whose expiry matters."""

    terms: TlsTerms
    certificates: list[Certificate]  # the broker's own and those of its issuers


def load_tls(config: TlsConfig) -> LoadedTls:
    """Read key store and trust store, and build the context of a listener. Raises InvalidKeyStore and InvalidRules."""
    chain = key_store_of(config)
    if chain is None:
        raise InvalidKeyStore(
            "TLS needs a certificate: set ssl.keystore.location, or ssl.keystore.certificate.chain and ssl.keystore.key"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    set_versions(context, config.enabled_protocols, config.cipher_suites)
    context.verify_mode = _VERIFY_MODES[config.client_auth]
    trusted = trust_store_of(config)
    if trusted is not None:
        load_trusted(context, trusted)
    elif config.client_auth != "none":
        raise InvalidKeyStore(
            f"ssl.client.auth={config.client_auth} needs ssl.truststore.location or ssl.truststore.certificates: "
            "without, every client with a certificate of a public authority would be accepted"
        )
    own = load_identity(context, chain, private_key_of(config), config.key_password or None)
    return LoadedTls(
        TlsTerms(context, _identifier(PrincipalMapper(config.principal_mapping_rules))),
        [read_certificate(certificate) for certificate in own],
    )


def _identifier(mapper: PrincipalMapper) -> Callable[[bytes], ConnectionIdentity]:
    return lambda certificate: ConnectionIdentity(USER, mapper.name(distinguished_name(certificate)))


def key_store_of(config: TlsConfig) -> KeyStore | None:
    """Return where the certificate is; None if there is none. Raises InvalidKeyStore if two places are named."""
    if config.keystore_chain or config.keystore_key:
        if config.keystore_location:
            raise InvalidKeyStore(
                "ssl.keystore.location contradicts ssl.keystore.certificate.chain and ssl.keystore.key"
            )
        if not (config.keystore_chain and config.keystore_key):
            raise InvalidKeyStore("ssl.keystore.certificate.chain and ssl.keystore.key need each other")
        return KeyStore(pem=config.keystore_chain)
    if config.keystore_location:
        return KeyStore(config.keystore_location, password=config.keystore_password or None)
    return None


def private_key_of(config: TlsConfig) -> KeyStore | None:
    """Return where the key is if it is not beside the certificate."""
    return KeyStore(pem=config.keystore_key) if config.keystore_key else None


def trust_store_of(config: TlsConfig) -> KeyStore | None:
    """Return where the trusted certificates are; None if none are named. Raises InvalidKeyStore."""
    if config.truststore_certificates:
        if config.truststore_location:
            raise InvalidKeyStore("ssl.truststore.location contradicts ssl.truststore.certificates")
        return KeyStore(pem=config.truststore_certificates)
    if config.truststore_location:
        return KeyStore(config.truststore_location, password=config.truststore_password or None)
    return None


def content_digest(config: TlsConfig) -> bytes:
    """Return a digest of the files that the settings name: it changes with their content. Raises OSError."""
    digest = hashlib.sha256()
    for location in (config.keystore_location, config.truststore_location):
        content = Path(location).read_bytes() if location else b""
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.digest()


__all__ = [
    "InvalidKeyStore",
    "InvalidRules",
    "LoadedTls",
    "content_digest",
    "key_store_of",
    "load_tls",
    "private_key_of",
    "trust_store_of",
]
