"""A test moves the time of its brokers: what waits for hours is over at once, and real clients stay connected."""

# mypy: disable-error-code="attr-defined, no-untyped-call, arg-type, no-any-return"
# The clients ship few types, and re-export without saying so.

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import PurePosixPath
from typing import Any

import kafka as kafka_python
import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from ottla.client.addresses import parse_addresses
from ottla.client.cluster import Cluster
from ottla.core.errors import ErrorCode
from ottla.testing import Kafka, kafka
from ottla.testing.cluster import TestCluster
from ottla.wire.apis import ApiKey
from ottla.wire.generated import share_fetch as fetching
from ottla.wire.generated.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.wire.generated.describe_groups import DescribeGroupsRequest
from ottla.wire.generated.share_group_heartbeat import ShareGroupHeartbeatRequest

DAY_S = 24 * 3600
PATIENCE_S = 60


def produce(k: Kafka, topic: str, *values: bytes, key: bytes = b"k") -> None:
    producer = Producer({"bootstrap.servers": k.bootstrap, "acks": "all"})
    for value in values:
        producer.produce(topic, value, key=key, partition=0)
    assert producer.flush(PATIENCE_S) == 0


@contextmanager
def consumer_of(k: Kafka, **config: Any) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": k.bootstrap,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            **{name.replace("_", "."): value for name, value in config.items()},
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def next_value(consumer: Consumer) -> bytes | None:
    """The value of the next record; errors that pass are passed over, as a program does."""
    for _ in range(PATIENCE_S * 10):
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            return message.value()
    raise AssertionError("no record")


def values_in(k: Kafka, topic: str, **config: Any) -> list[bytes | None]:
    """What a consumer without a group reads from the start to the end of the first partition."""
    with consumer_of(k, enable_partition_eof=True, **config) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        values = []
        while (message := consumer.poll(PATIENCE_S)) is not None and message.error() is None:
            values.append(message.value())
        return values


def members(k: Kafka) -> dict[str, int]:
    """The members of the group and their epochs, as the coordinator has them now; those of a classic group have none."""

    async def read(cluster: TestCluster) -> dict[str, int]:
        handlers = cluster.handlers(1)
        answer = await handlers.call("consumer_group_describe", 1, ConsumerGroupDescribeRequest(group_ids=["g"]))
        if (modern := answer.groups[0]).error_code == 0:
            return {member.member_id: member.member_epoch for member in modern.members}
        answer = await handlers.call("describe_groups", 5, DescribeGroupsRequest(groups=["g"]))
        return {member.member_id: 0 for member in answer.groups[0].members}

    return k._call(read)


def assert_over(k: Kafka, joined: dict[str, int]) -> None:
    """No session goes on: each member is gone, or has joined again."""
    now = members(k)
    assert joined
    assert all(member not in now or now[member] > epoch for member, epoch in joined.items())


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_of_confluent_kafka_whose_session_ends_joins_again_and_goes_on(protocol: str) -> None:
    options = {"group.consumer.min.heartbeat.interval.ms": "500", "group.consumer.heartbeat.interval.ms": "500"}
    config = {"heartbeat_interval_ms": 500} if protocol == "classic" else {}
    with kafka(topics=["orders"], options=options) as k, consumer_of(k, group_protocol=protocol, **config) as consumer:
        consumer.subscribe(["orders"])
        produce(k, "orders", b"before")
        assert next_value(consumer) == b"before"
        consumer.commit(asynchronous=False)
        joined = members(k)
        k.advance(minutes=2)
        assert_over(k, joined)
        produce(k, "orders", b"after")
        assert next_value(consumer) == b"after"


def test_a_member_of_kafka_python_whose_session_ends_joins_again_and_goes_on() -> None:
    with (
        kafka(topics=["orders"]) as k,
        closing(
            kafka_python.KafkaConsumer(
                "orders",
                bootstrap_servers=k.bootstrap,
                group_id="g",
                auto_offset_reset="earliest",
                heartbeat_interval_ms=500,
                consumer_timeout_ms=PATIENCE_S * 1000,
            )
        ) as consumer,
    ):
        produce(k, "orders", b"before")
        assert next(consumer).value == b"before"
        consumer.commit()
        joined = members(k)
        k.advance(minutes=2)
        assert_over(k, joined)
        produce(k, "orders", b"after")
        assert next(consumer).value == b"after"


