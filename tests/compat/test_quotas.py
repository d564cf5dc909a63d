"""Quotas set by Kafka's own tool, from its jars, and seen by librdkafka, both unmodified."""

# mypy: disable-error-code="attr-defined, no-untyped-call, arg-type"

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer, ThrottleEvent

from tests.conftest import Broker
from tests.support.kafka_jars import CONFIG_COMMAND
from tests.support.kafka_tools import run_tool

pytestmark = [pytest.mark.external, pytest.mark.slow]
ENTITIES = {
    "a user": ("--entity-type", "users", "--entity-name", "CN=a b"),
    "all users": ("--entity-type", "users", "--entity-default"),
    "a client id": ("--entity-type", "clients", "--entity-name", "c"),
    "a client id of a user": (
        "--entity-type",
        "users",
        "--entity-name",
        "a",
        "--entity-type",
        "clients",
        "--entity-name",
        "c",
    ),
    "an address": ("--entity-type", "ips", "--entity-name", "10.0.0.1"),
}


@pytest.mark.parametrize("entity", ENTITIES.values(), ids=ENTITIES)
def test_kafka_configs_sets_shows_and_deletes_quotas(kafka_jars: Path, broker: Broker, entity: tuple[str, ...]) -> None:
    at = (CONFIG_COMMAND, "--bootstrap-server", broker.bootstrap)
    key, value = ("connection_creation_rate", "7") if "ips" in entity else ("producer_byte_rate", "1024")
    assert "Completed updating" in run_tool(kafka_jars, *at, "--alter", "--add-config", f"{key}={value}", *entity)
    assert f"{key}={value}.0" in run_tool(kafka_jars, *at, "--describe", *entity)
    run_tool(kafka_jars, *at, "--alter", "--delete-config", key, *entity)
    assert key not in run_tool(kafka_jars, *at, "--describe", *entity)


def test_librdkafka_sees_its_throttle_time(kafka_jars: Path, broker: Broker, topic: str) -> None:
    at = (CONFIG_COMMAND, "--bootstrap-server", broker.bootstrap)
    entity = ("--entity-type", "clients", "--entity-name", "throttled")
    run_tool(kafka_jars, *at, "--alter", "--add-config", "producer_byte_rate=20000", *entity)
    seen: list[ThrottleEvent] = []
    settings = {"bootstrap.servers": broker.bootstrap, "client.id": "throttled", "throttle_cb": seen.append}
    try:
        producer = Producer(settings)
        producer.produce(topic, b"x" * 220_000)  # ten windows are 200,000 bytes
        assert producer.flush(30) == 0
        producer.poll(1)
        assert seen
        assert seen[0].throttle_time == pytest.approx(1, abs=0.7)  # of 11 seconds, 10 % above the quota
    finally:
        run_tool(kafka_jars, *at, "--alter", "--delete-config", "producer_byte_rate", *entity)
