"""Loads certificates and keys in Kafka's key store formats into SSL contexts, of listeners and of clients.

PEM is read directly, PKCS#12 through `cryptography` if it is installed (the extra `keystores`). Java's own JKS format
is not supported: the error message has the commands that convert it.
"""

from __future__ import annotations

import contextlib
import os
import re
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_PEM_MARK: Final = b"-----BEGIN"
_PEM_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----([^-]*)-----END \1-----")
_PEM_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----")
_JKS_MAGICS: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")  # JKS and JCEKS
_DER_SEQUENCE: Final = b"\x30"
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_TLS_1_3_SUITES: Final = frozenset(
    {
        "TLS_AES_128_GCM_SHA256",
        "TLS_AES_256_GCM_SHA384",
        "TLS_CHACHA20_POLY1305_SHA256",
        "TLS_AES_128_CCM_SHA256",
        "TLS_AES_128_CCM_8_SHA256",
    }
)


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
            return _with_lines(self.pem.replace("\\n", "\n")).encode()
        assert self.location is not None
        try:
            return Path(self.location).read_bytes()
        except OSError as error:
            raise InvalidKeyStore(f"{self.location} cannot be read: {error.strerror}") from None

    def __str__(self) -> str:
        return self.location or "the PEM text"


def set_versions(context: ssl.SSLContext, versions: Sequence[str], ciphers: Sequence[str]) -> None:
    """Set the versions of TLS and the cipher suites, by their IANA names or OpenSSL's. Raises InvalidKeyStore.

    Python cannot choose among the suites of TLS 1.3. But where none of them is named, TLS 1.3 is not used, and where no
    others are, only it is.
    """
    allowed = set(versions) or set(_VERSIONS)
    if ciphers:
        older = [cipher for cipher in ciphers if cipher not in _TLS_1_3_SUITES]
        allowed -= {"TLSv1.2"} if not older else {"TLSv1.3"} if len(older) == len(ciphers) else set()
        if not allowed:
            raise InvalidKeyStore(f"{','.join(ciphers)} has no cipher of {', '.join(versions)}")
        try:
            context.set_ciphers(":".join(map(openssl_cipher, older)) or "DEFAULT")
        except ssl.SSLError:
            raise InvalidKeyStore(f"{','.join(ciphers)} has no cipher that OpenSSL supports") from None
    enabled = [_VERSIONS[name] for name in allowed]
    context.minimum_version, context.maximum_version = min(enabled), max(enabled)


def openssl_cipher(name: str) -> str:
    """Return OpenSSL's name of a cipher suite of TLS 1.2.

    >>> openssl_cipher("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"), openssl_cipher("TLS_RSA_WITH_AES_128_CBC_SHA256")
    ('ECDHE-RSA-AES256-GCM-SHA384', 'AES128-SHA256')
    >>> openssl_cipher("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"), openssl_cipher("ECDHE+AESGCM")
    ('ECDHE-ECDSA-CHACHA20-POLY1305', 'ECDHE+AESGCM')
    """
    exchange, separator, cipher = name.removeprefix("TLS_").partition("_WITH_")
    if not separator:
        return name
    cipher = re.sub(r"^(AES|CAMELLIA|ARIA)_(\d+)_(CBC_)?", r"\1\2_", cipher)
    cipher = cipher.replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    return "-".join((() if exchange == "RSA" else (exchange.replace("_", "-"),)) + (cipher.replace("_", "-"),))


def load_trusted(context: ssl.SSLContext, store: KeyStore) -> None:
    """Trust certificates, as Java does: also one that is not the root of its issuers. Raises InvalidKeyStore."""
    pem = as_pem(store, keys=False)
    try:
        context.load_verify_locations(cadata=pem.decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError, ValueError) as error:
        raise InvalidKeyStore(f"{store} contains no trusted certificates: {error}") from None
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def load_identity(
    context: ssl.SSLContext, chain: KeyStore, key: KeyStore | None = None, key_password: str | None = None
) -> list[bytes]:
    """Load a certificate and its key, which may be in the same store; returns the certificates (DER).

    Raises InvalidKeyStore.
    """
    pem = as_pem(chain, keys=True)
    if key is not None:
        pem = key.content() + b"\n" + pem
    with _file_of(pem) as path:
        try:
            context.load_cert_chain(path, password=key_password or chain.password or "")
        except (ssl.SSLError, OSError) as error:
            raise InvalidKeyStore(f"{chain} does not contain a certificate with its key: {error}") from None
    return [ssl.PEM_cert_to_DER_cert(block.decode("ascii")) for block in _PEM_CERTIFICATE.findall(pem)]


@contextlib.contextmanager
def _file_of(content: bytes) -> Iterator[str]:
    """Return the name of a file with this content, since `ssl` reads keys from files only.

    It is in memory where the system has such files, else in a directory that only this user can read.
    """
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir():
        with open(os.memfd_create("ottla"), "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
        return
    import tempfile

    with tempfile.TemporaryDirectory(prefix="ottla-") as directory:
        path = Path(directory, "identity.pem")
        path.touch(mode=0o600)
        path.write_bytes(content)
        yield str(path)


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


def _with_lines(text: str) -> str:
    """Break the lines of PEM text as OpenSSL needs them: in a properties file they may be joined."""

    def block(found: re.Match[str]) -> str:
        kind, content = found[1], found[2]
        if ":" in content:  # the headers of an encrypted key in OpenSSL's old format
            return found[0]
        letters = "".join(content.split())
        lines = [letters[at : at + 64] for at in range(0, len(letters), 64)]
        return "\n".join((f"-----BEGIN {kind}-----", *lines, f"-----END {kind}-----"))

    return _PEM_BLOCK.sub(block, text)


def as_pem(store: KeyStore, *, keys: bool) -> bytes:
    """Return the certificates of a store as PEM, with the key if `keys`. Raises InvalidKeyStore."""
    content = store.content()
    if _PEM_MARK in content:
        return content
    if content[:4] in _JKS_MAGICS:
        raise InvalidKeyStore(
            f"{store} is a JKS key store, which only Java can read; convert it: keytool -importkeystore "
            f"-srckeystore {store} -destkeystore store.p12 -deststoretype PKCS12, "
            "then openssl pkcs12 -in store.p12 -out store.pem -nodes"
        )
    if content[:1] == _DER_SEQUENCE:
        return _from_pkcs12(content, store, keys=keys)
    raise InvalidKeyStore(f"{store} is neither PEM nor PKCS#12")


def _from_pkcs12(content: bytes, store: KeyStore, *, keys: bool) -> bytes:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise InvalidKeyStore(
            f"{store} is a PKCS#12 key store; install ottla[keystores], or convert it: "
            f"openssl pkcs12 -in {store} -out store.pem -nodes"
        ) from None
    try:
        certificates = pkcs12.load_pkcs12(content, store.password.encode() if store.password else None)
    except ValueError as error:
        raise InvalidKeyStore(f"{store} cannot be opened: {error}") from None
    own = [certificates.cert] if certificates.cert is not None else []
    parts = [
        item.certificate.public_bytes(serialization.Encoding.PEM) for item in (*own, *certificates.additional_certs)
    ]
    if keys:
        if certificates.key is None:
            raise InvalidKeyStore(f"{store} contains no key")
        plain = serialization.NoEncryption()
        key = certificates.key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        parts.insert(0, key)
    return b"\n".join(parts)
