"""Clients of others, unmodified, at a listener with TLS that wants a certificate: the right one, and all kinds of wrong ones."""

# mypy: disable-error-code="attr-defined, no-untyped-call, arg-type"

from __future__ import annotations

import datetime as dt
import ssl
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer

from tests.support.certificates import PASSWORD, Certificates
from tests.support.kafka_jars import CONFIG_COMMAND
from tests.support.kafka_tools import run_tool
from tests.support.ottla_process import OttlaProcess

pytestmark = pytest.mark.external

PATIENCE_S = 30
EXPIRED = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


@dataclass
class Secured:
    """A broker of one process, and what clients need."""

    server: OttlaProcess
    certificates: Certificates

    @property
    def bootstrap(self) -> str:
        return f"localhost:{self.server.port}"

    def librdkafka(self, issued: trustme.LeafCert | None) -> dict[str, Any]:
        found = {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.certificates.trusted),
            "socket.timeout.ms": 5000,
            "log_level": 0,
        }
        if issued is not None:
            found |= {
                "ssl.certificate.pem": self.certificates.chain(issued),
                "ssl.key.pem": self.certificates.key(issued),
            }
        return found


def start(directory: Path, certificates: Certificates, *names: str) -> OttlaProcess:
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:SSL",
        "advertised.listeners": "PLAINTEXT://localhost:0",
        "ssl.keystore.location": certificates.store("broker.pem", certificates.issue(*names)),
        "ssl.truststore.location": certificates.trusted,
        "ssl.client.auth": "required",
        "auto.create.topics.enable": "true",
    }
    options = [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]
    return OttlaProcess(directory, options=options).start()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    certificates = Certificates(directory / "certificates")
    server = start(directory / "broker", certificates)
    yield Secured(server, certificates)
    server.stop()
    server.assert_log_is_clean()


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def client(secured: Secured) -> trustme.LeafCert:
    return secured.certificates.issue("client@example.org", common_name="ann")


