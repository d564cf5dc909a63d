"""Clients push their metrics to a broker that offers to take them (KIP-714): confluent-kafka and Java, unmodified."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from ottla.broker.client_metrics.instances import ClientInstance
from ottla.testing.kit.kafka import Kafka, kafka
from tests.support.kafka_tools import run_tool
from tests.support.processes import until
from tests.support.wire_client import Wire

pytestmark = pytest.mark.external
CLIENT_METRICS, SET = 16, 0


@pytest.fixture
def k() -> Iterator[Kafka]:
    with kafka(topics={"orders": 1}, options={"ottla.client.metrics.enable": "true"}) as running:
        yield running


def subscribe(k: Kafka, name: str, **settings: str) -> None:
    configs = [{"name": key, "config_operation": SET, "value": value} for key, value in settings.items()]
    resource = {"resource_type": CLIENT_METRICS, "resource_name": name, "configs": configs}
    with Wire(int(k.bootstrap.rpartition(":")[2])) as wire:
        answer = wire.call("incremental_alter_configs", 1, resources=[resource])
    assert [each["error_code"] for each in answer["responses"]] == [0]


def instances(k: Kafka, client_id: str) -> list[ClientInstance]:
    services: Any = k._running.brokers[1]._services
    kept = services.client_metrics
    found = [] if kept is None else list(kept._instances.values())
    return [each for each in found if each.client["client_id"] == client_id]


def names(k: Kafka, client_id: str) -> set[str]:
    return {name for each in instances(k, client_id) for name, _ in list(each.series)}


def test_a_producer_and_a_consumer_push_what_they_are_asked_for(k: Kafka) -> None:
    subscribe(k, "producers", **{"metrics": "*", "interval.ms": "200", "match": "client_id=prod.*"})
    subscribe(
        k,
        "consumers",
        **{"metrics": "org.apache.kafka.consumer.connection.", "interval.ms": "200", "match": "client_id=cons.*"},
    )
    producer = Producer({"bootstrap.servers": k.bootstrap, "client.id": "producer"})
    consumer = Consumer({"bootstrap.servers": k.bootstrap, "client.id": "consumer", "group.id": "g"})
    silent = Producer({"bootstrap.servers": k.bootstrap, "client.id": "silent", "enable.metrics.push": False})
    consumer.subscribe(["orders"])
    for client in (producer, silent):
        client.produce("orders", b"a")
        assert client.flush(20) == 0

    def have_pushed() -> bool:
        producer.poll(0)
        consumer.poll(0.01)
        return len(names(k, "producer")) > 3 and bool(names(k, "consumer"))

    until(have_pushed, what="pushes of both")
    assert all(name.startswith("org.apache.kafka.producer.") for name in names(k, "producer"))
    assert "org.apache.kafka.producer.connection.creation.total" in names(k, "producer")
    assert all(name.startswith("org.apache.kafka.consumer.connection.") for name in names(k, "consumer"))
    (pushing,) = instances(k, "producer")
    assert (
        "librdkafka" in pushing.client["client_software_name"] or "confluent" in pushing.client["client_software_name"]
    )
    assert not instances(k, "silent")
    consumer.close()


@pytest.mark.parametrize("is_offered", [True, False])
def test_a_client_pushes_where_it_is_offered_alone(is_offered: bool) -> None:
    with kafka(topics={"orders": 1}, options={"ottla.client.metrics.enable": str(is_offered).lower()}) as k:
        subscribe(k, "all", **{"metrics": "*", "interval.ms": "100"})
        producer = Producer({"bootstrap.servers": k.bootstrap, "client.id": "p"})
        producer.produce("orders", b"a")
        assert producer.flush(20) == 0
        if is_offered:
            until(lambda: bool(k.requests("PushTelemetry", client_id="p")), what="a push")
            assert all(not each.errors for each in k.requests("PushTelemetry", client_id="p"))
        else:
            assert not k.requests("GetTelemetrySubscriptions", client_id="p")


@pytest.mark.slow
def test_the_java_client_pushes_what_it_is_asked_for(k: Kafka, kafka_jars: Path) -> None:
    subscribe(k, "java", **{"metrics": "org.apache.kafka.consumer.", "interval.ms": "200", "match": "client_id=java.*"})
    arguments = ("--bootstrap-server", k.bootstrap, "--topic", "orders", "--max-messages", "1", "--from-beginning")
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(
            run_tool,
            kafka_jars,
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *arguments,
            "--consumer-property",
            "client.id=java-reader",
        )
        try:
            until(lambda: reading.done() or bool(names(k, "java-reader")), what="a push", timeout_s=60)
            pushed, (pushing,) = names(k, "java-reader"), instances(k, "java-reader")
        finally:
            producer = Producer({"bootstrap.servers": k.bootstrap})
            producer.produce("orders", b"the last")
            assert producer.flush(20) == 0
        assert "the last" in reading.result(60)
    assert all(name.startswith("org.apache.kafka.consumer.") for name in pushed)
    assert "org.apache.kafka.consumer.connection.creation.total" in pushed
    assert pushing.client["client_software_name"] == "apache-kafka-java"
    assert all(not each.errors for each in k.requests("PushTelemetry", client_id="java-reader"))
