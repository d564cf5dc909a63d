"""Transactional producers of librdkafka and aiokafka, unmodified; Java's is in test_java_tools.py."""

# mypy: disable-error-code="attr-defined, no-untyped-call, arg-type"
# confluent-kafka ships types for its core only.

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conftest import Broker
from tests.support.processes import until
from tests.support.wire_client import Wire

PATIENCE_S = 30
pytestmark = pytest.mark.external


@pytest.fixture
def created(broker: Broker, topic: str) -> str:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(PATIENCE_S)
    return topic


def producer_of(broker: Broker, name: str, **more: object) -> Producer:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name, **more})
    producer.init_transactions(PATIENCE_S)
    return producer


def stable_end(broker: Broker, topic: str) -> int:
    """Where readers of committed records stop in partition 0."""
    asked = [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
    with Wire(broker.port) as wire:
        answer = wire.call("list_offsets", 5, replica_id=-1, isolation_level=1, topics=asked)
    return int(answer["topics"][0]["partitions"][0]["offset"])


def committed(broker: Broker, topic: str, count: int) -> list[bytes]:
    """Read so many committed records from the beginning, and see that no more follow."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": f"reader-{topic}-{time.monotonic_ns()}",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.subscribe([topic])
    found: list[bytes] = []
    ends: set[int] = set()
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and len(ends) < 2:
        message = consumer.poll(0.2)
        if message is None:
            continue
        error = message.error()
        if error is None:
            found.append(message.value())
            ends.discard(message.partition())
        elif error.code() == KafkaError._PARTITION_EOF:
            ends.add(message.partition())
    consumer.close()
    assert len(found) == count
    return sorted(found)


def test_committed_records_are_read_and_aborted_ones_are_not(broker: Broker, created: str) -> None:
    producer = producer_of(broker, created)
    for number in range(6):
        producer.begin_transaction()
        for index in range(10):
            producer.produce(created, f"{number}-{index}".encode(), partition=index % 2)
        if number % 2:
            producer.flush(PATIENCE_S)
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
    assert committed(broker, created, 30) == sorted(
        f"{number}-{index}".encode() for number in (0, 2, 4) for index in range(10)
    )


def test_a_new_producer_fences_the_one_before_and_aborts_its_transaction(broker: Broker, created: str) -> None:
    old = producer_of(broker, created)
    old.begin_transaction()
    old.produce(created, b"of the old one")
    old.flush(PATIENCE_S)
    new = producer_of(broker, created)
    new.begin_transaction()
    new.produce(created, b"of the new one")
    new.commit_transaction(PATIENCE_S)
    with pytest.raises(KafkaException) as fenced:
        old.commit_transaction(PATIENCE_S)
    assert fenced.value.args[0].code() == KafkaError._FENCED
    assert committed(broker, created, 1) == [b"of the new one"]


async def test_aiokafka_commits_and_aborts(broker: Broker, created: str, fresh: Callable[[str], str]) -> None:
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=fresh("aiokafka"))
    await producer.start()
    try:
        for number in range(4):
            await producer.begin_transaction()
            await producer.send_and_wait(created, str(number).encode(), partition=0)
            await (producer.abort_transaction() if number % 2 else producer.commit_transaction())
    finally:
        await producer.stop()
    assert committed(broker, created, 2) == [b"0", b"2"]


def test_a_transaction_that_times_out_is_aborted_and_its_producer_fenced(broker: Broker, created: str) -> None:
    slow = producer_of(broker, created, **{"transaction.timeout.ms": 1_000})
    slow.begin_transaction()
    slow.produce(created, b"of the slow one", partition=0)
    slow.flush(PATIENCE_S)
    other = producer_of(broker, f"{created}-other")
    other.begin_transaction()
    other.produce(created, b"of the other one", partition=0)
    other.commit_transaction(PATIENCE_S)
    # A reader waits until the coordinator has aborted the slow transaction, which it does within 11 seconds.
    until(lambda: stable_end(broker, created) == 4, what="the abort")
    assert committed(broker, created, 1) == [b"of the other one"]
    with pytest.raises(KafkaException):
        slow.commit_transaction(PATIENCE_S)
