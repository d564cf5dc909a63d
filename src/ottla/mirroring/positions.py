"""Stores the progress of a mirror in the target cluster, in the same transactions as the records.

The positions are committed offsets of the group `ottla-mirror-NAME`: for a partition of a copy, the next offset to read
of the source partition, with the id of the source topic as metadata. The offset runs are records of the topic
`ottla-mirror-NAME`, a JSON array each, with the partition of the copy as key.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ottla.client.admin import NewTopic, create_topics
from ottla.client.cluster import Cluster
from ottla.client.consumer import Consumer, ConsumerOptions
from ottla.client.groups import OffsetAndMetadata, committed_offsets, list_groups
from ottla.client.offsets import offset_bounds
from ottla.core.errors import ErrorCode, GroupIdNotFound
from ottla.core.ids import NO_TOPIC_ID, TopicPartition
from ottla.mirroring.topics import OWN_PREFIX
from ottla.mirroring.translation import OffsetRun, OffsetTranslation
from ottla.records.builder import NewRecord

RUNS_RETENTION_MS = 30 * 86_400_000
"""Committed offsets of groups that are older than this are translated to the start of the copy."""


class Position(NamedTuple):
    """The next offset of a source partition to mirror, and the id of its topic (nil: unknown)."""

    offset: int
    topic_id: uuid.UUID


def own_name(mirror: str) -> str:
    """Return the name of a mirror's topic, group and transactional id.

    >>> own_name("eu-to-us")
    'ottla-mirror-eu-to-us'
    """
    return OWN_PREFIX + mirror


async def read_positions(target: Cluster, mirror: str) -> dict[TopicPartition, Position]:
    """Read the positions of a mirror by partition of the copy; empty before its first transaction."""
    try:
        committed = await committed_offsets(target, own_name(mirror))
    except GroupIdNotFound:
        return {}
    return {tp: Position(found.offset, _topic_id(found.metadata)) for tp, found in committed.items()}


def _topic_id(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        return NO_TOPIC_ID


def as_offsets(positions: Mapping[TopicPartition, Position]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Convert positions to the offsets that a transaction commits."""
    return {tp: OffsetAndMetadata(at.offset, -1, str(at.topic_id)) for tp, at in positions.items()}


async def copies_in(cluster: Cluster) -> frozenset[str]:
    """List the topics of a cluster that are copies, written by any mirror."""
    copies: set[str] = set()
    for group in await list_groups(cluster):
        if group.group_id.startswith(OWN_PREFIX):
            copies.update(tp.topic for tp in await committed_offsets(cluster, group.group_id))
    return frozenset(copies)


async def create_runs_topic(target: Cluster, mirror: str, *, replication_factor: int) -> None:
    """Create the topic of the offset runs unless it exists. Raises KafkaError."""
    configs = {"retention.ms": str(RUNS_RETENTION_MS)}
    ((outcome, _),) = await create_topics(target, [NewTopic(own_name(mirror), 1, replication_factor, configs)])
    if outcome.error is not None and outcome.error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
        raise outcome.error


def encode_runs(tp: TopicPartition, runs: Iterable[OffsetRun], now_ms: int) -> NewRecord:
    """Encode runs of a partition of a copy."""
    key = json.dumps([tp.topic, tp.partition], separators=(",", ":"))
    value = json.dumps([list(run) for run in runs], separators=(",", ":"))
    return NewRecord(key.encode(), value.encode(), now_ms)


async def read_runs(target: Cluster, mirror: str) -> dict[TopicPartition, OffsetTranslation]:
    """Read the offset runs of all partitions. The topic must exist."""
    only = TopicPartition(own_name(mirror), 0)
    bounds = (await offset_bounds(target, [only], read_committed=True))[only]
    translations: dict[TopicPartition, OffsetTranslation] = {}
    if bounds.start_offset >= bounds.end_offset:
        return translations
    options = ConsumerOptions(read_committed=True)
    async with Consumer(
        target, {only: bounds.start_offset}, end={only: bounds.end_offset}, options=options
    ) as consumer:
        async for _, records in consumer.chunks():
            for record in records:
                topic, partition = json.loads(record.key or b"[]")
                translation = translations.setdefault(TopicPartition(str(topic), int(partition)), OffsetTranslation())
                for run in json.loads(record.value or b"[]"):
                    translation.add(OffsetRun(*run))
    return translations
