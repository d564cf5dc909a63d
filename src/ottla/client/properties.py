"""Client settings under the names that Kafka users know, made into `ClientOptions`.

`security.protocol`, `sasl.*` and `ssl.*` mean what they mean to Kafka's Java client; where librdkafka has a name of its
own for the same thing (`sasl.username`, `ssl.ca.location`, ...) that is understood too. What only Java can do is
refused by name, never passed over: a setting that does nothing is worse than one that is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ottla.client.cluster import ClientOptions
from ottla.client.connection import Security
from ottla.client.sasl import MECHANISMS, PLAIN, Sasl, parse_jaas
from ottla.client.tls import KeyStore, Tls

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_LOGIN_MODULES = {PLAIN: "PlainLoginModule", "SCRAM-SHA-256": "ScramLoginModule", "SCRAM-SHA-512": "ScramLoginModule"}
_ONLY_JAVA = {
    "ssl.provider",
    "ssl.keymanager.algorithm",
    "ssl.trustmanager.algorithm",
    "ssl.secure.random.implementation",
    "ssl.engine.factory.class",
    "sasl.client.callback.handler.class",
    "sasl.login.class",
    "sasl.login.callback.handler.class",
    "security.providers",
}
SECURITY = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.jaas.config",
        "sasl.username",
        "sasl.password",
        "ssl.truststore.location",
        "ssl.truststore.certificates",
        "ssl.truststore.password",
        "ssl.truststore.type",
        "ssl.ca.location",
        "ssl.keystore.location",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.key.password",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.endpoint.identification.algorithm",
        "ssl.protocol",
        "ssl.enabled.protocols",
        "ssl.cipher.suites",
    }
)
TIMEOUTS = frozenset(
    {"client.id", "request.timeout.ms", "socket.connection.setup.timeout.ms", "default.api.timeout.ms"}
)
SUPPORTED = SECURITY | TIMEOUTS


class InvalidProperty(ValueError):
    """A setting that is unknown, contradicts another, or cannot be honoured. `name` is the setting's."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name = name


def client_options(properties: Mapping[str, str], *, base: ClientOptions | None = None) -> ClientOptions:
    """Options as the properties say, the rest as in `base`. Raises InvalidProperty for the first that is wrong.

    >>> client_options({"security.protocol": "SSL", "client.id": "me"}).security.protocol
    'SSL'
    """
    for name in properties:
        if name in _ONLY_JAVA:
            raise InvalidProperty(name, "this means something to Kafka's Java client only; leave it out")
        if name not in SUPPORTED:
            raise InvalidProperty(name, "no such setting is known here")
    options = base or ClientOptions()
    if "client.id" in properties:
        options = replace(options, client_id=properties["client.id"])
    if (value := properties.get("request.timeout.ms")) is not None:
        options = replace(options, request_timeout_s=_seconds("request.timeout.ms", value))
    if (value := properties.get("socket.connection.setup.timeout.ms")) is not None:
        options = replace(options, connect_timeout_s=_seconds("socket.connection.setup.timeout.ms", value))
    if (value := properties.get("default.api.timeout.ms")) is not None:
        options = replace(options, retry_s=_seconds("default.api.timeout.ms", value))
    return replace(options, security=security(properties))


def security(properties: Mapping[str, str]) -> Security:
    """What the `security.protocol`, `sasl.*` and `ssl.*` among the properties say. Raises InvalidProperty."""
    protocol = properties.get("security.protocol", PROTOCOLS[0]).upper()
    if protocol not in PROTOCOLS:
        raise InvalidProperty("security.protocol", f"{protocol!r} is none of {', '.join(PROTOCOLS)}")
    sasl, tls = protocol.startswith("SASL_"), protocol.endswith("SSL")
    for prefix, wanted in (("sasl.", sasl), ("ssl.", tls)):
        idle = next((name for name in sorted(properties) if name.startswith(prefix)), None)
        if idle is not None and not wanted:
            raise InvalidProperty(idle, f"it has no effect with security.protocol={protocol}")
    return Security(_tls(properties) if tls else None, _sasl(properties) if sasl else None)


