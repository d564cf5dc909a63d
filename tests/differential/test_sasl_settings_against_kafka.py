"""Which settings of sign-in a request may change while a broker runs: Kafka 4.4.0's answers beside Ottla's.

In Kafka no request changes how clients of a listener that exists sign in. It refuses most, and those with the prefix of a
listener it stores unchecked and without effect: they are for listeners that a later request adds. Ottla cannot add
listeners while it runs, and refuses all.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.ottla_process import ConfiguredOttla
from tests.support.processes import free_port
from tests.support.real_kafka import RealKafka
from tests.support.wire_client import Wire

pytestmark = [pytest.mark.external, pytest.mark.slow]

MODULE = "org.apache.kafka.common.security"
INVALID_REQUEST, SASL_AUTHENTICATION_FAILED = 42, 58
KAFKA, OTTLA = "kafka", "ottla"
TAKEN = {KAFKA: 0, OTTLA: INVALID_REQUEST}
"""The answers where Kafka stores a setting that has no effect."""
REFUSED = dict.fromkeys((KAFKA, OTTLA), INVALID_REQUEST)


def jaas(password: str, module: str = f"{MODULE}.plain.PlainLoginModule") -> str:
    return f'{module} required user_alice="{password}";'


class Signing:
    """A broker with a listener for all, and one where alice signs in by PLAIN."""

    def __init__(self, kind: str, jars: Path, directory: Path) -> None:
        self.kind, self.port = kind, free_port()
        broker = RealKafka(jars, directory) if kind == KAFKA else ConfiguredOttla(directory)
        listeners = f"PLAINTEXT://127.0.0.1:{broker.port},OUT://127.0.0.1:{self.port}"
        settings = {
            "advertised.listeners": listeners,
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.out.plain.sasl.jaas.config": jaas("first"),
            "password.encoder.secret": "a secret",
        }
        if isinstance(broker, RealKafka):
            listeners += f",CONTROLLER://127.0.0.1:{broker.controller_port}"
        protocols = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,OUT:SASL_PLAINTEXT"
        settings |= {"listeners": listeners, "listener.security.protocol.map": protocols}
        with broker.properties.open("a", encoding="utf-8") as file:
            file.writelines(f"{name}={value}\n" for name, value in settings.items())
        self.broker = broker

    def alter(self, name: str, key: str, value: str) -> dict[str, Any]:
        configs = [{"name": key, "config_operation": 0, "value": value}]
        asked = [{"resource_type": 4, "resource_name": name, "configs": configs}]
        with Wire(self.broker.port) as wire:
            answer = wire.call("incremental_alter_configs", 1, resources=asked, validate_only=False)
        found: dict[str, Any] = answer["responses"][0]
        return found

    def sign_in(self, password: str) -> int:
        with Wire(self.port) as wire:
            assert wire.call("sasl_handshake", 1, mechanism="PLAIN")["mechanisms"] == ["PLAIN"]
            answer = wire.call("sasl_authenticate", 2, auth_bytes=f"\0alice\0{password}".encode())
        return int(answer["error_code"])


@pytest.fixture(scope="module", params=[KAFKA, OTTLA])
def signing(
    request: pytest.FixtureRequest, kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Signing]:
    found = Signing(request.param, kafka_jars, tmp_path_factory.mktemp("signing"))
    found.broker.start()
    yield found
    found.broker.stop()


@pytest.mark.parametrize(
    ("name", "key", "value", "answers"),
    [
        ("1", "listener.name.out.plain.sasl.jaas.config", jaas("second"), TAKEN),
        ("1", "listener.name.out.sasl.jaas.config", jaas("second"), TAKEN),
        ("1", "listener.name.other.sasl.jaas.config", jaas("second"), TAKEN),
        (
            "1",
            "listener.name.out.plain.sasl.jaas.config",
            jaas("x", "com.sun.security.auth.module.JndiLoginModule"),
            TAKEN,
        ),
        ("1", "listener.name.out.plain.sasl.jaas.config", "no module", TAKEN),
        ("", "listener.name.out.plain.sasl.jaas.config", jaas("second"), REFUSED),
        ("", "sasl.jaas.config", jaas("second"), REFUSED),
        ("1", "listener.name.out.sasl.enabled.mechanisms", "SCRAM-SHA-512", TAKEN),
        ("1", "listener.name.out.sasl.enabled.mechanisms", "none", TAKEN),
        ("1", "sasl.enabled.mechanisms", "SCRAM-SHA-512", REFUSED),
        ("", "sasl.enabled.mechanisms", "SCRAM-SHA-512", REFUSED),
        ("1", "sasl.mechanism.inter.broker.protocol", "PLAIN", REFUSED),
        ("1", "listener.name.out.sasl.mechanism.inter.broker.protocol", "PLAIN", TAKEN),
        ("1", "connections.max.reauth.ms", "1000", REFUSED),
        ("1", "listener.name.out.connections.max.reauth.ms", "1000", TAKEN),
        ("1", "listener.name.out.plain.connections.max.reauth.ms", "1000", TAKEN),
        ("1", "listener.name.out.connections.max.reauth.ms", "soon", REFUSED),
        ("1", "connection.failed.authentication.delay.ms", "5", REFUSED),
        ("1", "listener.name.out.connection.failed.authentication.delay.ms", "5", TAKEN),
        ("1", "sasl.server.max.receive.size", "1000", REFUSED),
        ("1", "listener.name.out.sasl.server.max.receive.size", "1000", TAKEN),
        ("1", "sasl.oauthbearer.jwks.endpoint.url", "file:///etc/passwd", REFUSED),
        ("1", "listener.name.out.sasl.oauthbearer.jwks.endpoint.url", "file:///etc/passwd", TAKEN),
        ("1", "listener.name.out.sasl.oauthbearer.expected.audience", "other", TAKEN),
        ("1", "sasl.server.callback.handler.class", "a.Class", REFUSED),
        ("1", "listener.name.out.sasl.server.callback.handler.class", "a.Class", REFUSED),
        ("1", "listener.name.out.plain.sasl.login.class", "a.Class", REFUSED),
        ("1", "listener.name.out.sasl.kerberos.service.name", "kafka", TAKEN),
    ],
)
def test_no_request_changes_how_the_clients_of_a_listener_sign_in(
    signing: Signing, name: str, key: str, value: str, answers: dict[str, int]
) -> None:
    answer = signing.alter(name, key, value)
    assert answer["error_code"] == answers[signing.kind], answer
    assert "second" not in (answer["error_message"] or "")
    assert (signing.sign_in("first"), signing.sign_in("second")) == (0, SASL_AUTHENTICATION_FAILED)
