"""Makes certificates of TLS for tests, and the settings of listeners and clients with them."""

from __future__ import annotations

import datetime as dt
import ssl
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

PASSWORD = "store-secret"


@dataclass
class Certificates:
    """An authority, another one, and what they issue, in files of a directory."""

    directory: Path
    authority: trustme.CA = field(default_factory=trustme.CA)
    other: trustme.CA = field(default_factory=trustme.CA)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)

    @cached_property
    def trusted(self) -> Path:
        """The authority's certificate."""
        path = self.directory / "trusted.pem"
        path.write_bytes(self.authority.cert_pem.bytes())
        return path

    def issue(
        self,
        *names: str,
        common_name: str | None = None,
        not_after: dt.datetime | None = None,
        by: trustme.CA | None = None,
    ) -> trustme.LeafCert:
        """Return a certificate for names, by default for this machine."""
        return (by or self.authority).issue_cert(
            *(names or ("localhost", "127.0.0.1")),
            common_name=common_name,
            organization_name="Ottla",
            organization_unit_name="Tests",
            not_before=dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
            not_after=not_after,
        )

    def store(self, name: str, issued: trustme.LeafCert | None = None) -> Path:
        """Write a key and its certificates into one file of PEM, as Kafka wants it: the key is PKCS#8."""
        path = self.directory / name
        path.write_text(self.pem(issued or self.issue()))
        return path

    @staticmethod
    def chain(issued: trustme.LeafCert) -> str:
        """The certificates as PEM."""
        return b"".join(pem.bytes() for pem in issued.cert_chain_pems).decode()

    @staticmethod
    def key(issued: trustme.LeafCert, password: str = "") -> str:
        """The key as PEM, in PKCS#8."""
        key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password:
            encryption = serialization.BestAvailableEncryption(password.encode())
        return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption).decode()

    def pem(self, issued: trustme.LeafCert) -> str:
        """Key and certificates as PEM."""
        return self.key(issued) + self.chain(issued)

    def pkcs12_store(self, name: str, issued: trustme.LeafCert) -> Path:
        """Write key and certificates as PKCS#12, with the password `PASSWORD`."""
        path = self.directory / name
        certificate, *others = (x509.load_pem_x509_certificate(pem.bytes()) for pem in issued.cert_chain_pems)
        key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
        encryption = serialization.BestAvailableEncryption(PASSWORD.encode())
        path.write_bytes(
            pkcs12.serialize_key_and_certificates(b"own", key, certificate, others, encryption)  # type: ignore[arg-type]
        )
        return path

    def client_context(self, issued: trustme.LeafCert | None = None) -> ssl.SSLContext:
        """The context of a client that trusts the authority, with a certificate of its own or without."""
        context = ssl.create_default_context(cafile=str(self.trusted))
        if issued is not None:
            issued.configure_cert(context)
        return context
