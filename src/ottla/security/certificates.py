"""Describes X.509 certificates: whom they name, and for how long. Needs `cryptography`."""

from __future__ import annotations

from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from ottla.security.distinguished_names import format_name

_DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class CertificateSummary:
    """The content of a certificate. Times are ISO 8601 in UTC."""

    subject: str
    issuer: str
    names: tuple[str, ...]
    valid_from: str
    valid_until: str
    days_left: int  # negative if it has expired
    is_authority: bool
    serial: str
    sha256: str


def read_certificates(pem_or_der: bytes) -> list[x509.Certificate]:
    """Read the certificates of a PEM text, which may have keys too, or the one of DER. Raises ValueError."""
    if b"-----BEGIN" in pem_or_der:
        return x509.load_pem_x509_certificates(pem_or_der)
    return [x509.load_der_x509_certificate(pem_or_der)]


def summarize(certificate: x509.Certificate, *, now_ms: int) -> CertificateSummary:
    """Describe a certificate."""
    end = certificate.not_valid_after_utc
    return CertificateSummary(
        subject=format_name(certificate.subject.public_bytes()),
        issuer=format_name(certificate.issuer.public_bytes()),
        names=alternative_names(certificate),
        valid_from=certificate.not_valid_before_utc.isoformat(),
        valid_until=end.isoformat(),
        days_left=int((end.timestamp() - now_ms / 1000) // _DAY_S),
        is_authority=_is_authority(certificate),
        serial=f"{certificate.serial_number:x}",
        sha256=certificate.fingerprint(hashes.SHA256()).hex(),
    )


def alternative_names(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the hosts and addresses that a certificate names."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(str(name.value) for name in names if isinstance(name, x509.DNSName | x509.IPAddress | x509.RFC822Name))


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False
