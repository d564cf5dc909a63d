"""Builds the SSL context of a client's connections."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from ottla.security.key_stores import KeyStore, load_identity, load_trusted, set_versions


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
    ciphers: tuple[str, ...] = ()

    def context(self) -> ssl.SSLContext:
        """Build the SSL context. Raises InvalidKeyStore."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self.check_hostname
        set_versions(context, self.protocols, self.ciphers)
        if self.trust is None:
            context.load_default_certs()
        else:
            load_trusted(context, self.trust)
        if self.chain is not None:
            load_identity(context, self.chain, self.key, self.key_password)
        return context
