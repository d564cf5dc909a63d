"""Clients of others sign in to Ottla by each mechanism, over TLS and without it, and get the reason where they may not."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as Where
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined] # as in the other tests
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError as PythonKafkaError
from kafka.net.sasl.oauth import AbstractTokenProvider as PythonTokenProvider

from tests.support.certificates import Certificates
from tests.support.kafka_jars import CONFIG_COMMAND
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import free_port
from tests.support.real_kafka import run_tool
from tests.support.tokens import Issuer, rsa_key

pytestmark = pytest.mark.external
USER, PASSWORD = "alice", 'pass"word, with = and é'
PLAIN_PASSWORD = "plain secret"
TOPIC = "signed-in"
LOGIN = "org.apache.kafka.common.security"
SCRAMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
PASSWORDS = [*((mechanism, PASSWORD) for mechanism in SCRAMS), ("PLAIN", PLAIN_PASSWORD)]
WRONG = [(USER, "wrong"), ("stranger", PASSWORD)]


class Secured(NamedTuple):
    """A broker with two listeners."""

    server: OttlaProcess
    certificates: Certificates
    issuer: Issuer
    ports: dict[str, int]

    def bootstrap(self, protocol: str) -> str:
        return f"localhost:{self.ports[protocol]}"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("sign-in")
    certificates = Certificates(directory / "certificates")
    issuer = Issuer(directory / "keys.json")
    ports = {protocol: free_port() for protocol in ("SASL_PLAINTEXT", "SASL_SSL")}
    users = directory / "users"
    users.write_text(f"{USER}={PASSWORD}\n", encoding="utf-8")
    settings = {
        "listeners": ",".join(f"{protocol}://127.0.0.1:{port}" for protocol, port in ports.items()),
        "advertised.listeners": ",".join(f"{protocol}://localhost:{port}" for protocol, port in ports.items()),
        "ssl.keystore.location": str(certificates.store("broker.pem")),
        **issuer.settings,
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN,OAUTHBEARER",
        "plain.sasl.jaas.config": f'{LOGIN}.plain.PlainLoginModule required user_{USER}="{PLAIN_PASSWORD}";',
        "ottla.initial.users.file": str(users),
    }
    options = [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]
    server = OttlaProcess(directory / "broker", options=options).start()
    made = Secured(server, certificates, issuer, ports)
    admin = AdminClient(of_librdkafka(made, "SASL_PLAINTEXT", "SCRAM-SHA-512", USER, PASSWORD))
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(20)
    yield made
    server.stop()


# ---- librdkafka


def of_librdkafka(secured: Secured, protocol: str, mechanism: str, user: str, password: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": secured.bootstrap(protocol),
        "security.protocol": protocol,
        "ssl.ca.location": str(secured.certificates.trusted),
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


def produced_by_librdkafka(client: dict[str, Any]) -> list[bytes | None]:
    """What a record was read as, after it was written."""
    outcome: list[Any] = []
    producer = Producer({**client, "message.timeout.ms": 15_000})
    producer.produce(
        TOPIC, b"of librdkafka", on_delivery=lambda error, message: outcome.append((error, message.offset()))
    )
    producer.flush(20)
    ((error, offset),) = outcome
    assert error is None, error
    consumer = Consumer({**client, "group.id": "g"})
    try:
        consumer.assign([TopicPartition(TOPIC, 0, offset)])
        return [message.value() for message in consumer.consume(1, 15)]
    finally:
        consumer.close()


def refusal_of_librdkafka(client: dict[str, Any]) -> str:
    """The error that the callback gets."""
    errors: list[str] = []
    consumer = Consumer({**client, "group.id": "g", "error_cb": lambda error: errors.append(f"{error.name()} {error}")})
    end = time.monotonic() + 20
    try:
        while not any("_AUTHENTICATION" in each for each in errors) and time.monotonic() < end:
            consumer.poll(0.1)
    finally:
        consumer.close()
    return next((each for each in errors if "_AUTHENTICATION" in each), f"not refused: {errors}")


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize(("mechanism", "password"), PASSWORDS)
def test_librdkafka_signs_in_with_a_password(secured: Secured, protocol: str, mechanism: str, password: str) -> None:
    client = of_librdkafka(secured, protocol, mechanism, USER, password)
    assert produced_by_librdkafka(client) == [b"of librdkafka"]


@pytest.mark.parametrize("mechanism", [*SCRAMS, "PLAIN"])
@pytest.mark.parametrize(("user", "password"), WRONG)
def test_librdkafka_reports_a_wrong_password_and_an_unknown_user(
    secured: Secured, mechanism: str, user: str, password: str
) -> None:
    errors = refusal_of_librdkafka(of_librdkafka(secured, "SASL_SSL", mechanism, user, password))
    assert "Authentication failed" in errors, errors


def with_token(secured: Secured, token: str) -> dict[str, Any]:
    client = of_librdkafka(secured, "SASL_SSL", "OAUTHBEARER", "", "")
    del client["sasl.username"], client["sasl.password"]
    return {**client, "oauth_cb": lambda _: (token, time.time() + 300)}


def test_librdkafka_signs_in_with_a_token(secured: Secured) -> None:
    assert produced_by_librdkafka(with_token(secured, secured.issuer.token())) == [b"of librdkafka"]


@pytest.mark.parametrize(
    "changes",
    [{"exp": 1000}, {"aud": "another"}, {"key": rsa_key("foreign")}, {"algorithm": "HS256", "key": "x" * 64}],
    ids=["expired", "another audience", "foreign", "of a shared secret"],
)
def test_librdkafka_reports_that_a_token_is_refused(secured: Secured, changes: dict[str, Any]) -> None:
    errors = refusal_of_librdkafka(with_token(secured, secured.issuer.token(**changes)))
    assert "invalid_token" in errors, errors


# ---- kafka-python


class PythonToken(PythonTokenProvider):  # type: ignore[misc] # kafka-python has no types
    """A token for kafka-python."""

    def __init__(self, token: str = "") -> None:
        super().__init__()
        self._token = token

    def token(self) -> str:
        return self._token


def of_kafka_python(secured: Secured, protocol: str, mechanism: str, user: str, password: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": secured.bootstrap(protocol),
        "security_protocol": protocol,
        "ssl_cafile": str(secured.certificates.trusted),
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize(("mechanism", "password"), [*PASSWORDS, ("OAUTHBEARER", "")])
def test_kafka_python_signs_in(secured: Secured, protocol: str, mechanism: str, password: str) -> None:
    client = of_kafka_python(secured, protocol, mechanism, USER, password)
    if mechanism == "OAUTHBEARER":
        client = {**client, "sasl_oauth_token_provider": PythonToken(secured.issuer.token())}
    producer = KafkaProducer(**client)
    try:
        offset = producer.send(TOPIC, b"of kafka-python").get(20).offset
    finally:
        producer.close()
    consumer = KafkaConsumer(TOPIC, auto_offset_reset="earliest", consumer_timeout_ms=20_000, **client)
    try:
        assert b"of kafka-python" in (record.value for record in consumer if record.offset == offset)
    finally:
        consumer.close()


@pytest.mark.slow  # it tries for 30 seconds
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves sockets open
@pytest.mark.parametrize(("user", "password"), WRONG)
def test_kafka_python_reports_a_wrong_password_and_an_unknown_user(
    secured: Secured, caplog: pytest.LogCaptureFixture, user: str, password: str
) -> None:
    with pytest.raises(PythonKafkaError):
        KafkaProducer(**of_kafka_python(secured, "SASL_SSL", "SCRAM-SHA-512", user, password))
    log = caplog.text
    caplog.clear()
    gc.collect()  # of the sockets here, not in a later test
    assert "SaslAuthenticationFailedError" in log


# ---- aiokafka


class AioToken(AbstractTokenProvider):  # type: ignore[misc] # aiokafka has no types
    """A token for aiokafka."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