def test_confluent_kafka_with_the_right_certificate(secured: Secured, client: trustme.LeafCert, topic: str) -> None:
    producer = Producer(secured.librdkafka(client))
    for number in range(500):
        producer.produce(topic, b"x" * 2000 + b"%d" % number)
    assert producer.flush(PATIENCE_S) == 0
    consumer = Consumer({**secured.librdkafka(client), "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    read = 0
    while read < 500:
        messages = consumer.consume(500, timeout=PATIENCE_S)
        assert messages, f"{read} records were read"
        assert all(message.error() is None for message in messages)
        read += len(messages)
    consumer.close()


def wrong_certificate(secured: Secured, kind: str) -> trustme.LeafCert | None:
    certificates = secured.certificates
    match kind:
        case "expired":
            return certificates.issue("client@example.org", not_after=EXPIRED)
        case "foreign":
            return certificates.issue("client@example.org", by=certificates.other)
        case _:
            return None


@pytest.mark.parametrize(
    ("kind", "logged"),
    [
        ("expired", "its certificate is not trusted: certificate has expired"),
        ("foreign", "its certificate is not trusted: unable to get local issuer certificate"),
        ("none", "peer did not return a certificate"),
    ],
)
def test_a_wrong_certificate_is_an_error_of_the_client_and_a_line_of_the_log(
    kind: str, logged: str, secured: Secured
) -> None:
    errors: list[KafkaError] = []
    settings: dict[str, Any] = {**secured.librdkafka(wrong_certificate(secured, kind)), "error_cb": errors.append}
    admin = AdminClient(settings)
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=5)
    admin.poll(1)

    assert KafkaError._SSL in {error.code() for error in errors} or "SSL" in str(errors)
    assert logged in secured.server.log


def test_kafka_python_with_the_right_certificate(secured: Secured, client: trustme.LeafCert, topic: str) -> None:
    settings: dict[str, Any] = {"bootstrap_servers": secured.bootstrap, "security_protocol": "SSL"}
    producer = KafkaProducer(**settings, ssl_context=secured.certificates.client_context(client))
    for _ in range(100):
        producer.send(topic, b"x" * 1000)
    producer.flush(PATIENCE_S)
    producer.close()
    consumer = KafkaConsumer(
        topic,
        **settings,
        ssl_context=secured.certificates.client_context(client),
        auto_offset_reset="earliest",
        consumer_timeout_ms=PATIENCE_S * 1000,
    )
    assert [next(consumer).value for _ in range(100)] == [b"x" * 1000] * 100
    consumer.close()


async def test_aiokafka_with_the_right_certificate(secured: Secured, client: trustme.LeafCert, topic: str) -> None:
    settings: dict[str, Any] = {
        "bootstrap_servers": secured.bootstrap,
        "security_protocol": "SSL",
        "ssl_context": secured.certificates.client_context(client),
    }
    async with AIOKafkaProducer(**settings) as producer:
        for _ in range(100):
            await producer.send_and_wait(topic, b"x" * 1000)
    async with AIOKafkaConsumer(topic, **settings, auto_offset_reset="earliest") as consumer:
        assert [(await consumer.getone()).value for _ in range(100)] == [b"x" * 1000] * 100


def limit_to_tls_1_1(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_1
    context.maximum_version = ssl.TLSVersion.TLSv1_1


def test_a_client_with_tls_1_1_is_refused(secured: Secured, client: trustme.LeafCert) -> None:
    import socket

    context = secured.certificates.client_context(client)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        limit_to_tls_1_1(context)
    with socket.create_connection(("localhost", secured.server.port)) as plain, pytest.raises(ssl.SSLError):
        context.wrap_socket(plain, server_hostname="localhost")
    assert "the TLS handshake failed: unsupported protocol" in secured.server.log


@pytest.mark.slow
def test_javas_console_clients_sign_in_by_a_key_store(
    secured: Secured, client: trustme.LeafCert, topic: str, kafka_jars: Path, tmp_path: Path
) -> None:
    store = secured.certificates.pkcs12_store("java.p12", client)
    settings = tmp_path / "client.properties"
    settings.write_text(
        "security.protocol=SSL\n"
        "ssl.truststore.type=PEM\n"
        f"ssl.truststore.location={secured.certificates.trusted}\n"
        "ssl.keystore.type=PKCS12\n"
        f"ssl.keystore.location={store}\n"
        f"ssl.keystore.password={PASSWORD}\n"
        f"ssl.key.password={PASSWORD}\n"
    )
    at = ("--bootstrap-server", secured.bootstrap, "--topic", topic, "--command-config", str(settings))
    run_tool(kafka_jars, "org.apache.kafka.tools.ConsoleProducer", *at, stdin="".join(f"{n}\n" for n in range(1000)))
    said = run_tool(
        kafka_jars, "org.apache.kafka.tools.consumer.ConsoleConsumer", *at, "--from-beginning", "--max-messages", "1000"
    )
    assert [line for line in said.splitlines() if line.isdecimal()] == [str(n) for n in range(1000)]


@pytest.mark.slow
def test_kafkas_configs_tool_has_a_key_store_read_again_and_may_name_no_other_file(
    secured: Secured, client: trustme.LeafCert, kafka_jars: Path, tmp_path: Path
) -> None:
    settings = tmp_path / "client.properties"
    settings.write_text(
        "security.protocol=SSL\nssl.truststore.type=PEM\nssl.keystore.type=PEM\n"
        f"ssl.truststore.location={secured.certificates.trusted}\n"
        f"ssl.keystore.location={secured.certificates.store('java.pem', client)}\n"
    )
    key = "listener.name.plaintext.ssl.keystore.location"
    change = ["--bootstrap-server", secured.bootstrap, "--command-config", str(settings), "--entity-type", "brokers"]
    change += ["--entity-name", "1", "--alter", "--add-config"]
    store = secured.certificates.directory / "broker.pem"
    said = run_tool(kafka_jars, CONFIG_COMMAND, *change, f"{key}={store}")
    assert "Completed updating config" in said
    with pytest.raises(AssertionError, match="cannot be changed by a request"):
        run_tool(kafka_jars, CONFIG_COMMAND, *change, f"{key}=/etc/passwd")
