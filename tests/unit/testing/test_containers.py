"""What projects do with testcontainers' class for Kafka works with a broker in this process, or is refused by name."""

from __future__ import annotations

import inspect
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from ottla.testing.containers import KafkaContainer, NotInAProcess, RedpandaContainer, options_of

OF_TESTCONTAINERS = frozenset(
    {
        "copy_from_container",
        "copy_into_container",
        "create_file",
        "exec",
        "get_bootstrap_server",
        "get_container_host_ip",
        "get_container_id",
        "get_container_info",
        "get_docker_client",
        "get_exposed_port",
        "get_logs",
        "get_wrapped_container",
        "maybe_emulate_amd64",
        "reload",
        "start",
        "status",
        "stop",
        "wait",
        "waiting_for",
        "with_bind_ports",
        "with_cluster_id",
        "with_command",
        "with_copy_into_container",
        "with_env",
        "with_env_file",
        "with_envs",
        "with_exposed_ports",
        "with_kraft",
        "with_kwargs",
        "with_name",
        "with_network",
        "with_network_aliases",
        "with_tmpfs_mount",
        "with_volume_mapping",
    }
)
"""The public methods of the class in testcontainers 4.15."""


@pytest.mark.parametrize(
    "make",
    [
        KafkaContainer,
        lambda: KafkaContainer().with_kraft(),
        lambda: KafkaContainer(port=9888),
        lambda: KafkaContainer("apache/kafka:4.0.0").with_name("kafka").waiting_for(None).maybe_emulate_amd64(),
        lambda: RedpandaContainer(image="docker.redpanda.com/redpandadata/redpanda:v25.3.6"),
    ],
)
def test_records_are_produced_and_their_offsets_found(make: Callable[[], KafkaContainer]) -> None:
    with make() as container:
        producer = KafkaProducer(bootstrap_servers=[container.get_bootstrap_server()])
        producer.send("test-topic", b"message")
        producer.flush()
        producer.close()
        partition = TopicPartition("test-topic", 0)
        consumer = KafkaConsumer(bootstrap_servers=[container.get_bootstrap_server()])
        consumer.assign([partition])
        assert consumer.end_offsets([partition])[partition] == 1
        consumer.close()


def test_the_port_of_the_container_has_the_address_that_clients_use() -> None:
    with KafkaContainer(port=9888) as container:
        address = f"{container.get_container_host_ip()}:{container.get_exposed_port(9888)}"
        assert address == container.get_bootstrap_server() == container.kafka.bootstrap
        assert container.get_exposed_port("9888") == container.get_exposed_port(9888)  # type: ignore[arg-type]
        with pytest.raises(NotInAProcess, match="the broker has no port 9093"):
            container.get_exposed_port(9093)


def test_it_starts_and_stops_once_and_has_a_log() -> None:
    container = KafkaContainer()
    assert container.status == "not_started"
    with pytest.raises(RuntimeError, match="does not run"):
        container.get_bootstrap_server()
    assert container.start(timeout=10) is container.start()
    container.reload()
    assert container.status == "running"
    log, errors = container.get_logs()
    assert b"became controller" in log
    assert errors == b""
    container.stop()
    container.stop(force=True, delete_volume=True)
    assert container.status == "exited"


