"""Produces and consumes with librdkafka, for tests of the public kit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer

from ottla.core.clock import SystemClock
from ottla.testing import Kafka

Config = Mapping[str, str | int | bool]

_DEADLINE_S = 20


def produce(
    k: Kafka, topic: str, count: int = 5, *, partitions: tuple[int, ...] = (0,), config: Config | None = None
) -> list[tuple[int, int | str]]:
    """Produce numbers to some partitions in turn; returns each one's partition, and its offset or its error's name."""
    producer = Producer(
        {
            "bootstrap.servers": k.bootstrap,
            "client.id": "producer",
            "linger.ms": 5,
            "retry.backoff.ms": 5,
            **(config or {}),
        }
    )
    delivered: list[tuple[int, int | str]] = []

    def report(error: KafkaError | None, message: Any) -> None:
        delivered.append((message.partition(), message.offset() if error is None else error.name()))

    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=partitions[number % len(partitions)], on_delivery=report)
    assert producer.flush(_DEADLINE_S) == 0
    return sorted(delivered, key=lambda each: (each[0], str(each[1])))


@contextmanager
def consumer(k: Kafka, *topics: str, group: str = "readers", config: Config | None = None) -> Iterator[Consumer]:
    """Subscribe a consumer, and close it."""
    opened = Consumer(
        {
            "bootstrap.servers": k.bootstrap,
            "client.id": "consumer",
            "group.id": group,
            "auto.offset.reset": "earliest",
            "retry.backoff.ms": 5,
            "fetch.error.backoff.ms": 5,
            **(config or {}),
        }
    )
    opened.subscribe(list(topics))
    try:
        yield opened
    finally:
        opened.close()


def poll(opened: Consumer, count: int) -> list[bytes | str | None]:
    """Return the values of the next records, or the names of errors in their places."""
    polled: list[bytes | str | None] = []
    clock = SystemClock()
    until = clock.monotonic() + _DEADLINE_S
    while len(polled) < count and clock.monotonic() < until:
        message = opened.poll(0.1)
        if message is not None:
            error = message.error()
            polled.append(message.value() if error is None else error.name())
    return polled


def consume(k: Kafka, topic: str, count: int) -> list[bytes | str | None]:
    """Return the first values of a topic, or the names of errors in their places."""
    with consumer(k, topic, config={"enable.auto.commit": False}) as opened:
        return poll(opened, count)
