"""Writes the counts of producers to the topic `__audit`, and reads the newest count of each producer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from ottla.client.admin import NewTopic, create_topics
from ottla.client.audit import AUDIT_CONFIG, AUDIT_PARTITIONS, AUDIT_TOPIC, ProducedCount, parse_count
from ottla.client.cluster import Cluster
from ottla.client.consumer import Consumer
from ottla.client.offsets import beginning_offsets, end_offsets
from ottla.client.producer import Producer
from ottla.client.transactions import TransactionalProducer
from ottla.core.errors import TopicAlreadyExists, UnknownTopicOrPartition
from ottla.core.ids import TopicPartition


async def audit_topic_exists(cluster: Cluster) -> bool:
    """Return whether the cluster has the topic, so that producers report to it."""
    info = await cluster.refresh([AUDIT_TOPIC])
    return AUDIT_TOPIC in info.topics and bool(info.topics[AUDIT_TOPIC].partitions)


async def ensure_audit_topic(cluster: Cluster) -> None:
    """Create the topic if it does not exist, and wait until it is known. Raises KafkaError."""
    ((outcome, _),) = await create_topics(cluster, [NewTopic(AUDIT_TOPIC, AUDIT_PARTITIONS, configs=AUDIT_CONFIG)])
    if outcome.error is not None and not isinstance(outcome.error, TopicAlreadyExists):
        raise outcome.error
    await cluster.retrying(lambda: cluster.topic(AUDIT_TOPIC))  # the broker that is asked may know it a moment later


async def send_counts(producer: Producer | TransactionalProducer, counts: Iterable[ProducedCount]) -> None:
    """Send reports and wait for the acknowledgements; sending them twice changes nothing. Raises KafkaError."""
    answers = [await producer.send(AUDIT_TOPIC, key=count.key, value=count.value) for count in counts]
    await producer.flush()
    await asyncio.gather(*answers)


async def read_counts(cluster: Cluster) -> list[ProducedCount]:
    """Read the newest report of each producer, bucket and partition; empty without the topic. Raises KafkaError."""
    try:
        info = await cluster.topic(AUDIT_TOPIC, fresh=True)
    except UnknownTopicOrPartition:
        return []
    partitions = [TopicPartition(AUDIT_TOPIC, p.partition) for p in info.partitions]
    starts, ends = await beginning_offsets(cluster, partitions), await end_offsets(cluster, partitions)
    newest: dict[bytes | None, ProducedCount] = {}
    async with Consumer(cluster, starts, end=ends) as consumer:
        async for _, records in consumer.chunks():
            for record in records:
                count = parse_count(record.value or b"")
                if count is None:
                    newest.pop(record.key, None)
                else:
                    newest[record.key] = count
    return sorted(newest.values())