async def test_a_member_of_aiokafka_whose_session_ends_joins_again_and_goes_on() -> None:
    async with kafka(topics=["orders"]) as k:
        consumer = AIOKafkaConsumer(
            "orders",
            bootstrap_servers=k.bootstrap,
            group_id="g",
            auto_offset_reset="earliest",
            heartbeat_interval_ms=500,
            session_timeout_ms=10_000,
        )
        await consumer.start()
        try:
            await asyncio.to_thread(produce, k, "orders", b"before")
            assert (await asyncio.wait_for(consumer.getone(), PATIENCE_S)).value == b"before"
            await consumer.commit()
            joined = members(k)
            k.advance(minutes=2)
            assert_over(k, joined)
            await asyncio.to_thread(produce, k, "orders", b"after")
            assert (await asyncio.wait_for(consumer.getone(), PATIENCE_S)).value == b"after"
        finally:
            await consumer.stop()


class ShareMember:
    """A member of a share group with Ottla's own client: few Python clients have one."""

    def __init__(self, client: Cluster, name: str) -> None:
        self.client, self.member_id = client, str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
        self.member_epoch = self.session_epoch = 0

    async def beat(self) -> int:
        """Send a heartbeat; returns the error."""
        request = ShareGroupHeartbeatRequest(
            group_id="g",
            member_id=self.member_id,
            member_epoch=self.member_epoch,
            subscribed_topic_names=["orders"] if self.member_epoch == 0 else None,
        )
        answer = await self.client.request(1, ApiKey.SHARE_GROUP_HEARTBEAT, request)
        self.member_epoch = answer.member_epoch if answer.error_code == 0 else 0
        return answer.error_code

    async def fetch(self) -> list[tuple[int, int, int]]:
        """Fetch once; returns what is acquired: first and last offset, and how often it was delivered."""
        topic_id = (await self.client.topic("orders")).topic_id
        topic = fetching.FetchTopic(topic_id=topic_id, partitions=[fetching.FetchPartition(partition_index=0)])
        request = fetching.ShareFetchRequest(
            group_id="g",
            member_id=self.member_id,
            share_session_epoch=self.session_epoch,
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=500,
            batch_size=500,
            topics=[topic] if self.session_epoch == 0 else [],
        )
        answer = await self.client.request(1, ApiKey.SHARE_FETCH, request)
        if answer.error_code == 0:
            self.session_epoch += 1
        return [
            (one.first_offset, one.last_offset, one.delivery_count)
            for each in answer.responses
            for partition in each.partitions
            for one in partition.acquired_records
        ]

    async def acquire(self) -> list[tuple[int, int, int]]:
        """Fetch until something is acquired."""
        async with asyncio.timeout(PATIENCE_S):
            while not (found := await self.fetch()):
                pass
        return found


async def share_members(client: Cluster) -> list[ShareMember]:
    """Two members of a share group that begins with the records that are produced from now on."""
    members = [ShareMember(client, "first"), ShareMember(client, "second")]
    await client.coordinator("g")  # creates the topic of its state
    for member in members:
        async with asyncio.timeout(PATIENCE_S):
            while await member.beat() != 0:
                pass
    async with asyncio.timeout(PATIENCE_S):
        while members[0].session_epoch == 0:
            assert await members[0].fetch() == []
    return members


async def test_the_locks_of_a_member_of_a_share_group_end() -> None:
    async with kafka(topics=["orders"]) as k, await Cluster.connect(parse_addresses(k.bootstrap)) as client:
        first, second = await share_members(client)
        await asyncio.to_thread(produce, k, "orders", b"1", b"2")
        assert await first.acquire() == [(0, 1, 1)]
        assert await second.fetch() == []
        k.advance(seconds=25)
        assert await second.fetch() == []
        k.advance(seconds=10)
        assert await second.acquire() == [(0, 1, 2)]


async def test_the_session_of_a_member_of_a_share_group_ends() -> None:
    async with kafka(topics=["orders"]) as k, await Cluster.connect(parse_addresses(k.bootstrap)) as client:
        first, _ = await share_members(client)
        assert await first.beat() == 0
        k.advance(seconds=30)
        assert await first.beat() == 0
        k.advance(seconds=60)
        assert await first.beat() == ErrorCode.UNKNOWN_MEMBER_ID
        assert await first.beat() == 0  # it joins again


