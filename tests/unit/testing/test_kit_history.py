"""A test can see how its client behaves: which requests it sent, and what it was answered."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from ottla.testing import kafka
from ottla.testing.kit.faults import history
from tests.support.kit_clients import consume, produce


def test_acks_and_idempotence_of_a_producer_can_be_asserted() -> None:
    with kafka(topics=["orders"]) as k:
        produce(k, "orders", 1, config={"enable.idempotence": True, "client.id": "careful"})
        (init,) = k.requests("InitProducerId", client_id="careful")
        assert init.body.transactional_id is None
        (sent,) = k.requests("Produce", client_id="careful")
        assert (sent.api, sent.broker, sent.body.acks) == ("Produce", 1, -1)
        assert sent.body.topic_data[0].name == "orders"
        assert sent.response is not None
        assert sent.response.responses[0].partition_responses[0].base_offset == 0
        assert sent.errors == () and sent.faults == []
        assert sent.duration_ms is not None and 0 < sent.duration_ms < 60_000
        assert k.requests(client_id="careful")[0].api == "ApiVersions", "in the order in which they came"
        assert k.requests(client_id="another") == []


def test_the_responses_of_a_consumer_can_be_read() -> None:
    with kafka(topics=["orders"]) as k:
        produce(k, "orders")
        assert len(consume(k, "orders", 5)) == 5
        fetched = [request for request in k.requests("Fetch") if request.is_answered]
        assert all(request.body.topics[0].partitions for request in fetched), "each names its partitions"
        responses = [request.response for request in fetched if request.response is not None]
        partitions = [response.responses[0].partitions[0] for response in responses if response.responses]
        assert max(len(partition.records or b"") for partition in partitions) > 0
        assert {partition.high_watermark for partition in partitions} == {5}


def test_a_request_without_a_response_is_complete_and_one_that_waits_is_not() -> None:
    with kafka(topics=["orders"]) as k:
        produce(k, "orders", 1, config={"acks": 0})
        while not k.requests("Produce"):
            pass
        (careless,) = k.requests("Produce")
        assert careless.is_answered and careless.response is None and careless.errors == ()
        with k.drop("Produce") as fault:
            producer = Producer({"bootstrap.servers": k.bootstrap, "client.id": "waits"})
            producer.produce("orders", b"1")
            fault.wait()
            (waiting,) = k.requests("Produce", client_id="waits")
            assert not waiting.is_answered and waiting.duration_ms is None
            assert repr(waiting) == f"Produce v{waiting.version} of 'waits' to broker 1: not answered"
            producer.purge()


def test_the_time_of_a_request_is_the_brokers() -> None:
    with kafka(topics=["orders"]) as k:
        produce(k, "orders", 1)
        k.advance(days=1)
        produce(k, "orders", 1)
        first, second = k.requests("Produce")
        assert second.time_ms - first.time_ms >= 24 * 3_600_000


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "REQUESTS_MAX", 5)
    with kafka(topics=["orders"]) as k:
        produce(k, "orders", 3)
        k.cut()
        produce(k, "orders", 1)
        assert len(k.requests()) == 5
        assert k.requests_dropped > 0
        assert k.requests()[-1].api == "Produce"
    monkeypatch.setattr(history, "BYTES_MAX", 100_000)
    monkeypatch.setattr(history, "REQUESTS_MAX", 1000)
    with kafka(topics=["orders"]) as k:
        producer = Producer({"bootstrap.servers": k.bootstrap})
        for _ in range(3):
            producer.produce("orders", b"x" * 60_000)
            assert producer.flush(10) == 0
        assert len(k.requests("Produce")) == 1
        assert k.requests_dropped > 0


def test_requests_are_not_recorded_where_the_test_says_so() -> None:
    with kafka(topics=["orders"], history=False) as k:
        with k.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=1) as fault:
            assert produce(k, "orders", 1) == [(0, 0)]
        assert fault.count == 1
        with pytest.raises(RuntimeError, match="history=False"):
            k.requests()
