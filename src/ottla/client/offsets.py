"""Lists the offsets of partitions: start, end, by timestamp. Deletes the records before an offset."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ottla.client.cluster import Cluster
from ottla.client.errors import raise_for
from ottla.core.ids import TopicPartition
from ottla.wire.apis import ApiKey

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
CONSUMER_REPLICA_ID = -1


@dataclass(frozen=True, slots=True)
class OffsetBounds:
    """The offsets that a partition holds for a reader: from `start_offset` up to, not including, `end_offset`."""

    start_offset: int
    end_offset: int

    def clamp(self, offset: int) -> int:
        """Return the nearest offset within the bounds; the end counts as within."""
        return min(max(offset, self.start_offset), self.end_offset)


class OffsetAndTimestamp(NamedTuple):
    """A result of ListOffsets: offset and timestamp are -1 where no record is that late."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


async def list_offsets(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], *, read_committed: bool = False
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """Return for each partition the offset at a timestamp in ms, or at EARLIEST, LATEST, MAX_TIMESTAMP.

    LATEST is the high watermark, or with `read_committed` the last stable offset. Raises the first partition's error.
    """
    stale = False

    async def attempt() -> dict[TopicPartition, OffsetAndTimestamp]:
        nonlocal stale
        fresh, stale = stale, True
        grouped = await cluster.by_leader(wanted, fresh=fresh)
        asked = (
            _ask(cluster, node_id, {tp: wanted[tp] for tp in tps}, read_committed) for node_id, tps in grouped.items()
        )
        return {tp: found for part in await asyncio.gather(*asked) for tp, found in part.items()}

    return await cluster.retrying(attempt) if wanted else {}


async def beginning_offsets(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the first offset still kept in each partition."""
    found = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))
    return {tp: result.offset for tp, result in found.items()}


async def end_offsets(
    cluster: Cluster, partitions: Iterable[TopicPartition], *, read_committed: bool = False
) -> dict[TopicPartition, int]:
    """Return the offset after the last one that a consumer may read, for each partition."""
    found = await list_offsets(cluster, dict.fromkeys(partitions, LATEST), read_committed=read_committed)
    return {tp: result.offset for tp, result in found.items()}


async def offset_bounds(
    cluster: Cluster, partitions: Iterable[TopicPartition], *, read_committed: bool = False
) -> dict[TopicPartition, OffsetBounds]:
    """Return the current bounds of each partition; with `read_committed` they end at the last stable offset."""
    wanted = list(partitions)
    starts = await beginning_offsets(cluster, wanted)
    ends = await end_offsets(cluster, wanted, read_committed=read_committed)
    return {tp: OffsetBounds(starts[tp], max(starts[tp], ends[tp])) for tp in wanted}


async def delete_records(cluster: Cluster, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Delete the records before an offset (-1: all); returns the new start offset of each partition."""
    from ottla.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic

    async def attempt() -> dict[TopicPartition, int]:
        low_watermarks: dict[TopicPartition, int] = {}
        for node_id, tps in (await cluster.by_leader(before)).items():
            topics = [
                DeleteRecordsTopic(
                    name=topic,
                    partitions=[
                        DeleteRecordsPartition(partition_index=tp.partition, offset=before[tp]) for tp in group
                    ],
                )
                for topic, group in by_topic(tps).items()
            ]
            timeout_ms = int(cluster.options.request_timeout_s * 1000)
            ask = DeleteRecordsRequest(topics=topics, timeout_ms=timeout_ms)
            answer = await cluster.request(node_id, ApiKey.DELETE_RECORDS, ask)
            for topic in answer.topics:
                for partition in topic.partitions:
                    raise_for(partition.error_code, about=f"{topic.name}-{partition.partition_index}")
                    low_watermarks[TopicPartition(topic.name, partition.partition_index)] = partition.low_watermark
        return low_watermarks

    return await cluster.retrying(attempt)


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    """Group partitions by topic, as requests nest them."""
    grouped: dict[str, list[TopicPartition]] = {}
    for tp in partitions:
        grouped.setdefault(tp.topic, []).append(tp)
    return grouped


async def _ask(
    cluster: Cluster, node_id: int, wanted: Mapping[TopicPartition, int], read_committed: bool
) -> dict[TopicPartition, OffsetAndTimestamp]:
    from ottla.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

    topics = [
        ListOffsetsTopic(
            name=topic,
            partitions=[ListOffsetsPartition(partition_index=tp.partition, timestamp=wanted[tp]) for tp in group],
        )
        for topic, group in by_topic(wanted).items()
    ]
    ask = ListOffsetsRequest(
        replica_id=CONSUMER_REPLICA_ID,
        isolation_level=int(read_committed),
        topics=topics,
        timeout_ms=int(cluster.options.request_timeout_s * 1000),
    )
    answer = await cluster.request(node_id, ApiKey.LIST_OFFSETS, ask)
    found: dict[TopicPartition, OffsetAndTimestamp] = {}
    for topic in answer.topics:
        for partition in topic.partitions:
            tp = TopicPartition(topic.name, partition.partition_index)
            raise_for(partition.error_code, about=f"offsets of {tp}")
            found[tp] = OffsetAndTimestamp(partition.offset, partition.timestamp, partition.leader_epoch)
    return found
