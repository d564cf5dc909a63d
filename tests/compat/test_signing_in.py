"""Ottla's client on the listeners of a real Apache Kafka: TLS, client certificates, PLAIN and SCRAM."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from ottla.client.addresses import parse_addresses
from ottla.client.admin import describe_cluster
from ottla.client.cluster import Cluster
from ottla.client.connection import Security
from ottla.client.consumer import Consumer
from ottla.client.errors import CannotConnect
from ottla.client.librdkafka_settings import NotForLibrdkafka, librdkafka_settings
from ottla.client.producer import Producer
from ottla.client.properties import client_options
from ottla.client.sasl import Sasl
from ottla.core.clock import SystemClock
from ottla.core.errors import ErrorCode, KafkaError
from ottla.core.ids import TopicPartition
from ottla.pipeline.connector.offset_client import OffsetClient
from ottla.pipeline.connector.options import source_options
from ottla.pipeline.connector.subscription import TopicSubscription
from ottla.security.key_stores import InvalidKeyStore
from tests.support.processes import NotReady
from tests.support.secured_kafka import PASSWORD, STORE_PASSWORD, USER, SecuredKafka, start_secured_kafka

pytestmark = [pytest.mark.external, pytest.mark.slow]
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.fixture(scope="module")
def secured(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    try:
        started = start_secured_kafka(kafka_jars, tmp_path_factory.mktemp("secured"))
    except NotReady as error:
        pytest.fail(str(error))
    yield started
    started.kafka.stop()


def ways(secured: SecuredKafka) -> dict[str, tuple[str, dict[str, str]]]:
    """Every way in that must work: the listener, and the settings of the client."""
    papers = secured.papers
    trust = {"ssl.truststore.location": str(papers.ca)}
    plain = {"sasl.mechanism": "PLAIN", "sasl.username": USER, "sasl.password": PASSWORD}
    jaas = f'{SCRAM} required username="{USER}" password="scram-512";'
    return {
        "TLS, PEM file": ("SSL", {"security.protocol": "SSL", **trust}),
        "TLS, PEM text": (
            "SSL",
            {
                "security.protocol": "SSL",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.certificates": papers.ca.read_text(),
            },
        ),
        "TLS 1.2": ("SSL", {"security.protocol": "SSL", **trust, "ssl.enabled.protocols": "TLSv1.2"}),
        "client certificate, PEM files": (
            "MTLS",
            {
                "security.protocol": "SSL",
                **trust,
                "ssl.certificate.location": str(papers.client_chain),
                "ssl.key.location": str(papers.client_key),
            },
        ),
        "client certificate, PEM text": (
            "MTLS",
            {
                "security.protocol": "SSL",
                **trust,
                "ssl.keystore.certificate.chain": papers.client_chain.read_text(),
                "ssl.keystore.key": papers.client_key.read_text(),
            },
        ),
        "client certificate, PKCS#12": (
            "MTLS",
            {
                "security.protocol": "SSL",
                **trust,
                "ssl.keystore.type": "PKCS12",
                "ssl.keystore.location": str(papers.client_p12),
                "ssl.keystore.password": STORE_PASSWORD,
            },
        ),
        "PLAIN over TLS": ("SASL_SSL", {"security.protocol": "SASL_SSL", **trust, **plain}),
        "PLAIN in the clear": ("SASL_PLAINTEXT", {"security.protocol": "SASL_PLAINTEXT", **plain}),
        "SCRAM-SHA-256 over TLS": (
            "SASL_SSL",
            {
                "security.protocol": "SASL_SSL",
                **trust,
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": USER,
                "sasl.password": "scram-256",
            },
        ),
        "SCRAM-SHA-512 by JAAS": (
            "SASL_SSL",
            {"security.protocol": "SASL_SSL", **trust, "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": jaas},
        ),
    }


async def write_and_read(bootstrap: str, properties: Mapping[str, str]) -> list[bytes | None]:
    topic = f"signed-{uuid.uuid4().hex[:8]}"
    options = client_options(properties)
    async with await Cluster.connect(parse_addresses(bootstrap), options=options) as cluster:
        async with Producer(cluster, clock=SystemClock()) as producer:
            sent = [await producer.send(topic, value=b"%d" % n * 50_000, partition=0) for n in range(3)]
            await asyncio.gather(*sent)
        place = TopicPartition(topic, 0)
        async with Consumer(cluster, {place: 0}, end={place: 3}) as consumer:
            return [record.value async for _, records in consumer.chunks() for record in records]


def test_records_are_written_and_read_on_each_listener(secured: SecuredKafka) -> None:
    for way, (listener, properties) in ways(secured).items():
        read = asyncio.run(write_and_read(secured.bootstrap(listener), properties))
        assert read == [b"%d" % n * 50_000 for n in range(3)], way


def refused(secured: SecuredKafka, listener: str, properties: Mapping[str, str]) -> str:
    async def ask() -> None:
        options = client_options(properties)
        async with await Cluster.connect(parse_addresses(secured.bootstrap(listener)), options=options) as cluster:
            await describe_cluster(cluster)

    with pytest.raises((KafkaError, CannotConnect, InvalidKeyStore)) as raised:
        asyncio.run(ask())
    if isinstance(raised.value, KafkaError):
        return f"{raised.value.code.name}: {raised.value}"
    return str(raised.value)


def test_a_failed_authentication_reports_its_reason(secured: SecuredKafka) -> None:
    tls = {"security.protocol": "SASL_SSL", "ssl.truststore.location": str(secured.papers.ca)}
    wrong = {"sasl.username": USER, "sasl.password": "wrong"}
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        error = refused(secured, "SASL_SSL", {**tls, "sasl.mechanism": mechanism, **wrong})
        assert error.startswith(
            f"{ErrorCode.SASL_AUTHENTICATION_FAILED.name}: authenticating as {USER} with {mechanism}"
        )


def test_a_certificate_that_is_not_trusted_is_refused_by_the_client(secured: SecuredKafka) -> None:
    other = {"security.protocol": "SSL", "ssl.truststore.location": str(secured.papers.other_ca)}
    assert "its certificate is not trusted" in refused(secured, "SSL", other)
    assert "ssl.truststore.location" in refused(secured, "SSL", {"security.protocol": "SSL"})


def test_a_name_that_the_certificate_does_not_carry_is_refused_unless_names_are_not_checked(
    secured: SecuredKafka,
) -> None:
    async def ask(properties: Mapping[str, str]) -> int:
        addresses = parse_addresses(f"127.0.0.1:{secured.ports['SSL']}")
        async with await Cluster.connect(addresses, options=client_options(properties)) as cluster:
            return len((await describe_cluster(cluster)).nodes)

    tls = {"security.protocol": "SSL", "ssl.truststore.location": str(secured.papers.ca)}
    with pytest.raises(CannotConnect, match=r"ssl\.endpoint\.identification\.algorithm"):
        asyncio.run(ask(tls))
    assert asyncio.run(ask({**tls, "ssl.endpoint.identification.algorithm": ""})) == 1


def test_a_wrong_protocol_of_a_listener_is_named(secured: SecuredKafka) -> None:
    tls = {"security.protocol": "SSL", "ssl.truststore.location": str(secured.papers.ca)}
    assert "check security.protocol" in refused(secured, "SASL_PLAINTEXT", tls)
    assert "cannot connect" in refused(secured, "SSL", {})
    assert "cannot connect" in refused(secured, "MTLS", tls)


def test_a_store_that_cannot_be_used_says_what_to_do(secured: SecuredKafka, tmp_path: Path) -> None:
    jks, nonsense = tmp_path / "store.jks", tmp_path / "store.bin"
    jks.write_bytes(b"\xfe\xed\xfe\xed\x00\x00\x00\x02")
    nonsense.write_bytes(b"hello")
    wrong_password = {"ssl.keystore.location": str(secured.papers.client_p12), "ssl.keystore.password": "x"}
    tls = {"security.protocol": "SSL"}
    assert "keytool -importkeystore" in refused(secured, "SSL", {**tls, "ssl.truststore.location": str(jks)})
    assert "neither PEM nor PKCS#12" in refused(secured, "SSL", {**tls, "ssl.truststore.location": str(nonsense)})
    assert "cannot be read" in refused(secured, "SSL", {**tls, "ssl.truststore.location": str(tmp_path / "none")})
    assert "cannot be opened" in refused(secured, "SSL", {**tls, **wrong_password})
    key = {"ssl.keystore.location": str(secured.papers.client_chain)}
    assert "does not contain a certificate with its key" in refused(secured, "SSL", {**tls, **key})


def ottla(arguments: list[str], **environment: str) -> tuple[int, str]:
    program = str(Path(sys.executable).with_name("ottla"))
    done = subprocess.run(
        [program, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


def test_the_command_line_signs_in_by_options_or_by_the_environment(secured: SecuredKafka) -> None:
    listener, properties = ways(secured)["SCRAM-SHA-256 over TLS"]
    lines = [f"{name}={value}" for name, value in properties.items()]
    asked = ["cluster", "brokers", "--brokers", secured.bootstrap(listener)]
    by_options = [part for line in lines for part in ("-X", line)]
    assert ottla([*by_options, *asked])[0] == 0
    assert ottla(asked, OTTLA_CLIENT_SETTINGS="\n".join(lines))[0] == 0
    code, output = ottla([*by_options, "-X", "sasl.password=wrong", *asked])
    assert (code, "authenticating as alice" in output) == (1, True), output
    code, output = ottla(["-X", "security.protocol=TLS", *asked])
    assert (code, "-X security.protocol: 'TLS' is not one of" in output) == (2, True), output
    code, output = ottla(["-X", "security.protocol", *asked])
    assert (code, "write name=value" in output) == (2, True), output


def test_a_profile_signs_in_wherever_it_is_named(secured: SecuredKafka, tmp_path: Path) -> None:
    """Commands, both clients of `ottla bench`, mirrors and `format("ottla")`, with the password from a command."""
    listener, properties = ways(secured)["SCRAM-SHA-256 over TLS"]
    profiles = {"OTTLA_PROFILES": str(tmp_path / "profiles.toml")}
    kept = {name: value for name, value in properties.items() if name != "sasl.password"}
    settings = [part for name, value in kept.items() for part in ("-s", f"{name}={value}")]
    command = ["--password-command", f"echo {properties['sasl.password']}"]
    at = secured.bootstrap(listener)
    assert ottla(["profile", "set", "secured", at, *settings, *command], **profiles)[0] == 0
    assert ottla(["cluster", "brokers", "--profile", "secured"], **profiles)[0] == 0
    bench = ["bench", "--profile", "secured", "-n", "100", "--requests", "2"]
    for client in ("own", "confluent"):
        code, output = ottla([*bench, "--client", client], **profiles)
        assert code == 0, output
    assert ottla(["topic", "create", "mirrored", "--profile", "secured"], **profiles)[0] == 0
    ends = ["--from-profile", "secured", "--to-profile", "secured", "--rename", "copy.{topic}"]
    code, output = ottla(["mirror", "run", "mirrored", *ends, "--once", "--no-groups"], **profiles)
    assert code == 0, output
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("OTTLA_PROFILES", profiles["OTTLA_PROFILES"])
        options = source_options({"profile": "secured", "subscribe": "mirrored"}, streaming=False)
    with contextlib.closing(OffsetClient(options.read_options)) as offset_client:
        assert "mirrored" in offset_client.topics(TopicSubscription(topics=("mirrored",))).ids


def test_confluent_kafka_gets_every_kind_of_store(secured: SecuredKafka) -> None:
    for way, (listener, properties) in ways(secured).items():
        if "ssl.enabled.protocols" in properties:
            continue
        found = librdkafka_settings(client_options(properties).security)
        admin = AdminClient({"bootstrap.servers": secured.bootstrap(listener), **found})
        assert admin.list_topics(timeout=20).brokers, way
    with pytest.raises(NotForLibrdkafka):
        librdkafka_settings(client_options(ways(secured)["TLS 1.2"][1]).security)
    for sasl in (Sasl("SCRAM-SHA-256", "id", "hmac", is_token=True), Sasl("OAUTHBEARER", token_file="token")):
        with pytest.raises(NotForLibrdkafka):
            librdkafka_settings(Security(sasl=sasl))


async def test_a_session_that_may_not_live_long_is_followed_by_another(secured: SecuredKafka) -> None:
    """KIP-368: the broker says how long a session lives; the connection is replaced before the broker cuts it."""
    listener, properties = ways(secured)["SCRAM-SHA-256 over TLS"]
    addresses = parse_addresses(secured.bootstrap(listener))
    async with await Cluster.connect(addresses, options=client_options(properties)) as cluster:
        first = await cluster.connection(1)
        assert first._usable_until is not None
        assert await cluster.connection(1) is first
        first._usable_until = asyncio.get_running_loop().time()
        second = await cluster.connection(1)
        assert second is not first
        assert (await describe_cluster(cluster)).nodes
