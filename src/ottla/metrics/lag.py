"""Computes the lag of the groups that this broker coordinates, in records and in seconds, at each scrape.

The rules are those of `ottla group lag` (client/group_lag.py): what a group has not read begins at its commit, or at
the first record that is left; a lag in seconds is the age of the first committed record that it has not read. An age is
looked up in the log once for each position, and kept while the group has it, but for logs that are compacted. A share
group reads what is not committed, too (KIP-932): its lag ends at the high watermark, as in DescribeShareGroupOffsets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

from ottla.broker.services import Services
from ottla.client.consumer_protocol import MalformedConsumerProtocol, read_assignment
from ottla.client.group_lag import age_seconds, first_unread
from ottla.core.errors import KafkaError
from ottla.core.ids import OFFSETS_TOPIC, TopicPartition
from ottla.groups.classic.group import ClassicGroup
from ottla.groups.consumer.group import ConsumerGroup
from ottla.groups.group import Group
from ottla.groups.group_runtime import GroupRuntime
from ottla.groups.share.group import ShareGroup
from ottla.metadata_store.cluster_view import ClusterView
from ottla.metrics.first_record import timestamp_at
from ottla.metrics.remote_partitions import Ends, RemotePartitions

_LOOK_UP_WORK = 20
"""Units of work of reading a batch."""

_NONE: Final[Mapping[int, int]] = {}
SharePosition: TypeAlias = tuple[int, int]
"""The first offset of a share partition that is not done with, and the records after it that are."""


class PartitionLag(NamedTuple):
    """Holds how far a group is in one partition."""

    where: TopicPartition
    committed: int | None
    records: int
    seconds: float | None  # None: the first unread record is not known


class Members(NamedTuple):
    """Holds how many members a group has, and which partitions they have."""

    members: int
    without_partitions: int
    partitions: Mapping[TopicPartition, str]  # with the member's id


class GroupLag(NamedTuple):
    """Holds a group with its partitions."""

    group: Group
    members: Members
    commits: int  # of offsets, since the log was loaded from its start
    partitions: list[PartitionLag]


class _TopicEnds(NamedTuple):
    """Holds the partitions of a topic, which groups have in common, and what can be read of each; None: not known."""

    partitions: list[TopicPartition]
    ends: list[Ends | None]


class _Read(NamedTuple):
    """Holds what is known of a group before its lag is computed."""

    runtime: GroupRuntime
    members: Members
    topics: list[str]  # of which it has a partition or a commit
    shares: Mapping[TopicPartition, SharePosition] | None  # of a share group, instead of commits

    @property
    def is_share(self) -> bool:
        """Return whether it is a share group."""
        return self.shares is not None

    def end_of(self, ends: Ends) -> int:
        """Return where the records end that it can read."""
        return ends.end if self.shares is None else ends.high_watermark

    def position(self, where: TopicPartition) -> tuple[int | None, int]:
        """Return what the group has committed, and how many records after that it is done with."""
        if self.shares is None:
            stored = self.runtime.offsets.get(where)
            return None if stored is None else stored.offset, 0
        return self.shares[where]


class _Timestamps(NamedTuple):
    """Holds the timestamps of first unread records, by partition and position."""

    committed: dict[TopicPartition, dict[int, int]]
    of_share_groups: dict[TopicPartition, dict[int, int]]

    def of(self, *, is_share: bool) -> dict[TopicPartition, dict[int, int]]:
        """Return those for groups of a kind: at the same position they may read different records first."""
        return self.of_share_groups if is_share else self.committed


class GroupLags:
    """Reads the groups of this broker. Lives as long as the broker, for the ages that it keeps."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._remote = RemotePartitions(services.nodes.connect_to)
        services.cluster.subscribe(self._follow)
        self._timestamps = _Timestamps({}, {})
        self._compacted: Collection[str] = ()
        self.groups: list[GroupLag] = []

    def _follow(self, old: ClusterView, new: ClusterView) -> None:
        self._remote.follow(old, new)

    async def close(self) -> None:
        """Close the connections to other brokers."""
        await self._remote.close()

    async def read(self, view: ClusterView) -> None:
        """Read all groups, in slices of the loop."""
        self.groups = []
        self._compacted = _compacted(view, self._services.config.log.cleanup_policy)
        if OFFSETS_TOPIC not in view.topics:
            return
        groups: list[_Read] = []
        slices = self._services.slices
        for shard in self._services.coordinators.groups.led.ready_shards():
            async for runtime in slices.each(list(shard.groups()), work=2):
                read = await self._read_group(runtime, view)
                groups.append(read)
                if slices.spend(len(read.members.partitions) // 4):
                    await slices.yield_to_loop()
        topics = await self._ends(
            view,
            {topic for read in groups for topic in read.topics},
            {topic for read in groups if read.is_share for topic in read.topics},
        )
        await self._look_up(view, groups, topics)
        now_ms = self._services.clock.wall_ms()
        kept = _Timestamps({}, {})
        async for read in slices.each(groups):
            lags = self._lags(read, topics, now_ms, kept)
            self.groups.append(GroupLag(read.runtime.group, read.members, read.runtime.offsets.changes, lags))
            if slices.spend(len(lags) // 2):
                await slices.yield_to_loop()
        self._timestamps = kept

    async def _read_group(self, runtime: GroupRuntime, view: ClusterView) -> _Read:
        """Return a group with all topics of which it has a partition."""
        group = runtime.group
        members = members_of(group, view)
        if isinstance(group, ShareGroup):
            shares = await self._share_positions(group, view)
            return _Read(runtime, members, sorted({where.topic for where in shares}), shares)
        names = {where.topic for where in runtime.offsets}
        names.update(where.topic for where in members.partitions)
        return _Read(runtime, members, [name for name in names if name in view.topics], None)

    async def _share_positions(self, group: ShareGroup, view: ClusterView) -> dict[TopicPartition, SharePosition]:
        try:
            states = await self._services.coordinators.share_groups.offsets(group.group_id, None)
        except KafkaError:
            return {}
        positions = {}
        for (topic_id, index), state in states.items():
            topic = view.topic_by_id.get(topic_id.bytes)
            if topic is not None and not isinstance(state, KafkaError) and state.start_offset >= 0:
                where = TopicPartition(topic.name, index)
                positions[where] = state.start_offset, max(0, state.delivery_complete_count)
        return positions

    def _lags(
        self, read: _Read, topics: Mapping[str, _TopicEnds], now_ms: int, keep: _Timestamps
    ) -> list[PartitionLag]:
        """Compute the lag of a group in all partitions whose ends are known, and keep the timestamps that it needs."""
        lags = []
        known, kept = self._timestamps.of(is_share=read.is_share), keep.of(is_share=read.is_share)
        for where, end in _partitions(read, topics):
            committed, done = read.position(where)
            position = first_unread(committed, end.log_start)
            records = max(0, read.end_of(end) - position - done)
            seconds: float | None = 0.0
            if records:
                timestamp_ms = known.get(where, _NONE).get(position)
                if timestamp_ms is None:
                    seconds = None
                else:
                    if where.topic not in self._compacted:
                        kept.setdefault(where, {})[position] = timestamp_ms
                    seconds = age_seconds(now_ms, timestamp_ms)
            lags.append(PartitionLag(where, committed, records, seconds))
        return lags

    async def _ends(self, view: ClusterView, names: set[str], of_shares: set[str]) -> dict[str, _TopicEnds]:
        """Return the ends of the partitions of these topics; `of_shares`: those of which share groups read some."""
        own, topics, others = self._services.replicas.partitions, dict[str, _TopicEnds](), list[TopicPartition]()
        slices = self._services.slices
        async for name in slices.each(names):
            if name not in view.topics:
                continue
            known = topics[name] = _TopicEnds([], [])
            for index in range(len(view.topics[name].partitions)):
                where = TopicPartition(name, index)
                partition = own.get(where)
                end: Ends | None = None
                if partition is not None and partition.is_serving:
                    where = partition.topic_partition  # not another one for the same
                    end = Ends(partition.log.log_start_offset, partition.last_stable_offset, partition.high_watermark)
                else:
                    others.append(where)
                known.partitions.append(where)
                known.ends.append(end)
            if slices.spend(len(known.ends) // 3):
                await slices.yield_to_loop()
        if others:
            for (name, index), answered in (await self._remote.ends(view, others, of_shares)).items():
                topics[name].ends[index] = answered
        return topics

    async def _look_up(self, view: ClusterView, groups: list[_Read], topics: Mapping[str, _TopicEnds]) -> None:
        """Find the timestamps of first unread records that are not known."""
        asked: tuple[set[tuple[TopicPartition, int]], set[tuple[TopicPartition, int]]] = (set(), set())
        async for read in self._services.slices.each(groups):
            known = self._timestamps.of(is_share=read.is_share)
            for where, end in _partitions(read, topics):
                position = first_unread(read.position(where)[0], end.log_start)
                if position < read.end_of(end) and position not in known.get(where, _NONE):
                    asked[read.is_share].add((where, position))
            if self._services.slices.spend(len(read.topics) * 2):
                await self._services.slices.yield_to_loop()
        for is_share in (False, True):
            await self._look_up_at(view, asked[is_share], is_share=is_share)

    async def _look_up_at(
        self, view: ClusterView, positions: set[tuple[TopicPartition, int]], *, is_share: bool
    ) -> None:
        own, slices = self._services.replicas.partitions, self._services.slices
        timestamps = self._timestamps.of(is_share=is_share)
        remote: list[dict[TopicPartition, int]] = []
        async for where, position in slices.each(positions, work=_LOOK_UP_WORK):
            partition = own.get(where)
            if partition is None or not partition.is_serving:
                _add_to_first(remote, where, position)
                continue
            try:
                timestamp_ms = timestamp_at(partition, position, committed_only=not is_share)
            except KafkaError:
                continue
            if timestamp_ms is not None and timestamp_ms >= 0:
                timestamps.setdefault(where, {})[position] = timestamp_ms
        for asked in remote:
            answered = await self._remote.timestamps(view, asked, committed_only=not is_share)
            for where, timestamp_ms in answered.items():
                timestamps.setdefault(where, {})[asked[where]] = timestamp_ms


def _compacted(view: ClusterView, default_policy: Collection[str]) -> Collection[str]:
    """Return the topics in which another record may become the first at a position: compaction removes any."""
    by_default = "compact" in default_policy
    return {
        name
        for name, topic in view.topics.items()
        if ("compact" in policy if (policy := topic.config.get("cleanup.policy")) else by_default)
    }


def _partitions(read: _Read, topics: Mapping[str, _TopicEnds]) -> Iterator[tuple[TopicPartition, Ends]]:
    """Yield the partitions of a group whose ends are known: all of each of its topics; of share groups those it has."""
    for name in read.topics:
        known = topics.get(name)
        if known is not None:
            for where, end in zip(known.partitions, known.ends, strict=True):
                if end is not None and (read.shares is None or where in read.shares):
                    yield where, end


def _add_to_first(remote: list[dict[TopicPartition, int]], where: TopicPartition, position: int) -> None:
    """Add a position to the first request that does not have the partition: groups have several."""
    for positions in remote:
        if where not in positions:
            positions[where] = position
            return
    remote.append({where: position})


def members_of(group: Group, view: ClusterView) -> Members:
    """Return the members of a group of any type, with what they have."""
    owned: dict[TopicPartition, str] = {}
    idle = 0
    if isinstance(group, ClassicGroup):
        for member in group.members.by_id.values():
            try:
                partitions = read_assignment(member.assignment) if group.protocol_type == "consumer" else []
            except MalformedConsumerProtocol:
                partitions = []
            owned.update(dict.fromkeys(partitions, member.member_id))
            idle += not partitions
        return Members(len(group.members), idle, owned)
    if isinstance(group, ConsumerGroup | ShareGroup):
        for member_id, modern in group.members.items():
            for topic_id, indexes in modern.assigned.items():
                topic = view.topic_by_id.get(topic_id.bytes)
                if topic is not None:
                    owned.update({TopicPartition(topic.name, index): member_id for index in indexes})
            idle += not modern.assigned
        return Members(len(group.members), idle, owned)
    return Members(0, 0, owned)
