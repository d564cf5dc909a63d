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
from ottla.core.ids import TopicPartition as Place
from ottla.wire.apis import ApiKey
from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData


class ReadRow(NamedTuple):
    """A record as a client shows it."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    append_time: bool
    headers: tuple[tuple[str, bytes | None], ...]


def create_topic(bootstrap: str, topic: str, *, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
    """Create a topic and wait until every partition has a leader. Old times do not make its records go."""
    configs = {"retention.ms": "-1", **(config or {})}

    async def create() -> None:
        async with await Cluster.connect(parse_addresses(bootstrap)) as cluster:
            ((outcome, _),) = await create_topics(cluster, [NewTopic(topic, partitions, configs=configs)])
            assert outcome.error is None, outcome
            for number in range(partitions):

                async def look(number: int = number) -> object:
                    return await cluster.partition(Place(topic, number), fresh=True)

                await cluster.retrying(look)

    asyncio.run(create())


def delete_topic(bootstrap: str, topic: str) -> None:
    """Delete a topic."""

    async def delete() -> None:
        async with await Cluster.connect(parse_addresses(bootstrap)) as cluster:
            (outcome,) = await delete_topics(cluster, [topic])
            assert outcome.error is None, outcome

    asyncio.run(delete())


def write_batches(bootstrap: str, topic: str, batches: Sequence[bytes], *, partition: int = 0) -> None:
    """Produce batches as they are, one request each."""

    async def write() -> None:
        async with await Cluster.connect(parse_addresses(bootstrap)) as cluster:
            leader = await cluster.partition(Place(topic, partition))
            topic_id = cluster.info.topics[topic].topic_id
            for batch in batches:
                data = PartitionProduceData(index=partition, records=batch)
                topic_data = [TopicProduceData(name=topic, topic_id=topic_id, partition_data=[data])]
                ask = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topic_data)
                answer = await cluster.request(leader.leader_id, ApiKey.PRODUCE, ask)
                raise_for(answer.responses[0].partition_responses[0].error_code)

    asyncio.run(write())


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
