"""Computes the lag of consumer groups: in messages for many groups at once, and in seconds for one.

A partition without a committed offset counts too, from its first record, if the group has commits in another partition
of the topic or a member to which the partition is assigned: a consumer that never committed there has not read it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ottla.client import groups, share_groups
from ottla.client.cluster import Cluster
from ottla.client.consumer import Consumer, ConsumerOptions
from ottla.client.groups import GroupDescription, OffsetAndMetadata
from ottla.client.offsets import OffsetBounds, available_bounds
from ottla.core.clock import SystemClock
from ottla.core.errors import KafkaError
from ottla.core.ids import GroupType, TopicPartition


def first_unread(committed: int | None, log_start: int) -> int:
    """Return the first offset that a group has not read, of those still kept; without a commit that is the first.

    >>> first_unread(None, 7), first_unread(3, 7), first_unread(9, 7)
    (7, 7, 9)
    """
    return log_start if committed is None else max(committed, log_start)


def age_seconds(now_ms: int, timestamp_ms: int) -> float:
    """Return the age of a record; a timestamp in the future has none."""
    return max(0.0, (now_ms - timestamp_ms) / 1000)


_FIRST_RECORD_S = 5.0  # how long to read the first unread record; after that its age is unknown
_AT_ONCE = 32  # groups that are described at the same time


@dataclass(slots=True)
class GroupLag:
    """The partitions of a group: committed offsets, members, and the bounds of the logs."""

    group: GroupDescription
    committed: Mapping[TopicPartition, OffsetAndMetadata]
    partitions: list[TopicPartition] = field(default_factory=list)
    bounds: Mapping[TopicPartition, OffsetBounds] = field(default_factory=dict)
    unknown: Mapping[TopicPartition, str] = field(default_factory=dict)  # partitions without bounds, and why

    @property
    def owners(self) -> dict[TopicPartition, str]:
        """Return the member of each assigned partition."""
        return {tp: member.member_id for member in self.group.members for tp in member.partitions}

    def position(self, tp: TopicPartition) -> int:
        """Return the first offset that the group has not read, of those still kept."""
        return first_unread(self.committed[tp].offset if tp in self.committed else None, self.bounds[tp].start_offset)

    def lag_of(self, tp: TopicPartition) -> int | None:
        """Return the records that the group has not read; None for a partition whose bounds are unknown."""
        return max(0, self.bounds[tp].end_offset - self.position(tp)) if tp in self.bounds else None

    @property
    def lag(self) -> int | None:
        """Return the sum over the partitions; None if there are none."""
        lags = [lag for tp in self.partitions if (lag := self.lag_of(tp)) is not None]
        return sum(lags) if lags else None


async def describe_lags(cluster: Cluster, names: Sequence[str]) -> dict[str, GroupLag | KafkaError]:
    """Describe groups with their lag; the value is the error of a group that cannot be described."""
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def one(name: str) -> GroupLag | KafkaError:
        async with at_once:
            try:
                group = await groups.describe_group(cluster, name)
                return GroupLag(group, await offsets_of(cluster, group))
            except KafkaError as error:
                return error

    lags = dict(zip(names, await asyncio.gather(*(one(name) for name in names)), strict=True))
    described = [lag for lag in lags.values() if isinstance(lag, GroupLag)]
    existing = await _partitions_of(cluster, {tp.topic for lag in described for tp in (*lag.committed, *lag.owners)})
    for lag in described:
        seen = {*lag.committed, *lag.owners}
        topics = {tp.topic for tp in seen}
        lag.partitions = sorted({*seen, *(tp for tp in existing if tp.topic in topics)})
    bounds, unknown = await available_bounds(cluster, existing, read_committed=True)
    for lag in described:
        lag.bounds, lag.unknown = bounds, unknown
    return lags


async def offsets_of(cluster: Cluster, group: GroupDescription) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return a group's committed offsets, or the start offsets of a share group."""
    if group.kind is GroupType.SHARE:
        return await share_groups.start_offsets(cluster, group.group_id)
    return await groups.committed_offsets(cluster, group.group_id)


async def _partitions_of(cluster: Cluster, topics: set[str]) -> list[TopicPartition]:
    """Return the partitions of these topics; deleted topics may still have committed offsets."""
    info = await cluster.refresh(topics)
    return [TopicPartition(topic.name, p.partition) for topic in info.topics.values() for p in topic.partitions]


async def lag_seconds(cluster: Cluster, lag: GroupLag, *, now_ms: int | None = None) -> dict[TopicPartition, float]:
    """Return the age of the first unread record of each partition that has one with a timestamp."""
    now_ms = SystemClock().wall_ms() if now_ms is None else now_ms
    ages: dict[TopicPartition, float] = {tp: 0.0 for tp in lag.partitions if lag.lag_of(tp) == 0}
    lagging = {tp: lag.position(tp) for tp in lag.partitions if lag.lag_of(tp)}
    ends = {tp: lag.bounds[tp].end_offset for tp in lagging}
    left = set(lagging)
    options = ConsumerOptions(read_committed=True, partition_max_bytes=64 << 10, max_wait_s=0.1)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_FIRST_RECORD_S), Consumer(cluster, lagging, end=ends, options=options) as consumer:
            async for tp, records in consumer.chunks():
                if tp in left and records[0].timestamp_ms >= 0:
                    ages[tp] = age_seconds(now_ms, records[0].timestamp_ms)
                left.discard(tp)
                if not left:
                    break
    return ages