def of_aiokafka(secured: Secured, protocol: str, mechanism: str, user: str, password: str) -> dict[str, Any]:
    return {
        **of_kafka_python(secured, protocol, mechanism, user, password),
        "ssl_context": secured.certificates.client_context() if protocol == "SASL_SSL" else None,
    }


def _without_file(client: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in client.items() if name != "ssl_cafile"}


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize(("mechanism", "password"), [*PASSWORDS, ("OAUTHBEARER", "")])
async def test_aiokafka_signs_in(secured: Secured, protocol: str, mechanism: str, password: str) -> None:
    client = _without_file(of_aiokafka(secured, protocol, mechanism, USER, password))
    if mechanism == "OAUTHBEARER":
        client["sasl_oauth_token_provider"] = AioToken(secured.issuer.token())
    async with AIOKafkaProducer(**client) as producer:
        sent = await producer.send_and_wait(TOPIC, b"of aiokafka", partition=0)
    consumer = AIOKafkaConsumer(**client)
    await consumer.start()
    try:
        consumer.assign([Where(TOPIC, 0)])
        consumer.seek(Where(TOPIC, 0), sent.offset)
        assert (await consumer.getone()).value == b"of aiokafka"
    finally:
        await consumer.stop()


@pytest.mark.parametrize("mechanism", [*SCRAMS, "PLAIN"])
async def test_aiokafka_reports_that_it_may_not(secured: Secured, mechanism: str) -> None:
    """Of a token that is refused it takes no notice: it asks for metadata, and gets none."""
    client = _without_file(of_aiokafka(secured, "SASL_SSL", mechanism, USER, "wrong"))
    producer = AIOKafkaProducer(**client)
    with pytest.raises(AioKafkaError):
        await producer.start()
    await producer.stop()