def test_variables_are_settings_of_the_broker(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("# settings\nKAFKA_NUM_PARTITIONS=7\nexport KAFKA_LOG_SEGMENT_BYTES='1048576'\n")
    container = KafkaContainer(env={"KAFKA_MESSAGE_MAX_BYTES": "2000000"}).with_env("KAFKA_LOG_RETENTION_MS", "60000")
    container.with_envs(KAFKA_AUTO_CREATE_TOPICS_ENABLE="false").with_env_file(tmp_path / ".env")
    with container:
        admin = AdminClient({"bootstrap.servers": container.get_bootstrap_server()})
        (found,) = admin.describe_configs([ConfigResource(ConfigResource.Type.BROKER, "1")]).values()
        settings = {name: entry.value for name, entry in found.result(10).items()}
    expected = {"log.retention.ms": "60000", "num.partitions": "7", "log.segment.bytes": "1048576"}
    expected |= {"message.max.bytes": "2000000", "auto.create.topics.enable": "false"}
    assert {name: settings[name] for name in expected} == expected


def test_what_an_image_needs_to_be_reached_has_no_effect() -> None:
    variables = {
        "KAFKA_LISTENERS": "PLAINTEXT://0.0.0.0:9093,BROKER://0.0.0.0:9092",
        "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://localhost:9093",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "KAFKA_INTER_BROKER_LISTENER_NAME": "BROKER",
        "KAFKA_BROKER_ID": "1",
        "KAFKA_NODE_ID": "1",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9094",
        "KAFKA_ZOOKEEPER_CONNECT": "zookeeper:2181",
        "KAFKA_LOG_DIRS": "/var/lib/kafka",
        "CLUSTER_ID": "MkU3OEVBNTcwNTJENDM2Qk",
        "KAFKA_HEAP_OPTS": "-Xmx1g",
        "KAFKA_CONFLUENT_SUPPORT_METRICS_ENABLE": "false",
        "KAFKA_NUM_NETWORK_THREADS": "3",
        "TZ": "UTC",
    }
    assert options_of(variables) == {}


def test_all_variables_that_cannot_be_followed_are_named() -> None:
    variables = {
        "KAFKA_LOG_RETENTION_MSS": "1",
        "KAFKA_SSL_KEYSTORE_PASSWORD": "secret",
        "KAFKA_SSL_ENGINE_FACTORY_CLASS": "org.example.Engines",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "A:SASL_SSL,B:PLAINTEXT",
    }
    with pytest.raises(ValueError, match="KAFKA_") as failure:
        KafkaContainer(env=variables).start()
    problems = str(failure.value)
    assert "KAFKA_LOG_RETENTION_MSS: there is no such setting; did you mean log.retention.ms?" in problems
    assert "KAFKA_SSL_ENGINE_FACTORY_CLASS: it names a part of Java's TLS" in problems
    assert "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP: a broker in a test has PLAINTEXT alone, not SASL_SSL" in problems
    assert "secret" not in problems


@pytest.mark.parametrize(
    ("use", "reason"),
    [
        (lambda container: container.with_network("net"), "cannot be reached from a network of containers"),
        (lambda container: container.with_network_aliases("kafka"), "has no name in a network of containers"),
        (lambda container: container.with_cluster_id("MkU3OEVBNTcwNTJENDM2Qk"), "chooses its own id"),
        (lambda container: container.with_volume_mapping("/a", "/b"), "in this process's memory"),
        (lambda container: container.exec("kafka-topics --list"), "KafkaContainer.exec: the broker is no process"),
        (lambda container: container.get_wrapped_container(), "there is no container"),
        (lambda _: KafkaContainer(network="net"), "network='net': the broker runs in this process"),
        (lambda _: KafkaContainer(security_protocol="SSL"), "PLAINTEXT alone"),
        (lambda _: RedpandaContainer().get_schema_registry_address(), "no schema registry"),
    ],
)
def test_what_needs_a_container_is_refused(use: Callable[[Any], object], reason: str) -> None:
    with pytest.raises(NotInAProcess, match=reason):
        use(KafkaContainer())


def test_every_public_method_of_testcontainers_is_there_or_refused() -> None:
    own = {name for name, _ in inspect.getmembers(KafkaContainer)}
    container = KafkaContainer()
    for name in OF_TESTCONTAINERS - own:
        with pytest.raises(NotInAProcess, match=name):
            getattr(container, name)
    with pytest.raises(AttributeError, match="with_everything"):
        container.with_everything()


def test_records_of_long_ago_stay_until_the_next_check_which_comes_when_the_time_is_moved() -> None:
    with KafkaContainer() as container:
        container.kafka.create_topic("old")
        container.kafka.produce("old", "record", timestamp_ms=1)
        assert len(container.kafka.topic("old").records()) == 1
        container.kafka.advance(seconds=5)
        assert len(container.kafka.topic("old").records()) == 0


def test_a_port_can_be_chosen() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with KafkaContainer().with_bind_ports(9093, port) as container:
        assert container.get_exposed_port(9093) == port
        assert container.get_bootstrap_server() == f"127.0.0.1:{port}"


def test_a_port_that_the_system_chooses_is_accepted() -> None:
    with KafkaContainer().with_bind_ports(9093).with_exposed_ports(9093) as container:
        assert Producer({"bootstrap.servers": container.get_bootstrap_server()}).list_topics(timeout=10).brokers
