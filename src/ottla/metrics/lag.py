"""Computes the lag of the groups that this broker coordinates, in records and in seconds, at each scrape.

The rules are those of `ottla group lag` (client/group_lag.py): what a group has not read begins at its commit, or at
the first record that is left; a lag in seconds is the age of the first committed record that it has not read. An age is
looked up in the log once for each position, and kept while the group has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

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


class _Place(NamedTuple):
    """Holds a partition of a group before its end is known."""

    where: TopicPartition
    committed: int | None
    acknowledged: int = 0  # of a share group: records after the position that it is done with


class GroupLags:
    """Reads the groups of this broker. Lives as long as the broker, for the ages that it keeps."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._remote = RemotePartitions(services.nodes.connect_to)
        services.cluster.subscribe(self._follow)
        self._timestamps: dict[tuple[TopicPartition, int], int] = {}  # of first unread records, by position
        self.groups: list[GroupLag] = []

    def _follow(self, old: ClusterView, new: ClusterView) -> None:
        self._remote.follow(old, new)

    async def close(self) -> None:
        """Close the connections to other brokers."""
        await self._remote.close()

    async def read(self, view: ClusterView) -> None:
        """Read all groups, in slices of the loop."""
        self.groups = []
        if OFFSETS_TOPIC not in view.topics:
            return
        groups: list[tuple[GroupRuntime, Members, list[_Place]]] = []
        slices = self._services.slices
        for shard in self._services.coordinators.groups.led.ready_shards():
            async for runtime in slices.each(list(shard.groups()), work=5):
                members = members_of(runtime.group, view)
                places = await self._places(runtime, members, view)
                if slices.spend(len(places)):
                    await slices.yield_to_loop()
                groups.append((runtime, members, places))
        ends = await self._ends(view, {place.where for _, _, places in groups for place in places})
        await self._look_up(view, groups, ends)
        now_ms = self._services.clock.wall_ms()
        kept: dict[tuple[TopicPartition, int], int] = {}
        async for runtime, members, places in slices.each(groups, work=3):
            lags = []
            for place in places:
                if (end := ends.get(place.where)) is None:
                    continue
                position = first_unread(place.committed, end.log_start)
                records = max(0, end.end - position - place.acknowledged)
                seconds: float | None = 0.0
                if records:
                    timestamp_ms = self._timestamps.get((place.where, position))
                    if timestamp_ms is None:
                        seconds = None
                    else:
                        kept[place.where, position] = timestamp_ms
                        seconds = age_seconds(now_ms, timestamp_ms)
                lags.append(PartitionLag(place.where, place.committed, records, seconds))
            self.groups.append(GroupLag(runtime.group, members, runtime.offsets.changes, lags))
        self._timestamps = kept

    async def _places(self, runtime: GroupRuntime, members: Members, view: ClusterView) -> list[_Place]:
        """Return the partitions of a group: all of each topic of which it has one."""
        group = runtime.group
        if isinstance(group, ShareGroup):
            return await self._share_places(group, view)
        committed = runtime.offsets
        topics = {partition.topic for partition in committed} | {partition.topic for partition in members.partitions}
        places = []
        for topic in topics:
            if topic in view.topics:
                for index in range(len(view.topics[topic].partitions)):
                    where = TopicPartition(topic, index)
                    stored = committed.get(where)
                    places.append(_Place(where, None if stored is None else stored.offset))
        return places

    async def _share_places(self, group: ShareGroup, view: ClusterView) -> list[_Place]:
        try:
            states = await self._services.coordinators.share_groups.offsets(group.group_id, None)
        except KafkaError:
            return []
        places = []
        for (topic_id, index), state in states.items():
            topic = view.topic_by_id.get(topic_id.bytes)
            if topic is not None and not isinstance(state, KafkaError) and state.start_offset >= 0:
                where = TopicPartition(topic.name, index)
                acknowledged = max(0, state.delivery_complete_count)
                places.append(_Place(where, state.start_offset, acknowledged=acknowledged))
        return places

    async def _ends(self, view: ClusterView, partitions: set[TopicPartition]) -> dict[TopicPartition, Ends]:
        own, ends_of, others = self._services.replicas.partitions, dict[TopicPartition, Ends](), []
        for where in partitions:
            partition = own.get(where)
            if partition is not None and partition.is_serving:
                end = min(partition.last_stable_offset, partition.high_watermark)
                ends_of[where] = Ends(partition.log.log_start_offset, end)
            else:
                others.append(where)
        if others:
            ends_of |= await self._remote.ends(view, others)
        return ends_of

    async def _look_up(
        self,
        view: ClusterView,
        groups: list[tuple[GroupRuntime, Members, list[_Place]]],
        ends: Mapping[TopicPartition, Ends],
    ) -> None:
        """Find the timestamps of first unread records that are not known."""
        own, slices = self._services.replicas.partitions, self._services.slices
        remote: list[dict[TopicPartition, int]] = []
        asked = {
            (place.where, position)
            for _, _, places in groups
            for place in places
            if (end := ends.get(place.where)) is not None
            and (position := first_unread(place.committed, end.log_start)) < end.end
        }
        async for where, position in slices.each(asked - self._timestamps.keys(), work=_LOOK_UP_WORK):
            partition = own.get(where)
            if partition is None or not partition.is_serving:
                _add_to_first(remote, where, position)
                continue
            try:
                timestamp_ms = timestamp_at(partition, position)
            except KafkaError:
                continue
            if timestamp_ms is not None and timestamp_ms >= 0:
                self._timestamps[where, position] = timestamp_ms
        for positions in remote:
            for where, timestamp_ms in (await self._remote.timestamps(view, positions)).items():
                self._timestamps[where, positions[where]] = timestamp_ms


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
