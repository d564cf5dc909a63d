"""Converts client settings under Kafka's names to `ClientOptions`.

`security.protocol`, `sasl.*` and `ssl.*` have the meaning that they have for Kafka's Java client; librdkafka's names
for the same settings (`sasl.username`, `ssl.ca.location`, ...) are accepted too. Settings that only Java can support
are rejected by name, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import urlsplit
from urllib.request import url2pathname

from ottla.client.cluster import ClientOptions
from ottla.client.connection import Security
from ottla.client.sasl import MECHANISMS, Sasl
from ottla.client.tls import Tls
from ottla.security.config import OAUTHBEARER, PLAIN
from ottla.security.key_stores import KeyStore
from ottla.security.sasl.jaas import parse_jaas

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_LOGIN_MODULES = {PLAIN: "PlainLoginModule", "SCRAM-SHA-256": "ScramLoginModule", "SCRAM-SHA-512": "ScramLoginModule"}
_TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"  # noqa: S105 - the names of properties
_TOKEN_COMMAND = "ottla.sasl.oauthbearer.token.command"  # noqa: S105
RUNS_A_COMMAND = frozenset({_TOKEN_COMMAND})
"""Settings that a user may set for itself, and that must not come from anyone else."""
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
        "sasl.oauthbearer.token.endpoint.url",
        "ottla.sasl.oauthbearer.token.command",
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
REGISTRY = "schema.registry.url"
"""Connects nothing: commands and the console decode keys and values by it."""
SUPPORTED = SECURITY | TIMEOUTS | {REGISTRY}


class InvalidProperty(ValueError):
    """A setting that is unknown, contradicts another, or is not supported. `name` is the name of the setting."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name = name


def client_options(properties: Mapping[str, str], *, base: ClientOptions | None = None) -> ClientOptions:
    """Return `base` with the properties applied. Raises InvalidProperty for the first invalid one.

    >>> client_options({"security.protocol": "SSL", "client.id": "me"}).security.protocol
    'SSL'
    """
    for name in properties:
        if name in _ONLY_JAVA:
            raise InvalidProperty(name, "only Kafka's Java client supports this setting; remove it")
        if name not in SUPPORTED:
            raise InvalidProperty(name, "no such setting exists")
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
    """Return the security of the properties `security.protocol`, `sasl.*` and `ssl.*`. Raises InvalidProperty."""
    protocol = properties.get("security.protocol", PROTOCOLS[0]).upper()
    if protocol not in PROTOCOLS:
        raise InvalidProperty("security.protocol", f"{protocol!r} is not one of {', '.join(PROTOCOLS)}")
    sasl, tls = protocol.startswith("SASL_"), protocol.endswith("SSL")
    for prefix, allowed in (("sasl.", sasl), ("ssl.", tls)):
        idle = next((name for name in sorted(properties) if name.startswith(prefix)), None)
        if idle is not None and not allowed:
            raise InvalidProperty(idle, f"it has no effect with security.protocol={protocol}")
    return Security(_tls(properties) if tls else None, _sasl(properties) if sasl else None)


def _sasl(properties: Mapping[str, str]) -> Sasl:
    mechanism = _one(properties, "sasl.mechanism", "sasl.mechanisms")
    if mechanism is None:
        raise InvalidProperty(
            "sasl.mechanism", f"set one of {_list(MECHANISMS)} (Kafka's default, GSSAPI, is not supported)"
        )
    if mechanism not in MECHANISMS:
        raise InvalidProperty("sasl.mechanism", f"{mechanism!r} is not supported; use one of {_list(MECHANISMS)}")
    if mechanism == OAUTHBEARER:
        return _token_source(properties)
    jaas, is_token = properties.get("sasl.jaas.config"), False
    username, password = properties.get("sasl.username"), properties.get("sasl.password")
    if jaas is not None:
        if username is not None or password is not None:
            raise InvalidProperty(
                "sasl.jaas.config", "it contradicts sasl.username and sasl.password; set one or the other"
            )
        username, password, is_token = _from_jaas(mechanism, jaas)
    if username is None or password is None:
        missing = "sasl.username" if username is None else "sasl.password"
        raise InvalidProperty(missing, "it is missing; set sasl.username and sasl.password, or sasl.jaas.config")
    return Sasl(mechanism, username, password, is_token=is_token)


def _token_source(properties: Mapping[str, str]) -> Sasl:
    """Return where the token of OAUTHBEARER comes from: a file, as in Kafka, or a command."""
    url, command = (properties.get(name) for name in (_TOKEN_URL, _TOKEN_COMMAND))
    if (url is None) == (command is None):
        raise InvalidProperty(_TOKEN_URL, f"set either it, to the file of the token (file:///...), or {_TOKEN_COMMAND}")
    if url is None:
        return Sasl(OAUTHBEARER, token_command=command or "")
    parts = urlsplit(url)
    if parts.scheme != "file" or parts.netloc or not parts.path:
        raise InvalidProperty(_TOKEN_URL, "it must be file:///..., where something else keeps the token")
    return Sasl(OAUTHBEARER, token_file=url2pathname(parts.path))


def _from_jaas(mechanism: str, text: str) -> tuple[str, str, bool]:
    """Return user name and password, and whether they are those of a delegation token. Raises InvalidProperty."""
    try:
        path, options = parse_jaas(text)
    except ValueError as error:
        raise InvalidProperty("sasl.jaas.config", str(error)) from None
    module = path.rpartition(".")[2]
    if module != _LOGIN_MODULES[mechanism]:
        raise InvalidProperty("sasl.jaas.config", f"{mechanism} needs {_LOGIN_MODULES[mechanism]}, not {module}")
    for name in ("username", "password"):
        if name not in options:
            raise InvalidProperty("sasl.jaas.config", f"it has no {name}")
    is_token = options.get("tokenauth", "false").lower() == "true"
    if is_token and mechanism == PLAIN:
        raise InvalidProperty("sasl.jaas.config", "delegation tokens sign in with SCRAM")
    return options["username"], options["password"], is_token


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
            raise InvalidProperty(name, "it contradicts the setting of a file for the same; set one of them")
    for name in ("ssl.truststore.type", "ssl.keystore.type"):
        if properties.get(name, "PEM").upper() not in {"PEM", "PKCS12", "JKS"}:
            raise InvalidProperty(
                name, f"{properties[name]!r} is not one of PEM, PKCS12, JKS (the type is detected from the file)"
            )
    if chain_pem is not None and key_pem is None:
        raise InvalidProperty("ssl.keystore.key", "it is missing; a certificate chain needs its key")
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
        ciphers=_ciphers(properties.get("ssl.cipher.suites", "")),
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


def _ciphers(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _store(location: str | None, pem: str | None, password: str | None) -> KeyStore | None:
    return None if location is None and pem is None else KeyStore(location, pem, password)


def _one(properties: Mapping[str, str], name: str, other: str) -> str | None:
    """Return the value of a setting that has two names."""
    if name in properties and other in properties and properties[name] != properties[other]:
        raise InvalidProperty(other, f"it contradicts {name}; set one of them")
    return properties.get(name, properties.get(other))


def _seconds(name: str, text: str) -> float:
    if not (text.isascii() and text.isdecimal()) or int(text) == 0:
        raise InvalidProperty(name, f"{text!r} is not a number of milliseconds above 0")
    return int(text) / 1000


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names)
