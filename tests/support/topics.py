"""Topics for tests of readers: written batch by batch as wanted, and read back by an independent client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer, TopicPartition

from ottla.client.addresses import parse_addresses
from ottla.client.admin import NewTopic, create_topics, delete_topics
from ottla.client.cluster import Cluster
from ottla.client.errors import raise_for
from ottla.client.offsets import end_offsets
from ottla.core.errors import ErrorCode, KafkaError
from ottla.core.ids import TopicPartition as Place
from ottla.wire.apis import ApiKey
from ottla.wire.generated.produce import PartitionProduceData, ProduceRequest, TopicProduceData

REFUSED_FOR_NOW = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)


class ReadRow(NamedTuple):
    """A record as a client shows it."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    append_time: bool
    headers: tuple[tuple[str, bytes | None], ...]


def create_topic(bootstrap: str, topic: str, *, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
    """Create a topic and wait until the leader of every partition answers. Old times do not make its records go.

    A leader in the metadata is not enough: Kafka updates its metadata cache before the broker becomes the leader.
    """
    configs = {"retention.ms": "-1", **(config or {})}

    async def create() -> None:
        async with await Cluster.connect(parse_addresses(bootstrap)) as cluster:
            ((outcome, _),) = await create_topics(cluster, [NewTopic(topic, partitions, configs=configs)])
            assert outcome.error is None, outcome
            await cluster.retrying(lambda: end_offsets(cluster, [Place(topic, number) for number in range(partitions)]))

    asyncio.run(create())


def delete_topic(bootstrap: str, topic: str) -> None:
    """Delete a topic."""

    async def delete() -> None:
        async with await Cluster.connect(parse_addresses(bootstrap)) as cluster:
            (outcome,) = await delete_topics(cluster, [topic])
            assert outcome.error is None, outcome

    asyncio.run(delete())


def write_batches(bootstrap: str, topic: str, batches: Sequence[bytes], *, partition: int = 0) -> None:
    """Produce batches as they are, one request each; a batch that the broker refused for now is sent again."""

    async def write() -> None:
        async with await Cluster.connect(parse_addresses(bootstrap)) as cluster:
            for batch in batches:
                await produce_batch(cluster, Place(topic, partition), batch)

    asyncio.run(write())


async def produce_batch(cluster: Cluster, place: Place, batch: bytes) -> None:
    """Produce one batch to the leader, and retry errors after which the batch was certainly not appended.

    Raises the error of the answer, and AssertionError if there is no answer: then the batch may have been appended.
    """
    stale = False

    async def attempt() -> int:
        nonlocal stale
        fresh, stale = stale, True
        leader = await cluster.partition(place, fresh=fresh)
        data = PartitionProduceData(index=place.partition, records=batch)
        topic_id = cluster.info.topics[place.topic].topic_id
        topic_data = [TopicProduceData(name=place.topic, topic_id=topic_id, partition_data=[data])]
        ask = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topic_data)
        try:
            answer = await cluster.request(leader.leader_id, ApiKey.PRODUCE, ask)
        except KafkaError as error:
            raise AssertionError(f"the batch may have been appended: {error}") from error
        code = int(answer.responses[0].partition_responses[0].error_code)
        if code in REFUSED_FOR_NOW:
            raise_for(code)
        return code

    raise_for(await cluster.retrying(attempt))


def read_with_librdkafka(
    bootstrap: str, topic: str, *, end_offset: int, partition: int = 0, committed: bool = False
) -> list[ReadRow]:
    """All records of a partition below an offset, as confluent-kafka gives them."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "unused",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed" if committed else "read_uncommitted",
        "log_level": 0,
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, partition, 0)])
    rows: list[ReadRow] = []
    try:
        while True:
            message = consumer.poll(30)
            assert message is not None, "nothing for 30 s"
            if message.error() is not None:  # the end of the partition
                return rows
            row = _row(message)
            if row.offset >= end_offset:
                return rows
            rows.append(row)
    finally:
        consumer.close()


def _row(message: Any) -> ReadRow:
    kind, timestamp_ms = message.timestamp()
    headers: Iterable[tuple[str, bytes | None]] = message.headers() or ()
    return ReadRow(message.offset(), message.key(), message.value(), timestamp_ms, kind == 2, tuple(headers))
