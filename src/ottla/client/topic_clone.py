"""Copies a topic within a cluster: its settings and the number of its partitions, and the records if asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ottla.client.admin import CONFIG_SOURCES, NewTopic, describe_configs
from ottla.client.cluster import Cluster
from ottla.client.consumer import Consumer, ConsumerOptions
from ottla.client.metadata import TopicInfo
from ottla.client.offsets import OffsetBounds, offset_bounds
from ottla.client.producer import Producer, ProducerOptions, RecordGroup
from ottla.core.clock import Clock
from ottla.core.ids import TopicPartition
from ottla.core.settings import ConfigResourceType
from ottla.records.batch import BatchHeader
from ottla.records.builder import NewRecord

_SOURCE_TOPIC = next(number for number, name in CONFIG_SOURCES.items() if name == "topic")


async def clone_of(cluster: Cluster, source: TopicInfo, name: str) -> NewTopic:
    """Return a topic to create: with the partitions, the replicas and the settings of another one."""
    entries = await describe_configs(cluster, ConfigResourceType.TOPIC, source.name)
    return NewTopic(
        name,
        partitions=len(source.partitions),
        replication_factor=max((len(p.replicas) for p in source.partitions), default=-1),
        configs={
            entry.name: entry.value
            for entry in entries
            if entry.source == _SOURCE_TOPIC and entry.value is not None and not entry.sensitive
        },
    )


async def records_to_copy(cluster: Cluster, source: TopicInfo) -> dict[TopicPartition, OffsetBounds]:
    """Return the bounds of the committed records of a topic."""
    partitions = [TopicPartition(source.name, p.partition) for p in source.partitions]
    return await offset_bounds(cluster, partitions, read_committed=True)


async def copy_records(
    cluster: Cluster,
    bounds: dict[TopicPartition, OffsetBounds],
    target: str,
    *,
    clock: Clock,
    on_copied: Callable[[int], None] = lambda _: None,
) -> int:
    """Copy the committed records in these bounds to the same partitions of another topic; returns how many.

    Keys, values, headers, timestamps and the order within a partition are kept; offsets are new. The copy is compressed
    as the first batch is. `on_copied` gets the number of records that were read so far.
    """
    codecs = list[int]()

    def note_codec(_: TopicPartition, batch: BatchHeader) -> None:
        if not codecs and not batch.is_control:
            codecs.append(batch.codec)

    starts = {tp: span.start_offset for tp, span in bounds.items()}
    ends = {tp: span.end_offset for tp, span in bounds.items()}
    copied, groups, producer = 0, list[RecordGroup](), None
    options = ConsumerOptions(read_committed=True)
    try:
        async with Consumer(cluster, starts, end=ends, options=options, on_batch=note_codec) as consumer:
            async for tp, records in consumer.chunks():
                if producer is None:
                    producer = Producer(cluster, clock=clock, options=ProducerOptions(codec=codecs[0]))
                copies = [NewRecord(r.key, r.value, r.timestamp_ms, r.headers) for r in records]
                groups += await producer.send_many(target, copies, partitions=[tp.partition] * len(copies))
                groups = _unfinished(groups)
                copied += len(copies)
                on_copied(copied)
        if producer is not None:
            await producer.flush()
        _unfinished(groups)
    finally:
        if producer is not None:
            await producer.close(flush=False)
    return copied


def _unfinished(groups: Sequence[RecordGroup]) -> list[RecordGroup]:
    """Return the groups that are not written yet. Raises the error of one that failed."""
    for group in groups:
        if group.error is not None:
            raise group.error
    return [group for group in groups if not group.done.done()]
