"""Builds the SSL context of connections from certificates and keys in Kafka's key store formats.

PEM is read directly, PKCS#12 through `cryptography` if it is installed (the extra `keystores`). Java's own JKS format
is not supported: the error message has the commands that convert it.
"""

from __future__ import annotations

import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

_PEM_MARK = b"-----BEGIN"
_JKS_MAGICS = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")  # JKS and JCEKS
_DER_SEQUENCE = b"\x30"
_PROTOCOLS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class InvalidKeyStore(ValueError):
    """A certificate, key or key store cannot be used; the message names the file and the next action."""


@dataclass(frozen=True, slots=True)
class KeyStore:
    """Certificates or keys: a file or PEM text."""

    location: str | None = None
    pem: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)

    def content(self) -> bytes:
        """Return the content. Raises InvalidKeyStore if the file cannot be read."""
        if self.pem is not None:
            return self.pem.replace("\\n", "\n").encode()
        assert self.location is not None
        try:
            return Path(self.location).read_bytes()
        except OSError as error:
            raise InvalidKeyStore(f"{self.location} cannot be read: {error.strerror}") from None


@dataclass(frozen=True, slots=True)
class Tls:
    """The trusted certificates and the client's own. Files are read on the machine that opens the connection."""

    trust: KeyStore | None = None
    """None means the certificates that this machine trusts."""
    chain: KeyStore | None = None
    """The client's certificate, for brokers that require one (ssl.client.auth)."""
    key: KeyStore | None = None
    """The client's key if it is not in the same file as the certificate."""
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True
    protocols: tuple[str, ...] = ()
    ciphers: str | None = None

    def context(self) -> ssl.SSLContext:
        """Build the SSL context. Raises InvalidKeyStore."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self.check_hostname
        versions = [_PROTOCOLS[name] for name in self.protocols] or [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]
        context.minimum_version, context.maximum_version = min(versions), max(versions)
        if self.ciphers is not None:
            try:
                context.set_ciphers(self.ciphers)
            except ssl.SSLError:
                raise InvalidKeyStore(
                    f"{self.ciphers!r} has no cipher that OpenSSL supports; use OpenSSL's names, not Java's"
                ) from None
        self._trust(context)
        if self.chain is not None:
            self._identify(context, self.chain)
        return context

    def _trust(self, context: ssl.SSLContext) -> None:
        if self.trust is None:
            context.load_default_certs()
            return
        pem = _as_pem(self.trust, keys=False)
        try:
            context.load_verify_locations(cadata=pem.decode("ascii"))
        except (ssl.SSLError, UnicodeDecodeError, ValueError) as error:
            raise InvalidKeyStore(f"{_name(self.trust)} contains no trusted certificates: {error}") from None

    def _identify(self, context: ssl.SSLContext, chain: KeyStore) -> None:
        """Load the client's certificate. `ssl` reads files only: a temporary one that only this user can read."""
        pem = _as_pem(chain, keys=True)
        if self.key is not None:
            pem = self.key.content() + b"\n" + pem
        with tempfile.TemporaryDirectory(prefix="ottla-") as directory:
            path = Path(directory, "identity.pem")
            path.touch(mode=0o600)
            path.write_bytes(pem)
            try:
                context.load_cert_chain(path, password=self.key_password or chain.password or "")
            except (ssl.SSLError, OSError) as error:
                raise InvalidKeyStore(f"{_name(chain)} does not contain a certificate with its key: {error}") from None


def explain(error: ssl.SSLError) -> str:
    """Return why a handshake failed, with the setting to check."""
    if isinstance(error, ssl.SSLCertVerificationError):
        advice = "check that ssl.truststore.location contains it"
        if "match" in error.verify_message or "valid for" in error.verify_message:
            advice = "ssl.endpoint.identification.algorithm= (empty) disables the check of the host name"
        return f"its certificate is not trusted: {error.verify_message}; {advice}"
    reason = (error.reason or str(error)).lower().replace("_", " ")
    if "wrong version number" in reason or "record layer" in reason:
        return "it does not use TLS on this port; check security.protocol"
    if "certificate required" in reason or "handshake failure" in reason:
        return f"it rejected the TLS handshake ({reason}); it may require a client certificate (ssl.keystore.location)"
    return f"the TLS handshake failed: {reason}"


def _name(store: KeyStore) -> str:
    return store.location or "the PEM text"


def _as_pem(store: KeyStore, *, keys: bool) -> bytes:
    content = store.content()
    if _PEM_MARK in content:
        return content
    where = _name(store)
    if content[:4] in _JKS_MAGICS:
        raise InvalidKeyStore(
            f"{where} is a JKS key store, which only Java can read; convert it: keytool -importkeystore "
            f"-srckeystore {where} -destkeystore store.p12 -deststoretype PKCS12, "
            "then openssl pkcs12 -in store.p12 -out store.pem -nodes"
        )
    if content[:1] == _DER_SEQUENCE:
        return _from_pkcs12(content, store, keys=keys)
    raise InvalidKeyStore(f"{where} is neither PEM nor PKCS#12")


def _from_pkcs12(content: bytes, store: KeyStore, *, keys: bool) -> bytes:
    where = _name(store)
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise InvalidKeyStore(
            f"{where} is a PKCS#12 key store; install ottla[keystores], or convert it: "
            f"openssl pkcs12 -in {where} -out store.pem -nodes"
        ) from None
    try:
        certificates = pkcs12.load_pkcs12(content, store.password.encode() if store.password else None)
    except ValueError as error:
        raise InvalidKeyStore(f"{where} cannot be opened: {error}") from None
    own = [certificates.cert] if certificates.cert is not None else []
    parts = [
        item.certificate.public_bytes(serialization.Encoding.PEM) for item in (*own, *certificates.additional_certs)
    ]
    if keys:
        if certificates.key is None:
            raise InvalidKeyStore(f"{where} contains no key")
        plain = serialization.NoEncryption()
        key = certificates.key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        parts.insert(0, key)
    return b"\n".join(parts)
