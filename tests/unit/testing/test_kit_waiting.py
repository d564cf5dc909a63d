"""A wait of the kit ends when its condition is true, or fails with what was there instead."""

from __future__ import annotations

import asyncio
import threading

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer

from ottla.testing import Kafka, kafka


def _failure(k: Kafka, condition: object, message: str = "") -> str:
    with pytest.raises(AssertionError) as caught:
        k.wait_until(condition, timeout=0, message=message)  # type: ignore[arg-type]
    return str(caught.value)


def test_a_wait_returns_the_value_of_its_condition() -> None:
    with kafka(topics=["orders"]) as k:
        threading.Timer(0.05, lambda: k.produce("orders", "a")).start()
        (record,) = k.wait_until(lambda: k.topic("orders").records())
        assert record.value == b"a"


def test_a_failed_wait_shows_the_group_its_members_and_the_end_of_its_topics() -> None:
    with kafka(topics=["orders"]) as k:
        k.produce_many("orders", ["a", "b"])
        consumer = Consumer(
            {"bootstrap.servers": k.bootstrap, "group.id": "g", "auto.offset.reset": "earliest", "client.id": "reader"}
        )
        consumer.subscribe(["orders"])
        message = consumer.poll(10)
        assert message is not None
        consumer.commit(message=message, asynchronous=False)
        text = _failure(k, lambda: k.group("g").lag() == 0, "everything is billed")
        consumer.close()
    lines = text.splitlines()
    assert lines[0] == "everything is billed (after 0 s; at last it returned False)"
    assert lines[1] == "  k.group('g').lag() was 1"
    assert lines[2] == "  group 'g': classic, Stable, members: 1"
    assert lines[3].startswith("    member reader-")
    assert lines[3].endswith("(reader at /127.0.0.1): orders-0")
    assert lines[4:] == [
        "    orders-0: committed 1, end 2, lag 1",
        "  topic 'orders':",
        "    partition 0: records from 0 to 2",
    ]


def test_what_does_not_exist_yet_is_waited_for() -> None:
    with kafka() as k:
        threading.Timer(0.05, lambda: k.create_topic("orders")).start()
        assert k.wait_until(lambda: k.topic("orders").offsets()[0].end == 0)
        assert "there is no topic 'bills'" in _failure(k, lambda: k.topic("bills").records())


def test_an_assertion_that_fails_is_waited_for_and_shown() -> None:
    with kafka(topics=["orders"]) as k:

        def is_paid() -> bool:
            assert k.topic("orders").records().values() == [b"paid"]
            return True

        text = _failure(k, is_paid)
        assert "it raised AssertionError" in text
        assert "k.topic('orders').records() was Records(0: [])" in text
        k.produce("orders", "paid")
        k.wait_until(is_paid)


def test_an_error_of_the_condition_ends_the_wait() -> None:
    with kafka() as k, pytest.raises(ZeroDivisionError):
        k.wait_until(lambda: 1 / 0, timeout=60)


def test_a_failure_shows_the_last_evaluation_alone_and_shortens_what_is_long() -> None:
    with kafka(topics=["orders"]) as k:
        k.produce_many("orders", ["x" * 50] * 100)
        text = _failure(k, lambda: k.topic("orders").records() == ())
        assert text.count("k.topic('orders').records() was") == 1
        assert "characters)" in text
        assert len(text) < 2000


def test_a_failure_with_all_brokers_down_shows_the_calls() -> None:
    with kafka(topics=["orders"]) as k:
        k.wait_until(lambda: k.topics() == ["orders"])
        text = _failure(k, lambda: k.topics() == [])
        assert "k.topics() was ['orders']" in text


def test_calls_outside_of_a_wait_are_not_noted() -> None:
    with kafka(topics=["orders"]) as k:
        k.topics()
        assert "k.topics()" not in _failure(k, lambda: False)


async def test_a_wait_of_an_async_test_leaves_its_loop_to_its_clients() -> None:
    async with kafka(topics=["orders"]) as k:
        consumer = AIOKafkaConsumer(
            "orders",
            bootstrap_servers=k.bootstrap,
            group_id="g",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        k.produce("orders", "a")

        async def consume() -> None:
            await consumer.getone()
            await consumer.commit()

        consuming = asyncio.get_running_loop().create_task(consume())
        assert await k.wait_until_async(lambda: k.group("g").offsets() == {("orders", 0): 1})
        await consuming

        async def has_no_lag() -> bool:
            return k.group("g").lag() == 0

        assert await k.wait_until_async(has_no_lag)
        await consumer.stop()
        with pytest.raises(AssertionError, match=r"(?s)it returned False.*k.group\('g'\).lag\(\) was 0"):
            await k.wait_until_async(lambda: k.group("g").lag() > 0, timeout=0)
