"""The brokers of the public kit start, move their time and give back all they held."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla.testing import Kafka, kafka


def _produce(k: Kafka, topic: str, count: int = 10) -> None:
    producer = Producer({"bootstrap.servers": k.bootstrap})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(10) == 0


def _watermarks(k: Kafka, topic: str) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": k.bootstrap, "group.id": "watermarks"})
    try:
        return consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
    finally:
        consumer.close()


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("brokers", [1, 3])
def test_a_client_in_another_thread_writes_and_reads(brokers: int) -> None:
    with kafka(topics={"orders": 4}, brokers=brokers) as k:
        _produce(k, "orders")
        assert _watermarks(k, "orders") == (0, 10)


async def test_an_async_test_starts_and_stops_the_same_brokers() -> None:
    async with kafka(topics=["orders"]) as k:
        assert k.bootstrap.startswith("127.0.0.1:")
    with pytest.raises(RuntimeError, match="do not run"):
        _ = k.bootstrap


def test_a_broker_that_was_killed_has_its_records_and_its_port_again() -> None:
    with kafka(topics=["orders"]) as k:
        _produce(k, "orders")
        address = k.bootstrap
        k.down(killed=True)
        assert k.bootstrap == ""
        k.up()
        assert k.bootstrap == address
        assert _watermarks(k, "orders") == (0, 10)


def test_retention_passes_when_the_time_is_moved_on() -> None:
    with kafka(topics=["orders"], options={"log.retention.ms": "1h"}) as k:
        _produce(k, "orders")
        k.advance(minutes=59)
        assert _watermarks(k, "orders") == (0, 10)
        k.advance(minutes=2)
        assert _watermarks(k, "orders") == (10, 10)


def test_the_log_of_one_kit_has_no_line_of_another() -> None:
    with kafka() as one, kafka() as other:
        assert "became controller" in one.log
        one.down()
        assert "became controller" in other.log
        assert one.log != other.log


def test_files_are_in_a_directory_that_is_given(tmp_path: Path) -> None:
    with kafka(topics=["orders"], data=tmp_path) as k:
        _produce(k, "orders")
    with kafka(data=tmp_path) as k:
        assert _watermarks(k, "orders") == (0, 10)


def test_threads_and_descriptors_are_given_back() -> None:
    with kafka(topics=["orders"]) as k:
        _produce(k, "orders")
    del k
    threads, descriptors = threading.active_count(), _descriptors()
    for _ in range(5):
        with kafka(topics=["orders"], brokers=3):
            pass
    assert threading.active_count() <= threads
    assert _descriptors() <= descriptors