# ---- Java


def java_properties(secured: Secured, file: Path, mechanism: str, user: str, password: str) -> Path:
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    escaped = password.replace('"', '\\\\"')
    escaped = "".join(letter if letter.isascii() else f"\\u{ord(letter):04x}" for letter in escaped)
    file.write_text(
        "security.protocol=SASL_SSL\n"
        f"sasl.mechanism={mechanism}\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={secured.certificates.trusted}\n"
        f'sasl.jaas.config={LOGIN}.{module} required username="{user}" password="{escaped}";\n'
    )
    return file


@pytest.mark.slow
@pytest.mark.parametrize(("mechanism", "password"), PASSWORDS)
def test_the_console_tools_of_kafka_sign_in(
    secured: Secured, kafka_jars: Path, tmp_path: Path, mechanism: str, password: str
) -> None:
    properties = java_properties(secured, tmp_path / "client.properties", mechanism, USER, password)
    listed = run_tool(
        kafka_jars,
        "org.apache.kafka.tools.TopicCommand",
        "--bootstrap-server",
        secured.bootstrap("SASL_SSL"),
        "--command-config",
        str(properties),
        "--list",
    )
    assert TOPIC in listed.split()


@pytest.mark.slow
def test_the_console_tools_of_kafka_report_that_they_may_not(
    secured: Secured, kafka_jars: Path, tmp_path: Path
) -> None:
    properties = java_properties(secured, tmp_path / "client.properties", "SCRAM-SHA-512", USER, "wrong")
    with pytest.raises(
        AssertionError,
        match="Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-512",
    ):
        run_tool(
            kafka_jars,
            "org.apache.kafka.tools.TopicCommand",
            "--bootstrap-server",
            secured.bootstrap("SASL_SSL"),
            "--command-config",
            str(properties),
            "--list",
        )


@pytest.mark.slow
def test_kafka_configs_makes_describes_and_removes_users(secured: Secured, kafka_jars: Path, tmp_path: Path) -> None:
    properties = java_properties(secured, tmp_path / "client.properties", "SCRAM-SHA-512", USER, PASSWORD)

    def kafka_configs(*arguments: str) -> str:
        where = ("--bootstrap-server", secured.bootstrap("SASL_SSL"), "--command-config", str(properties))
        return run_tool(
            kafka_jars, CONFIG_COMMAND, *where, *arguments, "--entity-type", "users", "--entity-name", "bob"
        )

    for mechanism in SCRAMS:
        kafka_configs("--alter", "--add-config", f"{mechanism}=[iterations=8192,password=bobs secret]")
        client = of_librdkafka(secured, "SASL_SSL", mechanism, "bob", "bobs secret")
        assert produced_by_librdkafka(client) == [b"of librdkafka"]
    described = kafka_configs("--describe")
    assert "SCRAM-SHA-256=iterations=8192" in described and "SCRAM-SHA-512=iterations=8192" in described
    kafka_configs("--alter", "--delete-config", "SCRAM-SHA-256")
    errors = refusal_of_librdkafka(of_librdkafka(secured, "SASL_SSL", "SCRAM-SHA-256", "bob", "bobs secret"))
    assert "Authentication failed" in errors, errors
    assert "SCRAM-SHA-256" not in kafka_configs("--describe")
