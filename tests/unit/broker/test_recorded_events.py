"""Events are made where things happen: in groups of both protocols, in elections, at limits and slow requests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ottla.testing import Kafka, kafka
from tests.support.kit_clients import consumer, produce


def _events(k: Kafka, *kinds: str) -> list[dict[str, Any]]:
    async def read(cluster: Any) -> list[str]:
        return [broker.services.events.json(kinds=kinds) for broker in cluster.brokers.values()]

    return [event for text in k._call(read) for event in json.loads(text)["events"]]


def _is_produce(event: dict[str, Any]) -> bool:
    return str(event["cause"]).startswith("Produce")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_rebalance_says_which_member_joined_and_which_left(protocol: str) -> None:
    with kafka(topics={"orders": 2}) as k:
        produce(k, "orders")
        with consumer(k, "orders", config={"group.protocol": protocol}) as first:
            k.wait_until(lambda: first.poll(0.1) and first.assignment())
        k.wait_until(lambda: len(_events(k, "rebalance")) >= 2)
        causes = [event["cause"] for event in _events(k, "rebalance")]
        assert causes[0].startswith("consumer (127.0.0.1) joined")
        assert causes[-1].startswith("consumer (127.0.0.1) left")
        assert {event["group"] for event in _events(k, "rebalance")} == {"readers"}


def test_a_member_whose_session_ends_is_named() -> None:
    with kafka(topics={"orders": 2}) as k:
        produce(k, "orders")
        with consumer(k, "orders") as first:
            k.wait_until(lambda: first.poll(0.1) and first.assignment())
            k.expire("readers")
            k.wait_until(lambda: any("session.timeout.ms" in event["cause"] for event in _events(k, "rebalance")))


def test_a_broker_that_ends_is_the_cause_of_elections_and_changes_of_the_isr() -> None:
    with kafka(brokers=3) as k:
        k.create_topic("orders", 3)
        k.down(3, killed=True)
        elections = _events(k, "election")
        assert {event["cause"].partition(": ")[2].partition(" is")[0] for event in elections} == {"broker 3"}
        assert {event["numbers"]["before"] for event in elections} == {3}
        assert all("in sync now" in event["cause"] for event in _events(k, "isr-change"))


def test_nothing_is_recorded_of_what_goes_well() -> None:
    with kafka(topics=["orders"]) as k:
        produce(k, "orders", 20)
        assert {event["kind"] for event in _events(k)} <= {"controller"}


def test_a_slow_request_is_an_event_and_a_line_with_the_same_id() -> None:
    with kafka(topics=["orders"], options={"ottla.slow.request.ms": "0"}) as k:
        produce(k, "orders", config={"client.id": "billing"})
        event = k.wait_until(lambda: next(filter(_is_produce, _events(k, "slow-request")), None))
        assert event is not None
        assert event["client"] == "billing"
        assert f"slow request {event['request']}: Produce" in k.log
