"""Lists the offsets of partitions: start, end, by timestamp. Deletes the records before an offset."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ottla.client.cluster import Cluster
from ottla.client.errors import CannotConnect, error_or_none, raise_for
from ottla.core.errors import KafkaError, error_for
from ottla.core.ids import TopicPartition
from ottla.wire.apis import ApiKey

if TYPE_CHECKING:
    from ottla.wire.generated.delete_records import DeleteRecordsResponse
    from ottla.wire.generated.list_offsets import ListOffsetsResponse

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
CONSUMER_REPLICA_ID = -1
_PATIENCE_S, _PAUSE_S = 3.0, 0.1


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
        offsets: dict[TopicPartition, OffsetAndTimestamp] = {}
        for part in await asyncio.gather(*asked):
            for tp, found in part.items():
                if isinstance(found, KafkaError):
                    raise error_for(found.code, f"offsets of {tp}: {found.message}")
                offsets[tp] = found
        return offsets

    return await cluster.retrying(attempt) if wanted else {}


async def beginning_offsets(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the first offset still kept in each partition."""
    timestamps = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))
    return {tp: result.offset for tp, result in timestamps.items()}


async def end_offsets(
    cluster: Cluster, partitions: Iterable[TopicPartition], *, read_committed: bool = False
) -> dict[TopicPartition, int]:
    """Return the offset after the last one that a consumer may read, for each partition."""
    timestamps = await list_offsets(cluster, dict.fromkeys(partitions, LATEST), read_committed=read_committed)
    return {tp: result.offset for tp, result in timestamps.items()}


async def offset_bounds(
    cluster: Cluster, partitions: Iterable[TopicPartition], *, read_committed: bool = False
) -> dict[TopicPartition, OffsetBounds]:
    """Return the current bounds of each partition; with `read_committed` they end at the last stable offset."""
    topic_partitions = list(partitions)
    starts = await beginning_offsets(cluster, topic_partitions)
    ends = await end_offsets(cluster, topic_partitions, read_committed=read_committed)
    return {tp: OffsetBounds(starts[tp], max(starts[tp], ends[tp])) for tp in topic_partitions}


async def available_bounds(
    cluster: Cluster, partitions: Iterable[TopicPartition], *, read_committed: bool = False
) -> tuple[dict[TopicPartition, OffsetBounds], dict[TopicPartition, str]]:
    """Return the bounds of the partitions whose leaders answer soon; and of the others the reason.

    Right after the death of a broker clients still know it as the leader of its partitions.
    """
    loop, bounds, refused = (
        asyncio.get_running_loop(),
        dict[TopicPartition, OffsetBounds](),
        dict[TopicPartition, str](),
    )
    give_up_s, left = loop.time() + _PATIENCE_S, set(partitions)
    while left:
        by_leader, without = await _leaders(cluster, left)
        refused |= without
        left.difference_update(without)
        asked = (_bounds_by(cluster, node, tps, read_committed, give_up_s) for node, tps in by_leader.items())
        for part in await asyncio.gather(*asked):
            for tp, found in part.items():
                if isinstance(found, OffsetBounds):
                    bounds[tp] = found
                    refused.pop(tp, None)
                    left.discard(tp)
                else:
                    refused[tp] = found
        if not left or loop.time() + _PAUSE_S >= give_up_s:
            break
        await asyncio.sleep(_PAUSE_S)
    return bounds, refused


async def _leaders(
    cluster: Cluster, partitions: Iterable[TopicPartition]
) -> tuple[dict[int, list[TopicPartition]], dict[TopicPartition, str]]:
    """Group partitions by their leader of now; and return those without one, with the reason."""
    topic_partitions = sorted(partitions)
    info = await cluster.refresh({tp.topic for tp in topic_partitions})
    leaders = {TopicPartition(t.name, p.partition): p.leader_id for t in info.topics.values() for p in t.partitions}
    grouped: dict[int, list[TopicPartition]] = {}
    for tp in topic_partitions:
        if leaders.get(tp, -1) >= 0:
            grouped.setdefault(leaders[tp], []).append(tp)
    return grouped, {
        tp: "it has no leader" if tp in leaders else "it does not exist"
        for tp in topic_partitions
        if leaders.get(tp, -1) < 0
    }


async def _bounds_by(
    cluster: Cluster, node_id: int, partitions: list[TopicPartition], read_committed: bool, give_up_s: float
) -> dict[TopicPartition, OffsetBounds | str]:
    """Ask one leader; the value is the reason for a partition that it does not serve."""
    try:
        async with asyncio.timeout_at(give_up_s):
            starts = await _ask(cluster, node_id, dict.fromkeys(partitions, EARLIEST), False)
            ends = await _ask(cluster, node_id, dict.fromkeys(partitions, LATEST), read_committed)
    except TimeoutError:
        return dict.fromkeys(partitions, f"broker {node_id} does not answer")
    except CannotConnect as error:
        return dict.fromkeys(partitions, str(error))
    except KafkaError as error:
        return dict.fromkeys(partitions, error.message)
    found: dict[TopicPartition, OffsetBounds | str] = {}
    for tp in partitions:
        start, end = starts[tp], ends[tp]
        if isinstance(start, KafkaError):
            found[tp] = start.message
        elif isinstance(end, KafkaError):
            found[tp] = end.message
        else:
            found[tp] = OffsetBounds(start.offset, max(start.offset, end.offset))
    return found


async def delete_records(cluster: Cluster, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Delete the records before an offset (-1: all); returns the new start offset of each partition."""
    from ottla.wire.generated.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic

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
            answer: DeleteRecordsResponse = await cluster.request(node_id, ApiKey.DELETE_RECORDS, ask)
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
) -> dict[TopicPartition, OffsetAndTimestamp | KafkaError]:
    from ottla.wire.generated.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

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
    answer: ListOffsetsResponse = await cluster.request(node_id, ApiKey.LIST_OFFSETS, ask)
    found: dict[TopicPartition, OffsetAndTimestamp | KafkaError] = {}
    for topic in answer.topics:
        for partition in topic.partitions:
            tp = TopicPartition(topic.name, partition.partition_index)
            error = error_or_none(partition.error_code)
            found[tp] = error or OffsetAndTimestamp(partition.offset, partition.timestamp, partition.leader_epoch)
    return found
