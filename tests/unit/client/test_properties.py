"""Client settings under Kafka's names."""

from __future__ import annotations

import pytest

from ottla.client.properties import InvalidProperty, client_options
from ottla.client.sasl import Sasl
from ottla.security.sasl.jaas import parse_jaas

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
SASL = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}


def test_the_default_protocol_is_plaintext() -> None:
    assert client_options({}).security.protocol == "PLAINTEXT"


@pytest.mark.parametrize(
    "who",
    [
        {"sasl.username": "alice", "sasl.password": 'a"b'},
        {"sasl.jaas.config": f'{SCRAM} required username="alice" password="a\\"b";'},
        {"sasl.jaas.config": f'{SCRAM} required\n  username = alice\n  password="a\\"b" tokenauth=false ;\n'},
    ],
)
def test_credentials_are_read_from_jaas_or_from_separate_properties(who: dict[str, str]) -> None:
    security = client_options({**SASL, **who}).security
    assert security.protocol == "SASL_SSL"
    assert security.sasl == Sasl("SCRAM-SHA-512", "alice", 'a"b')


def test_a_delegation_token_is_named_as_in_kafkas_login_module() -> None:
    jaas = f'{SCRAM} required username="id" password="hmac" tokenauth="true";'
    assert client_options({**SASL, "sasl.jaas.config": jaas}).security.sasl == Sasl(
        "SCRAM-SHA-512", "id", "hmac", is_token=True
    )


def test_secrets_are_not_shown() -> None:
    options = client_options(
        {
            **SASL,
            "sasl.username": "alice",
            "sasl.password": "secret-1",
            "ssl.truststore.password": "secret-2",
            "ssl.key.password": "secret-3",
            "ssl.keystore.key": "secret-4",
            "ssl.keystore.certificate.chain": "secret-5",
        }
    )
    assert "alice" in repr(options)
    assert "secret" not in repr(options)


def test_timeouts_are_in_milliseconds_under_kafkas_names() -> None:
    options = client_options({"client.id": "me", "request.timeout.ms": "1500", "default.api.timeout.ms": "60000"})
    assert (options.client_id, options.request_timeout_s, options.retry_s) == ("me", 1.5, 60.0)


@pytest.mark.parametrize(
    ("properties", "named", "why"),
    [
        ({"sekurity.protocol": "SSL"}, "sekurity.protocol", "no such setting"),
        ({"security.protocol": "TLS"}, "security.protocol", "not one of PLAINTEXT"),
        ({"ssl.truststore.location": "x"}, "ssl.truststore.location", "no effect with security.protocol=PLAINTEXT"),
        ({"security.protocol": "SSL", "sasl.mechanism": "PLAIN"}, "sasl.mechanism", "no effect"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism", "GSSAPI, is not supported"),
        ({**SASL, "sasl.mechanism": "GSSAPI"}, "sasl.mechanism", "is not supported"),
        (SASL, "sasl.username", "set sasl.username"),
        ({**SASL, "sasl.username": "a"}, "sasl.password", "set sasl.username"),
        (
            {
                **SASL,
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": "a.PlainLoginModule required username=a password=b tokenauth=true;",
            },
            "sasl.jaas.config",
            "sign in with SCRAM",
        ),
        ({**SASL, "sasl.jaas.config": "nonsense"}, "sasl.jaas.config", "write: org.apache"),
        ({**SASL, "sasl.jaas.config": f"{SCRAM} required username=a;"}, "sasl.jaas.config", "no password"),
        (
            {**SASL, "sasl.jaas.config": "a.PlainLoginModule required username=a password=b;"},
            "sasl.jaas.config",
            "needs ScramLoginModule, not PlainLoginModule",
        ),
        (
            {**SASL, "sasl.jaas.config": f"{SCRAM} required username=a password=b;", "sasl.username": "c"},
            "sasl.jaas.config",
            "contradicts sasl.username",
        ),
        ({"security.protocol": "SSL", "ssl.provider": "BC"}, "ssl.provider", "only Kafka's Java client"),
        ({"security.protocol": "SSL", "ssl.enabled.protocols": "TLSv1.1"}, "ssl.enabled.protocols", "TLSv1.2 nor"),
        ({"security.protocol": "SSL", "ssl.truststore.type": "BKS"}, "ssl.truststore.type", "not one of PEM"),
        ({"security.protocol": "SSL", "ssl.keystore.certificate.chain": "x"}, "ssl.keystore.key", "needs its key"),
        (
            {"security.protocol": "SSL", "ssl.ca.location": "a", "ssl.truststore.certificates": "b"},
            "ssl.truststore.certificates",
            "the setting of a file",
        ),
        (
            {"security.protocol": "SSL", "ssl.ca.location": "a", "ssl.truststore.location": "b"},
            "ssl.ca.location",
            "contradicts",
        ),
        ({"request.timeout.ms": "soon"}, "request.timeout.ms", "not a number of milliseconds"),
        (
            {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "ldaps"},
            "ssl.endpoint.identification.algorithm",
            "neither https",
        ),
    ],
)
def test_an_invalid_property_is_named_with_the_reason(properties: dict[str, str], named: str, why: str) -> None:
    with pytest.raises(InvalidProperty, match=why) as raised:
        client_options(properties)
    assert raised.value.name == named


@pytest.mark.parametrize(
    "text", ["", ";", "Module", "Module required", 'Module required username="a;', "Module required ab;"]
)
def test_an_invalid_jaas_entry_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write:"):
        parse_jaas(text)


def test_the_token_of_oauthbearer_comes_from_a_file_or_a_command() -> None:
    base = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    file, command = "sasl.oauthbearer.token.endpoint.url", "ottla.sasl.oauthbearer.token.command"
    assert client_options({**base, file: "file:///run/token"}).security.sasl == Sasl(
        "OAUTHBEARER", token_file="/run/token"
    )
    assert client_options({**base, command: "print-token"}).security.sasl == Sasl(
        "OAUTHBEARER", token_command="print-token"
    )
    for wrong in ({}, {file: "file:///a", command: "b"}, {file: "https://issuer.example/token"}):
        with pytest.raises(InvalidProperty, match=r"token\.endpoint\.url"):
            client_options({**base, **wrong})