def test_a_transaction_that_is_forgotten_is_aborted_and_its_producer_is_fenced() -> None:
    config = {"transactional.id": "t", "transaction.timeout.ms": 60_000}
    with kafka(topics=["orders"]) as k:
        producer = Producer({"bootstrap.servers": k.bootstrap, **config})
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("orders", b"forgotten")
        producer.flush()
        k.advance(seconds=50)
        produce(k, "orders", b"after")
        assert values_in(k, "orders", isolation_level="read_committed") == []
        k.advance(minutes=2)
        assert values_in(k, "orders", isolation_level="read_committed") == [b"after"]
        with pytest.raises(KafkaException):
            producer.commit_transaction()
        again = Producer({"bootstrap.servers": k.bootstrap, **config})
        again.init_transactions()
        again.begin_transaction()
        again.produce("orders", b"again")
        again.commit_transaction()
        assert values_in(k, "orders", isolation_level="read_committed") == [b"after", b"again"]


def transactional_ids(k: Kafka) -> list[str]:
    from ottla.wire.generated.list_transactions import ListTransactionsRequest

    async def read(cluster: TestCluster) -> list[str]:
        answer = await cluster.handlers(1).call(
            "list_transactions", 0, ListTransactionsRequest(state_filters=[], producer_id_filters=[])
        )
        return [state.transactional_id for state in answer.transaction_states]

    return k._call(read)


def test_a_transactional_id_that_is_not_used_expires() -> None:
    with kafka(topics=["orders"]) as k:
        producer = Producer({"bootstrap.servers": k.bootstrap, "transactional.id": "t"})
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("orders", b"1")
        producer.commit_transaction()
        k.advance(days=6)
        assert transactional_ids(k) == ["t"]
        k.advance(days=2)
        assert transactional_ids(k) == []


def test_offsets_of_a_group_without_members_expire() -> None:
    def committed() -> int:
        request = ConsumerGroupTopicPartitions("g", [TopicPartition("orders", 0)])
        admin = AdminClient({"bootstrap.servers": k.bootstrap})
        return admin.list_consumer_group_offsets([request])["g"].result().topic_partitions[0].offset

    with kafka(topics=["orders"]) as k:
        with consumer_of(k) as consumer:
            consumer.commit(offsets=[TopicPartition("orders", 0, 7)], asynchronous=False)
        k.advance(days=6)
        assert committed() == 7
        k.advance(days=2)
        assert committed() < 0


@pytest.mark.parametrize("brokers", [1, 3])
def test_a_compacted_topic_keeps_the_last_value_once_its_lag_has_passed(brokers: int) -> None:
    with kafka(brokers=brokers) as k:
        configs = {"cleanup.policy": "compact", "min.compaction.lag.ms": "3600000", "segment.ms": "500"}
        k.create_topic("users", configs=configs)
        producer = Producer({"bootstrap.servers": k.bootstrap})
        for number in range(5):
            producer.produce("users", b"%d" % number, key=b"k", timestamp=k.now_ms() + 1000 * number)
            assert producer.flush(PATIENCE_S) == 0
        k.advance(minutes=50)
        assert values_in(k, "users") == [b"0", b"1", b"2", b"3", b"4"]
        k.advance(hours=3)
        assert values_in(k, "users") == [b"3", b"4"]  # that of the active segment is not compared


def test_files_of_a_deleted_topic_are_removed_after_the_delay() -> None:
    def left(cluster: TestCluster) -> list[str]:
        names = cluster.files(1).names_in(PurePosixPath(cluster.paths(1)[0]))
        return [name for name in names if name.startswith("orders")]

    async def files(cluster: TestCluster) -> list[str]:
        return left(cluster)

    with kafka(topics=["orders"], options={"log.segment.delete.delay.ms": "60000"}) as k:
        admin = AdminClient({"bootstrap.servers": k.bootstrap})
        admin.delete_topics(["orders"])["orders"].result(PATIENCE_S)
        assert k._call(files)
        k.advance(minutes=3)
        assert k._call(files) == []


def test_three_brokers_replicate_as_before_after_their_time_was_moved() -> None:
    with kafka(topics={"orders": 3}, brokers=3) as k:
        produce(k, "orders", b"before")
        assert values_in(k, "orders") == [b"before"]
        in_sync = k._running.in_sync_replicas()
        assert set(map(len, in_sync.values())) == {3}
        k.advance(days=2)
        assert k._running.in_sync_replicas() == in_sync
        produce(k, "orders", b"after")
        k.down(1)
        assert values_in(k, "orders") == [b"before", b"after"]


def test_the_brokers_time_of_day_is_the_systems_and_what_was_added() -> None:
    with kafka() as k:
        before = k.now_ms()
        k.advance(days=1)
        assert k.now_ms() - before >= DAY_S * 1000
        with pytest.raises(ValueError, match="does not go back"):
            k.advance(seconds=-1)
