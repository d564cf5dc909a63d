"""Declares the settings of TLS, each of which a listener may have of its own (`listener.name.<name>.ssl...`)."""

from __future__ import annotations

from typing import Any, Final

from ottla.core.settings import Content, Section, Type, setting

TLS_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")


def _own(key: str, **more: Any) -> Any:
    return setting(key, per_listener=True, **more)


class TlsConfig(Section):
    """Holds Kafka's settings `ssl.*` of listeners, and of connections to other brokers."""

    keystore_location: str = _own(
        "ssl.keystore.location", default="", kind=Type.STRING,
        doc="The file with the broker's certificate, the certificates of its issuers, and its key: PEM or PKCS#12.",
    )  # fmt: skip
    keystore_password: str = _own(
        "ssl.keystore.password", default="", kind=Type.PASSWORD, live=True,
        doc="The password of a PKCS#12 key store.",
    )  # fmt: skip
    keystore_type: str = _own(
        "ssl.keystore.type", default="JKS", kind=Type.STRING, choices=("JKS", "PKCS12", "PEM"), live=True,
        doc="The format of the key store. Java's own JKS is refused, with the command that converts it.",
        no_effect="it is recognized by its content",
    )  # fmt: skip
    keystore_chain: str = _own(
        "ssl.keystore.certificate.chain", default="", kind=Type.PASSWORD, live=True,
        doc="The broker's certificate and those of its issuers as PEM text, in place of a file.",
    )  # fmt: skip
    keystore_key: str = _own(
        "ssl.keystore.key", default="", kind=Type.PASSWORD, live=True,
        doc="The broker's key as PEM text (PKCS#8), for `ssl.keystore.certificate.chain`.",
    )  # fmt: skip
    key_password: str = _own(
        "ssl.key.password", default="", kind=Type.PASSWORD, live=True,
        doc="The password of an encrypted key.",
    )  # fmt: skip
    truststore_location: str = _own(
        "ssl.truststore.location", default="", kind=Type.STRING,
        doc="The file with the certificates that clients' and other brokers' certificates must be issued by: PEM or "
        "PKCS#12. Empty means those that this machine trusts.",
    )  # fmt: skip
    truststore_password: str = _own(
        "ssl.truststore.password", default="", kind=Type.PASSWORD, live=True,
        doc="The password of a PKCS#12 trust store.",
    )  # fmt: skip
    truststore_type: str = _own(
        "ssl.truststore.type", default="JKS", kind=Type.STRING, choices=("JKS", "PKCS12", "PEM"), live=True,
        doc="The format of the trust store.", no_effect="it is recognized by its content",
    )  # fmt: skip
    truststore_certificates: str = _own(
        "ssl.truststore.certificates", default="", kind=Type.PASSWORD, live=True,
        doc="The trusted certificates as PEM text, in place of a file.",
    )  # fmt: skip
    client_auth: str = _own(
        "ssl.client.auth", default="none", kind=Type.STRING, choices=("none", "requested", "required"), live=True,
        doc="Whether clients need a certificate: `required`, `requested` (one that is sent is checked) or `none`. The "
        "principal of a client is taken from its certificate.",
    )  # fmt: skip
    enabled_protocols: tuple[str, ...] = _own(
        "ssl.enabled.protocols", default=TLS_VERSIONS, kind=Type.LIST, choices=TLS_VERSIONS, live=True,
        doc="The versions of TLS. Older ones than 1.2 are not safe, and not served.",
    )  # fmt: skip
    protocol: str = _own(
        "ssl.protocol", default="TLSv1.3", kind=Type.STRING, choices=("TLS", *TLS_VERSIONS), live=True,
        doc="The version of Java's SSLContext.", no_effect="`ssl.enabled.protocols` decides",
    )  # fmt: skip
    cipher_suites: tuple[str, ...] = _own(
        "ssl.cipher.suites", default=(), kind=Type.LIST, live=True, content=Content.NAME,
        doc="The cipher suites, by their IANA names as in Kafka or by OpenSSL's. Empty means OpenSSL's choice. Those "
        "of TLS 1.3 are all served: Python cannot leave one out.",
    )  # fmt: skip
    endpoint_identification: str = _own(
        "ssl.endpoint.identification.algorithm", default="https", kind=Type.STRING, choices=("https", ""), live=True,
        doc="Whether this broker checks the host name in the certificates of other brokers: `https`, or empty for no.",
    )  # fmt: skip
    principal_mapping_rules: str = _own(
        "ssl.principal.mapping.rules", default="DEFAULT", kind=Type.STRING,
        doc="How the distinguished name of a certificate becomes the name of a principal: rules "
        "`RULE:pattern/replacement/[LU]` and `DEFAULT` (the whole name), of which the first that matches counts "
        "(KIP-371).",
    )  # fmt: skip
    expiry_warning_days: int = _own(
        "ottla.ssl.expiry.warning.days", default=30, kind=Type.INT, unit="days", at_least=0, live=True,
        doc="A certificate that expires within so many days is logged at the start and once a day. 0 disables it.",
    )  # fmt: skip