def _sasl(properties: Mapping[str, str]) -> Sasl:
    mechanism = _one(properties, "sasl.mechanism", "sasl.mechanisms")
    if mechanism is None:
        raise InvalidProperty(
            "sasl.mechanism", f"say which (Kafka's default, GSSAPI, is not spoken): {_list(MECHANISMS)}"
        )
    if mechanism not in MECHANISMS:
        raise InvalidProperty("sasl.mechanism", f"{mechanism!r} is not spoken; these are: {_list(MECHANISMS)}")
    jaas = properties.get("sasl.jaas.config")
    username, password = properties.get("sasl.username"), properties.get("sasl.password")
    if jaas is not None:
        if username is not None or password is not None:
            raise InvalidProperty("sasl.jaas.config", "it says who signs in, and so do sasl.username and sasl.password")
        username, password = _from_jaas(mechanism, jaas)
    if username is None or password is None:
        missing = "sasl.username" if username is None else "sasl.password"
        raise InvalidProperty(missing, "give sasl.username and sasl.password, or sasl.jaas.config")
    return Sasl(mechanism, username, password)


def _from_jaas(mechanism: str, text: str) -> tuple[str | None, str | None]:
    try:
        module, options = parse_jaas(text)
    except ValueError as error:
        raise InvalidProperty("sasl.jaas.config", str(error)) from None
    if module != _LOGIN_MODULES[mechanism]:
        raise InvalidProperty("sasl.jaas.config", f"{mechanism} needs {_LOGIN_MODULES[mechanism]}, not {module}")
    for name in ("username", "password"):
        if name not in options:
            raise InvalidProperty("sasl.jaas.config", f"it names no {name}")
    return options["username"], options["password"]


def _tls(properties: Mapping[str, str]) -> Tls:
    trust_file = _one(properties, "ssl.truststore.location", "ssl.ca.location")
    trust_pem = properties.get("ssl.truststore.certificates")
    chain_file = _one(properties, "ssl.keystore.location", "ssl.certificate.location")
    chain_pem = properties.get("ssl.keystore.certificate.chain")
    key_file, key_pem = properties.get("ssl.key.location"), properties.get("ssl.keystore.key")
    for name, file, pem in (
        ("ssl.truststore.certificates", trust_file, trust_pem),
        ("ssl.keystore.certificate.chain", chain_file, chain_pem),
        ("ssl.keystore.key", key_file, key_pem),
    ):
        if file is not None and pem is not None:
            raise InvalidProperty(name, "the same is given as a file too")
    for name in ("ssl.truststore.type", "ssl.keystore.type"):
        if properties.get(name, "PEM").upper() not in {"PEM", "PKCS12", "JKS"}:
            raise InvalidProperty(
                name, f"{properties[name]!r} is none of PEM, PKCS12, JKS (a file shows itself which it is)"
            )
    if chain_pem is not None and key_pem is None:
        raise InvalidProperty("ssl.keystore.key", "a certificate chain is given without its key")
    checks = properties.get("ssl.endpoint.identification.algorithm", "https")
    if checks.lower() not in {"https", "", "none"}:
        raise InvalidProperty("ssl.endpoint.identification.algorithm", f"{checks!r} is neither https nor empty")
    return Tls(
        trust=_store(trust_file, trust_pem, properties.get("ssl.truststore.password")),
        chain=_store(chain_file, chain_pem, properties.get("ssl.keystore.password")),
        key=_store(key_file, key_pem, None),
        key_password=properties.get("ssl.key.password"),
        check_hostname=checks.lower() == "https",
        protocols=_tls_protocols(properties),
        ciphers=_ciphers(properties.get("ssl.cipher.suites")),
    )


def _tls_protocols(properties: Mapping[str, str]) -> tuple[str, ...]:
    found: list[str] = []
    for name in ("ssl.enabled.protocols", "ssl.protocol"):
        listed = [part.strip() for part in properties.get(name, "").split(",") if part.strip()]
        for protocol in listed:
            if protocol not in {"TLSv1.2", "TLSv1.3", "TLS"}:
                raise InvalidProperty(name, f"{protocol!r} is neither TLSv1.2 nor TLSv1.3")
        if name == "ssl.enabled.protocols":
            found = [protocol for protocol in listed if protocol != "TLS"]
    return tuple(found)


def _ciphers(text: str | None) -> str | None:
    """A list with commas as Kafka has it, with colons as OpenSSL wants it."""
    return None if text is None else ":".join(part.strip() for part in text.split(","))


def _store(location: str | None, pem: str | None, password: str | None) -> KeyStore | None:
    return None if location is None and pem is None else KeyStore(location, pem, password)


def _one(properties: Mapping[str, str], name: str, other: str) -> str | None:
    """A setting that has two names."""
    if name in properties and other in properties and properties[name] != properties[other]:
        raise InvalidProperty(other, f"{name} says something else")
    return properties.get(name, properties.get(other))


def _seconds(name: str, text: str) -> float:
    if not (text.isascii() and text.isdecimal()) or int(text) == 0:
        raise InvalidProperty(name, f"{text!r} is no number of milliseconds above 0")
    return int(text) / 1000


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names)
