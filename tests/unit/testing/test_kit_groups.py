"""A test of users reads what the groups of its consumers have done."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Consumer, ShareConsumer

from ottla.testing import Kafka, kafka
from ottla.testing.kit.assertions.lookups import UnknownGroup


@contextlib.contextmanager
def _consumer(k: Kafka, group: str = "g", **settings: Any) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": k.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "client.id": "reader",
            **settings,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def _read(consumer: Consumer, count: int) -> list[bytes | None]:
    messages = consumer.consume(count, timeout=10)
    assert len(messages) == count
    return [message.value() for message in messages]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_lag_is_what_a_group_has_not_committed(protocol: str) -> None:
    with kafka(topics={"orders": 2}) as k, _consumer(k, **{"group.protocol": protocol}) as consumer:
        group = k.group("g")
        k.produce_many("orders", ["a", "b", "c"])
        consumer.subscribe(["orders"])
        assert _read(consumer, 3) == [b"a", b"b", b"c"]
        assert group.lag() == 3
        consumer.commit(asynchronous=False)
        assert group.lag() == group.lag("orders") == group.lag("orders", 0) == 0
        k.produce("orders", "d")
        assert group.lags() == {("orders", 0): 0, ("orders", 1): 1}
        assert group.offsets()["orders", 0] == 3
        assert (group.type, group.state) == (protocol, "Stable")
        (member,) = group.members()
        assert (member.client_id, member.host.lstrip("/")) == ("reader", "127.0.0.1")
        assert member.assignment == (("orders", 0), ("orders", 1))
        assert k.groups() == ["g"]


@pytest.mark.parametrize("brokers", [1, 3])
def test_a_group_begins_where_a_test_has_committed(brokers: int) -> None:
    with kafka(topics={"orders": 2}, brokers=brokers) as k:
        k.produce_many("orders", ["a", "b", "c"])
        k.group("g").commit({("orders", 0): 2, ("orders", 1): 0})
        assert k.group("g").offsets() == {("orders", 0): 2, ("orders", 1): 0}
        assert (k.group("g").state, k.group("g").lag()) == ("Empty", 1)
        with _consumer(k) as consumer:
            consumer.subscribe(["orders"])
            assert _read(consumer, 1) == [b"c"]
            with pytest.raises(ValueError, match="group 'g' has members"):
                k.group("g").commit({("orders", 0): 0})
        k.group("g").commit({("orders", 0): 1})
        assert k.group("g").offsets()["orders", 0] == 1


def test_an_offset_is_committed_only_of_a_partition_that_exists() -> None:
    with kafka(topics=["orders"]) as k:
        with pytest.raises(KeyError, match="did you mean 'orders'"):
            k.group("g").commit({("order", 0): 0})
        with pytest.raises(KeyError, match="has no partition 1"):
            k.group("g").commit({("orders", 1): 0})
        assert k.groups() == []


def test_no_group_appears_by_reading() -> None:
    with kafka(topics=["orders"]) as k:
        k.produce("orders", "a")
        assert k.topic("orders").records()
        assert k.groups() == []
        assert k.transactions() == ()


def test_a_group_that_has_not_begun_has_no_lag_of_zero() -> None:
    with kafka(topics=["orders"]) as k, _consumer(k, **{"group.protocol": "consumer"}) as consumer:
        with pytest.raises(UnknownGroup, match="there is no group 'g'; there is no group at all"):
            k.group("g").lag()
        consumer.subscribe(["^missing"])

        def has_joined() -> bool:
            consumer.poll(0.05)
            return len(k.group("g").members()) == 1

        k.wait_until(has_joined)
        with pytest.raises(UnknownGroup, match="no committed offsets, and its members no topics yet"):
            k.group("g").lag()


def test_an_unknown_group_is_named_with_those_that_exist() -> None:
    with kafka(topics=["orders"]) as k, _consumer(k, "billing") as consumer:
        k.produce("orders", "a")
        consumer.subscribe(["orders"])
        _read(consumer, 1)
        consumer.commit(asynchronous=False)
        with pytest.raises(KeyError, match=r"no group 'biling': did you mean 'billing'\?"):
            k.group("biling").members()
        with pytest.raises(UnknownGroup, match="no offset of bills yet"):
            k.group("billing").lag("bills")


def test_a_group_without_members_has_the_lag_of_its_committed_offsets() -> None:
    with kafka(topics={"orders": 2}) as k:
        k.produce_many("orders", ["a", "b"])
        with _consumer(k) as consumer:
            consumer.subscribe(["orders"])
            _read(consumer, 2)
            consumer.commit(asynchronous=False)
        group = k.group("g")
        k.produce("orders", "c", partition=0)
        k.produce("orders", "d", partition=1)
        assert (group.state, group.members()) == ("Empty", ())
        assert group.lags() == {("orders", 0): 1}


def test_a_groups_offsets_are_there_after_its_coordinator_was_killed() -> None:
    with kafka(topics=["orders"], brokers=3) as k, _consumer(k) as consumer:
        k.produce("orders", "a")
        consumer.subscribe(["orders"])
        _read(consumer, 1)
        consumer.commit(asynchronous=False)
        leader = k.topic("__consumer_offsets").leader()
        assert leader is not None
        k.down(leader, killed=True)
        assert k.group("g").offsets() == {("orders", 0): 1}


def test_a_share_group_shows_what_it_has_delivered() -> None:
    with kafka(topics=["orders"]) as k:
        consumer = ShareConsumer(
            {"bootstrap.servers": k.bootstrap, "group.id": "s", "share.acknowledgement.mode": "explicit"}
        )
        group = k.group("s")
        consumer.subscribe(["orders"])

        def is_reading() -> bool:
            consumer.poll(0.1)
            return group.offsets() == {("orders", 0): 0}

        k.wait_until(is_reading)
        k.produce_many("orders", ["a", "b", "c"])
        messages: list[Any] = []
        while len(messages) < 3:
            messages += consumer.poll(1.0)
        assert (group.type, group.acquired(), group.lag()) == ("share", 3, 3)
        (delivery,) = group.deliveries()
        assert (delivery.first_offset, delivery.last_offset, delivery.state) == (0, 2, "acquired")
        assert delivery.delivery_count == 1
        assert delivery.member_id == group.members()[0].member_id
        consumer.acknowledge(messages[0], AcknowledgeType.ACCEPT)
        consumer.acknowledge(messages[1], AcknowledgeType.RELEASE)
        consumer.acknowledge(messages[2], AcknowledgeType.ACCEPT)
        consumer.commit_sync(10.0)
        assert k.wait_until(lambda: group.lag() == 1)
        assert group.offsets() == {("orders", 0): 1}
        assert group.acquired() == 0
        consumer.close()
        with pytest.raises(UnknownGroup, match="no group 't'"):
            k.group("t").deliveries()


def test_a_group_without_deliveries_says_so() -> None:
    with kafka(topics=["orders"]) as k, _consumer(k) as consumer:
        k.produce("orders", "a")
        consumer.subscribe(["orders"])
        _read(consumer, 1)
        with pytest.raises(UnknownGroup, match="'g' is no share group, but a classic group"):
            k.group("g").acquired()
