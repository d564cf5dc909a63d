"""Clients see leaders that move, sessions that end, producers that are fenced, and a divided network."""

from __future__ import annotations

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import ProducerFenced
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from ottla.testing import kafka
from tests.support.kit_clients import Config, consume, consumer, poll, produce


def test_a_producer_follows_a_leader_that_is_moved() -> None:
    with kafka(topics=["orders"], brokers=3) as k:
        producer = Producer({"bootstrap.servers": k.bootstrap, "client.id": "follows", "retry.backoff.ms": 5})
        for leader in (2, 3, 1):
            assert k.move_leader("orders", to=leader).count == 1
            producer.produce("orders", b"1")
            assert producer.flush(10) == 0
            assert k.requests("Produce")[-1].broker == leader
        with pytest.raises(ValueError, match="broker 4 has no replica of orders-0"):
            k.move_leader("orders", to=4)
        with pytest.raises(ValueError, match="no partition 1 of topic 'orders'"):
            k.move_leader("orders", 1, to=2)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_consumer_whose_session_has_expired_loses_its_partitions_and_joins_again(protocol: str) -> None:
    assigned: list[int] = []
    lost: list[int] = []

    def note_assigned(_consumer: Consumer, partitions: list[TopicPartition]) -> None:
        assigned.append(len(partitions))

    def note_lost(_consumer: Consumer, partitions: list[TopicPartition]) -> None:
        lost.append(len(partitions))

    options = {"group.consumer.heartbeat.interval.ms": "100", "group.consumer.min.heartbeat.interval.ms": "100"}
    with kafka(topics={"orders": 2}, options=options) as k:
        produce(k, "orders", 2, partitions=(0, 1))
        config = {"group.protocol": protocol}
        if protocol == "classic":
            config["heartbeat.interval.ms"] = "100"
        with consumer(k, "orders", config=config) as opened:
            opened.subscribe(["orders"], on_assign=note_assigned, on_lost=note_lost)
            assert len(poll(opened, 2)) == 2
            assert k.expire("readers", "consumer").count == 1
            assert len(poll(opened, 2)) == 2, "nothing was committed: it reads from the beginning"
            assert lost == [2]
            assert assigned == [2, 2]
        with pytest.raises(ValueError, match="there is no group 'other'"):
            k.expire("other")


def test_one_member_of_two_expires_and_the_other_one_gets_its_partitions() -> None:
    with (
        kafka(topics={"orders": 2}) as k,
        consumer(k, "orders", config={"client.id": "stays", "heartbeat.interval.ms": 50}) as stays,
        consumer(k, "orders", config={"client.id": "expires", "heartbeat.interval.ms": 50}) as expires,
    ):
        while not (len(stays.assignment()) == len(expires.assignment()) == 1):
            stays.poll(0.02)
            expires.poll(0.02)
        assert k.expire("readers", "expires").count == 1
        while len(stays.assignment()) < 2:  # the other one does not poll, and so cannot join again
            stays.poll(0.02)
        with pytest.raises(ValueError, match="has no member 'unknown'"):
            k.expire("readers", "unknown")


def test_a_producer_that_is_fenced_cannot_commit() -> None:
    with kafka(topics=["orders"]) as k:
        producer = Producer({"bootstrap.servers": k.bootstrap, "transactional.id": "t"})
        producer.init_transactions(10)
        producer.begin_transaction()
        producer.produce("orders", b"1")
        assert producer.flush(10) == 0
        assert k.fence("t").count == 1
        with pytest.raises(KafkaException) as raised:
            producer.commit_transaction(10)
        assert raised.value.args[0].fatal()
        assert (
            "INVALID_PRODUCER_EPOCH" in k.requests("EndTxn")[-1].errors
            or "PRODUCER_FENCED" in k.requests("EndTxn")[-1].errors
        )
        with pytest.raises(ValueError, match="no producer has been initialized with transactional id 'other'"):
            k.fence("other")


async def test_aiokafka_raises_that_it_is_fenced() -> None:
    async with (
        kafka(topics=["orders"]) as k,
        AIOKafkaProducer(bootstrap_servers=k.bootstrap, transactional_id="t") as producer,
    ):
        async with producer.transaction():
            await producer.send_and_wait("orders", b"1")
        k.fence("t")
        with pytest.raises(ProducerFenced):
            async with producer.transaction():
                await producer.send_and_wait("orders", b"2")


def test_a_leader_without_followers_refuses_acks_all_and_goes_on_when_the_network_is_healed() -> None:
    with kafka(brokers=3) as k:
        k.create_topic("orders", configs={"min.insync.replicas": "2"})
        admin = AdminClient({"bootstrap.servers": k.bootstrap})
        leader: int = admin.describe_cluster().result(10).controller.id
        k.move_leader("orders", to=leader)  # the controller itself can still shrink the ISR
        with k.partition_network({leader}, {1, 2, 3} - {leader}) as fault:
            fault.wait(2)  # both followers fetch in vain
            delivered: list[str] = []

            def report(error: KafkaError | None, _message: Message) -> None:
                delivered.append("" if error is None else error.name())

            producer = Producer({"bootstrap.servers": k.bootstrap, "client.id": "cut off", "retries": 0})
            producer.produce("orders", b"1", on_delivery=report)
            while not k.requests("Produce"):
                producer.poll(0.01)
            k.advance(seconds=60)  # the request times out, and the followers leave the ISR
            assert producer.flush(10) == 0
            assert delivered[0] in ("NOT_ENOUGH_REPLICAS_AFTER_APPEND", "REQUEST_TIMED_OUT")
            assert produce(k, "orders", 1, config={"retries": 0}) == [(0, "NOT_ENOUGH_REPLICAS")]
            assert k.requests("Produce")[-1].errors == ("NOT_ENOUGH_REPLICAS",)
        assert produce(k, "orders", 1) == [(0, 1)]


def test_a_client_does_not_reach_the_brokers_of_the_other_side() -> None:
    with kafka(topics={"orders": 3}, brokers=3) as k:
        for partition in (0, 1, 2):
            k.move_leader("orders", partition, to=partition + 1)
        producer = Producer({"bootstrap.servers": k.bootstrap, "client.id": "cut off", "linger.ms": 0})
        producer.list_topics(timeout=10)
        k.partition_network({"cut off"}, {2})
        for partition in (0, 1, 2):
            producer.produce("orders", b"1", partition=partition)
        while len(producer) > 1:
            producer.poll(0.02)
        assert {request.broker for request in k.requests("Produce", client_id="cut off") if request.is_answered} == {
            1,
            3,
        }
        assert len(producer) == 1
        k.heal_network()
        assert producer.flush(10) == 0
        assert consume(k, "orders", 3) == [b"1"] * 3


def test_no_response_that_was_waiting_passes_to_the_other_side() -> None:
    config: Config = {"client.id": "cut off", "fetch.wait.max.ms": 60_000}
    with kafka(topics=["orders"]) as k, consumer(k, "orders", config=config) as opened:
        while not any(not request.is_answered for request in k.requests("Fetch", client_id="cut off")):
            opened.poll(0.02)
        with k.partition_network({"cut off"}, {1}) as fault:
            produce(k, "orders", 1)  # the fetch that waits would return it
            fault.wait()
            assert opened.poll(0.1) is None
        assert poll(opened, 1) == [b"0"]


def test_a_division_that_cannot_be_is_refused() -> None:
    with kafka() as k:
        with pytest.raises(ValueError, match="two sides at least"):
            k.partition_network({1})
        with pytest.raises(ValueError, match="members in common"):
            k.partition_network({1, 2}, {2, 3})
