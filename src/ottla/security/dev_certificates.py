"""Makes the certificates of a test cluster: a certificate authority, and what it issued to brokers and clients.

One PEM file for each: the key, its certificate and that of the authority, as Kafka's `ssl.keystore.location` and
librdkafka's `ssl.certificate.location` read them. Needs `cryptography`. The keys are not encrypted and the authority's
is beside them: not for a cluster that anything depends on.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
BROKER, CLIENT, ADMIN = "broker", "client", "admin"
MAPPING_RULES = "RULE:^CN=([^,]+).*$/$1/,DEFAULT"
"""Makes the principal `User:admin` of `CN=admin`, as of the user admin of SCRAM."""
_CLOCK_SKEW = dt.timedelta(minutes=5)
_ONLY_OWNER, _EVERYBODY = 0o600, 0o644
_CURVE = ec.SECP256R1()


class FileExists(Exception):
    """A file that would be written exists."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} exists")
        self.path = path


@dataclass(frozen=True, slots=True)
class DevCertificates:
    """The files of a test cluster."""

    directory: Path

    @property
    def authority(self) -> Path:
        """The certificate of the authority, which every client and broker trusts."""
        return self.directory / "ca.pem"

    @property
    def authority_key(self) -> Path:
        """The key that issues certificates."""
        return self.directory / "ca-key.pem"

    def identity(self, name: str) -> Path:
        """Return the key and the certificates of BROKER, CLIENT or ADMIN."""
        return self.directory / f"{name}.pem"

    @property
    def all(self) -> list[Path]:
        """Every file."""
        return [self.authority, self.authority_key, *map(self.identity, (BROKER, CLIENT, ADMIN))]

    def broker_settings(self) -> dict[str, str]:
        """Return the settings of brokers: they require certificates of clients and accept those of the authority."""
        return {
            **self._stores(BROKER),
            "ssl.client.auth": "required",
            "ssl.principal.mapping.rules": MAPPING_RULES,
            "super.users": f"User:{BROKER};User:{ADMIN}",
        }

    def client_settings(self, name: str = CLIENT) -> dict[str, str]:
        """Return the settings of a client that signs in by its certificate."""
        return {"security.protocol": "SSL", **self._stores(name)}

    def _stores(self, name: str) -> dict[str, str]:
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.identity(name)),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
        }


def make_certificates(directory: Path, *, hosts: Sequence[str], days: int, now_ms: int) -> DevCertificates:
    """Write a new authority, and certificates for brokers on these hosts, a client and an administrator.

    Raises OSError, and before anything is written FileExists, and ValueError for a host that no certificate can name.
    """
    names = list(map(_host, hosts))
    files = DevCertificates(directory)
    for path in files.all:
        if path.exists():
            raise FileExists(path)
    start = dt.datetime.fromtimestamp(now_ms / 1000, tz=dt.UTC).replace(microsecond=0)
    authority = _Authority(start - _CLOCK_SKEW, start + dt.timedelta(days=days))
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write(files.authority_key, _pem_of_key(authority.key), _ONLY_OWNER)
    for name in (BROKER, CLIENT, ADMIN):
        _write(files.identity(name), authority.issue(name, names if name == BROKER else []), _ONLY_OWNER)
    _write(files.authority, authority.pem, _EVERYBODY)
    return files


class _Authority:
    """A key and the certificate that names it an authority."""

    def __init__(self, begin: dt.datetime, end: dt.datetime) -> None:
        self.key = ec.generate_private_key(_CURVE)
        self._begin, self._end = begin, end
        self._name = _name("Ottla test CA")
        self._identifier = x509.SubjectKeyIdentifier.from_public_key(self.key.public_key())
        builder = self._builder(self._name, self.key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
        self.pem = _pem(builder.sign(self.key, hashes.SHA256()))

    def issue(self, common_name: str, hosts: Sequence[x509.GeneralName]) -> bytes:
        """Return a new key, its certificate and the authority's. Brokers have hosts; they are clients of others too."""
        key = ec.generate_private_key(_CURVE)
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        builder = self._builder(_name(common_name), key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._identifier)
        builder = builder.add_extension(issuer, critical=False)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        return _pem_of_key(key) + _pem(builder.sign(self.key, hashes.SHA256())) + self.pem

    def _builder(self, subject: x509.Name, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(public_key)
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(self._begin).not_valid_after(self._end)
        return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _pem_of_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Encode a key as PKCS#8, the only form that Kafka's PEM stores accept."""
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)


def _write(path: Path, content: bytes, mode: int) -> None:
    """Write a new file, which only its owner can read from its first byte on if that is its mode."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise FileExists(path) from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
