"""A client sees each fault of requests, as often as the fault counts."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import InvalidTopicError, NotEnoughReplicasError

from ottla.testing import Kafka, RequestView, kafka
from tests.support.kit_clients import consume, consumer, poll, produce

NUMBERS = [b"0", b"1", b"2", b"3", b"4"]


def errors_of(k: Kafka, api: str) -> list[str]:
    return [error for request in k.requests(api) for error in request.errors]


# ---- fail


def test_a_producer_retries_what_fails_and_the_other_partition_is_written_at_once() -> None:
    with kafka(topics={"orders": 2}) as k:
        with k.fail("Produce", "NOT_LEADER_OR_FOLLOWER", topic="orders", partition=0, times=3) as fault:
            delivered = produce(k, "orders", 4, partitions=(0, 1), config={"queue.buffering.max.ms": 50})
        assert delivered == [(0, 0), (0, 1), (1, 0), (1, 1)]
        assert fault.count == 3
        assert errors_of(k, "Produce") == ["NOT_LEADER_OR_FOLLOWER"] * 3
        assert k.log.count("fault: NOT_LEADER_OR_FOLLOWER of Produce of topic orders partition 0") == 3
        first = k.requests("Produce")[0]
        if len(first.body.topic_data[0].partition_data) == 2:  # one request for both
            assert first.response is not None
            answers = {each.index: each for each in first.response.responses[0].partition_responses}
            assert (answers[0].error_code, answers[0].base_offset) == (6, -1)
            assert (answers[1].error_code, answers[1].base_offset) == (0, 0)


def test_an_error_that_is_final_reaches_the_application() -> None:
    with kafka(topics=["orders"]) as k, k.fail("Produce", "INVALID_TOPIC_EXCEPTION") as fault:
        producer = KafkaProducer(bootstrap_servers=k.bootstrap, client_id="final", enable_idempotence=False)
        with pytest.raises(InvalidTopicError):
            producer.send("orders", b"1").get(timeout=10)
        assert fault.count == 1
        fault.remove()
        assert producer.send("orders", b"1").get(timeout=10).offset == 0
        producer.close()


def test_only_the_chosen_client_fails() -> None:
    with kafka(topics=["orders"]) as k, k.fail("Produce", "NOT_ENOUGH_REPLICAS", client_id="unlucky") as fault:
        assert produce(k, "orders", 1) == [(0, 0)]
        producer = KafkaProducer(
            bootstrap_servers=k.bootstrap, client_id="unlucky", retries=0, enable_idempotence=False
        )
        with pytest.raises(NotEnoughReplicasError):
            producer.send("orders", b"1").get(timeout=10)
        assert fault.count == 1
        producer.close()


def test_a_condition_chooses_requests() -> None:
    def is_transactional(view: RequestView) -> bool:
        return view.body.transactional_id is not None

    with kafka(topics=["orders"]) as k:
        with k.fail("InitProducerId", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", where=is_transactional) as fault:
            assert produce(k, "orders", 1, config={"enable.idempotence": True}) == [(0, 0)]
            producer = Producer({"bootstrap.servers": k.bootstrap, "transactional.id": "t"})
            with pytest.raises(KafkaException) as raised:
                producer.init_transactions(10)
        assert raised.value.args[0].name() == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
        assert fault.count == 1


def test_metadata_of_a_topic_fails_and_the_brokers_are_listed() -> None:
    with kafka(topics=["orders", "payments"]) as k:
        with k.fail("Metadata", "TOPIC_AUTHORIZATION_FAILED", topic="orders") as fault:
            listed = AdminClient({"bootstrap.servers": k.bootstrap}).list_topics(timeout=10)
            failed = listed.topics["orders"].error
            assert failed is not None and failed.name() == "TOPIC_AUTHORIZATION_FAILED"
            assert listed.topics["payments"].error is None
            assert set(listed.brokers) == {1}
        assert fault.count >= 1


def test_a_consumer_retries_a_fetch_that_fails() -> None:
    with kafka(topics=["orders"]) as k:
        produce(k, "orders")
        with k.fail("Fetch", "NOT_LEADER_OR_FOLLOWER", topic="orders", times=2) as fault:
            assert consume(k, "orders", 5) == NUMBERS
        assert fault.count == 2
        assert errors_of(k, "Fetch") == ["NOT_LEADER_OR_FOLLOWER"] * 2


def test_a_fault_hits_a_consumer_whose_fetches_have_begun_before() -> None:
    with kafka(topics=["orders"]) as k:
        reader = KafkaConsumer(
            "orders", bootstrap_servers=k.bootstrap, auto_offset_reset="earliest", fetch_max_wait_ms=10
        )
        produce(k, "orders", 1)
        assert next(reader).value == b"0"
        before = len(k.requests("Fetch"))
        while len(k.requests("Fetch")) < before + 4:  # nothing has changed since the one before
            reader.poll(timeout_ms=20)
        assert all(request.body.topics for request in k.requests("Fetch"))
        with k.fail("Fetch", "KAFKA_STORAGE_ERROR", topic="orders", times=2) as fault:
            while fault.count < 2:
                reader.poll(timeout_ms=20)
        produce(k, "orders", 1)
        assert next(reader).value == b"0"
        reader.close()


def test_a_coordinator_that_moves_is_found_again() -> None:
    with kafka(topics=["orders"]) as k:
        produce(k, "orders")
        with k.fail("OffsetCommit", "NOT_COORDINATOR", times=1) as fault, consumer(k, "orders") as opened:
            poll(opened, 5)
            opened.commit(asynchronous=False)
        assert fault.count == 1
        assert len(k.requests("FindCoordinator", client_id="consumer")) >= 2
        with consumer(k, "orders") as opened:
            produce(k, "orders", 1)
            assert poll(opened, 1) == [b"0"]


def test_a_request_without_a_response_that_fails_closes_the_connection() -> None:
    with kafka(topics=["orders"]) as k:
        with k.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=1) as fault:
            producer = Producer({"bootstrap.servers": k.bootstrap, "acks": 0, "client.id": "careless"})
            producer.list_topics(timeout=10)
            producer.produce("orders", b"lost")
            producer.flush(10)
            fault.wait()
        connections = len(k.requests("ApiVersions", client_id="careless"))
        with consumer(k, "orders") as opened:
            while opened.poll(0.05) is None:  # what is sent into the connection that is closed is lost, too
                producer.produce("orders", b"kept")
                producer.flush(10)
        assert fault.count == 1
        assert len(k.requests("ApiVersions", client_id="careless")) > connections


# ---- drop, cut and delay


def test_no_record_is_written_twice_by_an_idempotent_producer_whose_responses_are_lost() -> None:
    with kafka(topics=["orders"]) as k:
        with k.cut("Produce", times=3) as fault:
            assert produce(k, "orders", config={"enable.idempotence": True}) == [(0, offset) for offset in range(5)]
        assert fault.count == 3
        assert [request.is_answered for request in k.requests("Produce")] == [False, False, False, True]
        assert consume(k, "orders", 5) == NUMBERS


def test_a_producer_without_idempotence_writes_twice_what_was_handled() -> None:
    with kafka(topics=["orders"]) as k:
        with k.cut("Produce", times=1) as fault:
            produce(k, "orders", 1)
        assert consume(k, "orders", 2) == [b"0", b"0"]
        assert fault.count == 1


def test_a_request_that_is_not_handled_writes_nothing() -> None:
    with kafka(topics=["orders"]) as k:
        with k.cut("Produce", handled=False, times=1) as fault:
            assert produce(k, "orders", 1) == [(0, 0)]
        assert fault.count == 1


@pytest.mark.parametrize("handled", [True, False])
def test_a_client_whose_response_is_dropped_times_out_and_repeats_the_request(handled: bool) -> None:
    with kafka(topics=["orders"]) as k:
        with k.drop("Produce", handled=handled, times=1) as fault:
            config = {"enable.idempotence": True, "socket.timeout.ms": 200, "request.timeout.ms": 100}
            assert produce(k, "orders", 1, config=config) == [(0, 0)]
        assert fault.count == 1
        assert [request.is_answered for request in k.requests("Produce")] == [False, True]
        assert k.requests("Produce")[0].faults == ["drop of Produce"]


async def test_aiokafka_repeats_a_batch_without_a_duplicate() -> None:
    async with kafka(topics=["orders"]) as k:
        with k.cut("Produce", times=1) as fault:
            async with AIOKafkaProducer(bootstrap_servers=k.bootstrap, enable_idempotence=True) as producer:
                sent = await producer.send_and_wait("orders", b"1")
        assert (fault.count, sent.offset) == (1, 0)
        assert len(k.requests("Produce")) == 2


@pytest.mark.parametrize("handled", [True, False])
def test_a_delayed_response_comes_when_the_time_is_moved(handled: bool) -> None:
    with kafka(topics=["orders"]) as k:
        producer = Producer({"bootstrap.servers": k.bootstrap, "linger.ms": 0})
        with k.delay("Produce", ms=3_600_000, handled=handled, times=1) as fault:
            producer.produce("orders", b"1")
            fault.wait()
            assert producer.flush(0.05) == 1
            k.advance(hours=1)
            assert producer.flush(10) == 0
        assert fault.count == 1


def test_a_client_that_waits_too_long_times_out() -> None:
    with kafka(topics=["orders"]) as k, k.delay("Metadata", ms=3_600_000) as fault:
        with pytest.raises(KafkaException) as raised:
            AdminClient({"bootstrap.servers": k.bootstrap}).list_topics(timeout=0.2)
        assert raised.value.args[0].name() in ("_TRANSPORT", "_TIMED_OUT")
        assert fault.count >= 1


def test_connections_that_are_cut_are_opened_again() -> None:
    with kafka(topics=["orders"]) as k, consumer(k, "orders") as opened:
        produce(k, "orders")
        assert poll(opened, 5) == NUMBERS
        before = len(k.requests("ApiVersions", client_id="consumer"))
        assert k.cut(client_id="other").count == 0
        assert k.cut(client_id="consumer").count >= 1
        produce(k, "orders")
        assert poll(opened, 5) == NUMBERS
        assert len(k.requests("ApiVersions", client_id="consumer")) > before


# ---- answer


def test_a_function_answers_requests() -> None:
    views: list[RequestView] = []

    def not_yet(view: RequestView) -> dict[str, Any] | None:
        views.append(view)
        if len(views) > 2:
            return None
        return {"error_code": 15, "error_message": f"not yet, {view.body.key}"}  # librdkafka's version is 2

    with kafka(topics=["orders"]) as k:
        produce(k, "orders")
        with k.answer("FindCoordinator", not_yet) as fault, consumer(k, "orders") as opened:
            assert poll(opened, 5) == NUMBERS
        assert fault.count == 2
        assert errors_of(k, "FindCoordinator") == ["COORDINATOR_NOT_AVAILABLE"] * 2
        assert (views[0].api, views[0].client_id, views[0].broker) == ("FindCoordinator", "consumer", 1)


def test_what_a_function_raises_is_raised_in_the_test_and_the_request_is_handled() -> None:
    def broken(_view: RequestView) -> dict[str, Any]:
        return {"error_cod": 15}

    with kafka(topics=["orders"]) as k:
        produce(k, "orders")
        with (
            pytest.raises(ValueError, match="v2 has no 'error_cod'; did you mean 'error_code'"),
            k.answer("FindCoordinator", broken),
            consumer(k, "orders") as opened,
        ):
            assert poll(opened, 5) == NUMBERS


# ---- Together


def test_several_faults_of_one_request_are_all_applied() -> None:
    with kafka(topics={"orders": 3}) as k:
        with (
            k.fail("Produce", "NOT_LEADER_OR_FOLLOWER", topic="orders", partition=0, times=1) as first,
            k.fail("Produce", "KAFKA_STORAGE_ERROR", topic="orders", partition=1, times=1) as second,
            k.delay("Produce", ms=1, times=1) as third,
        ):
            delivered = produce(k, "orders", 3, partitions=(0, 1, 2))
        assert delivered == [(0, 0), (1, 0), (2, 0)]
        assert (first.count, second.count, third.count) == (1, 1, 1)


def test_faults_end_when_they_are_cleared() -> None:
    with kafka(topics=["orders"]) as k:
        faults = [
            k.fail("Produce", "INVALID_TOPIC_EXCEPTION"),
            k.partition_network({1}, {"producer"}),
            k.disk.full(),
            k.disk.fail("sync"),
            k.disk.slow(5),
        ]
        k.clear_faults()
        assert produce(k, "orders", 1) == [(0, 0)]
        assert [fault.count for fault in faults] == [0, 0, 0, 0, 0]


def test_a_fault_survives_a_restart_of_the_broker() -> None:
    with kafka(topics=["orders"]) as k, k.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=2) as fault:
        k.down()
        k.up()
        assert produce(k, "orders", 1) == [(0, 0)]
        assert fault.count == 2


def test_one_broker_of_three_fails_and_requests_between_brokers_do_not() -> None:
    with kafka(topics={"orders": 3}, brokers=3) as k:
        with k.fail("Produce", "NOT_LEADER_OR_FOLLOWER", broker=2, times=2) as fault, k.drop("Fetch") as fetches:
            assert produce(k, "orders", 3, partitions=(0, 1, 2)) == [(0, 0), (1, 0), (2, 0)]
        assert fault.count == 2
        assert {request.broker for request in k.requests("Produce") if request.errors} == {2}
        assert fetches.count == 0, "followers fetch as before: acks=all was answered"


def test_followers_go_on_after_fetches_that_fail() -> None:
    with kafka(topics=["orders"], brokers=3) as k:
        with k.fail("Fetch", "NOT_LEADER_OR_FOLLOWER", times=4, between_brokers=True) as fault:
            fault.wait(4)
        assert produce(k, "orders", 1) == [(0, 0)]
        assert fault.count == 4


def test_requests_between_brokers_are_hit_where_the_test_asks_for_it() -> None:
    with kafka(topics=["orders"], brokers=3) as k:
        with k.drop("Fetch", handled=False, between_brokers=True) as fault:
            fault.wait(2)
            producer = Producer({"bootstrap.servers": k.bootstrap, "acks": "all", "client.id": "waiting"})
            producer.produce("orders", b"1")
            assert producer.flush(0.2) == 1, "no follower has it"
        k.cut(between_brokers=True)  # their dropped requests would never be answered
        assert producer.flush(10) == 0
