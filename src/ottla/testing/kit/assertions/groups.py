"""Describes groups for a test's assertions: members, offsets, lag, and what a share group has delivered.

The coordinator's own state is read; no client joins, and no request is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from ottla.broker.services import Services
from ottla.client.consumer_protocol import MalformedConsumerProtocol, read_assignment, read_subscriptions
from ottla.core.errors import KafkaError
from ottla.core.ids import OFFSETS_TOPIC, TopicPartition
from ottla.groups.classic.group import ClassicGroup
from ottla.groups.consumer.group import ConsumerGroup
from ottla.groups.group_runtime import GroupRuntime
from ottla.groups.share.events import StateSummary
from ottla.groups.share.group import ShareGroup
from ottla.internal_topics.partitioning import partition_of
from ottla.metadata_store.cluster_view import ClusterView
from ottla.share_coordinator.records import SharePartitionKey
from ottla.share_partitions.share_partition import SharePartition
from ottla.testing.cluster import TestCluster
from ottla.testing.kit.assertions.committing import commit
from ottla.testing.kit.assertions.group_values import Delivery, GroupDescription, Member, PartitionLag
from ottla.testing.kit.assertions.lookups import UnknownGroup, leader_of, shards_of, topic_of, unknown, view_of
from ottla.testing.kit.assertions.topics import Call
from ottla.testing.kit.assertions.waiting import observed

T = TypeVar("T")


class Group:
    """One group, read again by each method. They raise UnknownGroup if it does not exist (yet)."""

    def __init__(self, group_id: str, call: Call) -> None:
        self.group_id, self._call = group_id, call

    def __repr__(self) -> str:
        return f"k.group({self.group_id!r})"

    def describe(self) -> GroupDescription:
        """Return all of the group at one moment."""
        return self._described("describe()", lambda group: group)

    @property
    def state(self) -> str:
        """Return the state by Kafka's name, such as Stable or Empty."""
        return self._described("state", lambda group: group.state)

    @property
    def type(self) -> str:
        """Return `classic`, `consumer` or `share`."""
        return self._described("type", lambda group: group.type)

    def members(self) -> tuple[Member, ...]:
        """Return the members."""
        return self._described("members()", lambda group: group.members)

    def offsets(self) -> dict[tuple[str, int], int]:
        """Return the committed offsets by (topic, partition); of a share group the starts of its partitions."""
        return self._described("offsets()", _offsets)

    def lags(self) -> dict[tuple[str, int], int]:
        """Return the lag by (topic, partition): of those with a committed offset, and of all topics of the members.

        It is the end offset less the committed one, as in Kafka's tools. Where nothing is committed yet it is all that
        the partition has. A marker of a transaction has an offset too.
        """
        return self._described("lags()", _lags)

    def lag(self, topic: str | None = None, partition: int | None = None) -> int:
        """Return the sum of the lags: of all partitions, of a topic's, or of one.

        Raises UnknownGroup, too, while there is no such partition: a group that has not begun has no lag of 0.
        """
        what = ", ".join(repr(name) for name in (topic, partition) if name is not None)
        return self._described(f"lag({what})", lambda group: _lag_of(group, topic, partition))

    def commit(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit offsets by (topic, partition), of a group that has no members: it goes on there, or begins.

        Raises UnknownTopic, and ValueError if it has members.
        """

        async def write(cluster: TestCluster) -> None:
            await commit(cluster, self.group_id, offsets)

        self._call(write)

    def deliveries(self) -> tuple[Delivery, ...]:
        """Return the records that a share group has in flight, with their states and delivery counts."""
        return self._delivered("deliveries()", lambda deliveries: deliveries)

    def acquired(self) -> int:
        """Return how many records the members of a share group hold."""
        return self._delivered(
            "acquired()", lambda deliveries: sum(one.count for one in deliveries if one.state == "acquired")
        )

    def _described(self, what: str, part: Callable[[GroupDescription], T]) -> T:
        async def describe(cluster: TestCluster) -> GroupDescription:
            return await describe_group(cluster, self.group_id)

        return observed(f"{self!r}.{what}", lambda: part(self._call(describe)), group=self.group_id)

    def _delivered(self, what: str, part: Callable[[tuple[Delivery, ...]], T]) -> T:
        async def read(cluster: TestCluster) -> tuple[Delivery, ...]:
            return await read_deliveries(cluster, self.group_id)

        return observed(f"{self!r}.{what}", lambda: part(self._call(read)), group=self.group_id)


def _offsets(group: GroupDescription) -> dict[tuple[str, int], int]:
    return {
        TopicPartition(part.topic, part.partition): part.committed
        for part in group.partitions
        if part.committed is not None
    }


def _lags(group: GroupDescription) -> dict[tuple[str, int], int]:
    return {TopicPartition(part.topic, part.partition): part.lag for part in group.partitions}


def _lag_of(group: GroupDescription, topic: str | None, partition: int | None) -> int:
    if topic is None:
        return group.lag
    lags = [part.lag for part in group.partitions if part.topic == topic and partition in {None, part.partition}]
    if not lags:
        where = topic if partition is None else f"{topic}-{partition}"
        raise UnknownGroup(f"group {group.group_id!r} has no offset of {where} yet, and no member that reads it")
    return sum(lags)


# ---- On the loop of the brokers


async def group_types(cluster: TestCluster) -> dict[str, str]:
    """Return the types of all groups by their ids. Raises NoLeader."""
    shards = await shards_of(cluster, OFFSETS_TOPIC, lambda services: services.coordinators.groups.led)
    groups = [runtime.group.summary for _, shard in shards for runtime in shard.groups()]
    return {group.group_id: group.type.value for group in sorted(groups)}


async def describe_group(cluster: TestCluster, group_id: str) -> GroupDescription:
    """Describe a group. Raises NotFound."""
    services, runtime = await _runtime(cluster, group_id)
    view, summary = view_of(cluster), runtime.group.summary
    is_share = isinstance(runtime.group, ShareGroup)
    if isinstance(runtime.group, ShareGroup):
        starts = await _share_starts(services, runtime.group, view)
    else:
        starts = {where: _Start(committed.offset) for where, committed in runtime.offsets.items()}
    subscribed = _subscribed_topics(runtime)
    lags = []
    for topic in sorted({where.topic for where in starts} | subscribed):
        for partition in view.topics[topic].partitions if topic in view.topics else ():
            where = TopicPartition(topic, partition.index)
            if where in starts or topic in subscribed:
                lags.append(await _lag(cluster, group_id, where, starts.get(where), is_share=is_share))
    return GroupDescription(
        group_id=group_id,
        type=summary.type.value,
        state=summary.state,
        members=tuple(_members(runtime, view)),
        partitions=tuple(lags),
    )


async def _runtime(cluster: TestCluster, group_id: str) -> tuple[Services, GroupRuntime]:
    """Find a group at its coordinator. Raises NotFound."""
    shards = await shards_of(cluster, OFFSETS_TOPIC, lambda services: services.coordinators.groups.led)
    if shards:
        services, shard = shards[partition_of(group_id, len(shards))]
        runtime = shard.find(group_id)
        if runtime is not None and not runtime.is_being_deleted:
            return services, runtime
    raise unknown(UnknownGroup, "group", group_id, await group_types(cluster))


def _subscribed_topics(runtime: GroupRuntime) -> frozenset[str]:
    """Return the topics that members of a group consume, as far as they have reported."""
    group = runtime.group
    if isinstance(group, ConsumerGroup | ShareGroup):
        return group.topics()
    assert isinstance(group, ClassicGroup)
    if not group.members.by_id or not group.has_consumers:
        return frozenset()
    if group.topics:
        return group.topics
    reported = [metadata for member in group.members.by_id.values() for _, metadata in member.protocols[:1]]
    return read_subscriptions(reported) or frozenset()  # the first generation is being formed


def _members(runtime: GroupRuntime, view: ClusterView) -> Iterable[Member]:
    group = runtime.group
    if isinstance(group, ClassicGroup):
        for classic in group.members.by_id.values():
            yield Member(
                member_id=classic.member_id,
                client_id=classic.client_id,
                host=classic.client_host,
                instance_id=classic.instance_id,
                assignment=_classic_assignment(classic.assignment) if group.has_consumers else (),
            )
        return
    assert isinstance(group, ConsumerGroup | ShareGroup)
    for member in group.members.values():
        yield Member(
            member_id=member.member_id,
            client_id=member.client_id,
            host=member.client_host,
            instance_id=getattr(member, "instance_id", None),  # members of share groups have none
            assignment=tuple(sorted(_named(member.assigned, view))),
        )


def _classic_assignment(assignment: bytes) -> tuple[TopicPartition, ...]:
    try:
        return tuple(sorted(read_assignment(assignment)))
    except MalformedConsumerProtocol:
        return ()


def _named(assigned: Mapping[UUID, Iterable[int]], view: ClusterView) -> Iterable[TopicPartition]:
    for topic_id, partitions in assigned.items():
        topic = view.topic_by_id.get(topic_id.bytes)
        if topic is not None:
            yield from (TopicPartition(topic.name, partition) for partition in partitions)


# ---- Lag


@dataclass(frozen=True, slots=True)
class _Start:
    """The position of a group in a partition, and how many records after it are done (of share groups)."""

    offset: int
    done: int = 0


async def _lag(
    cluster: TestCluster, group_id: str, where: TopicPartition, start: _Start | None, *, is_share: bool
) -> PartitionLag:
    led = await leader_of(cluster, where)
    if is_share:
        share = _share_partition(led.services, group_id, where)
        if share is not None and share.progress is not None:
            start = _Start(*share.progress)
    log_start, end = led.partition.log.log_start_offset, led.partition.high_watermark
    left = end - log_start if start is None else end - max(start.offset, log_start) - start.done
    return PartitionLag(
        topic=where.topic,
        partition=where.partition,
        committed=None if start is None else start.offset,
        end=end,
        lag=max(0, left),
    )


async def _share_starts(services: Services, group: ShareGroup, view: ClusterView) -> dict[TopicPartition, _Start]:
    """Return where a share group is, as its share coordinator keeps it."""
    starts = {}
    for (topic_id, index), found in (await services.coordinators.share_groups.offsets(group.group_id, None)).items():
        topic = view.topic_by_id.get(topic_id.bytes)
        if isinstance(found, KafkaError):
            raise found
        assert isinstance(found, StateSummary)
        if topic is not None and found.start_offset >= 0:
            starts[TopicPartition(topic.name, index)] = _Start(found.start_offset, found.delivery_complete_count)
    return starts


def _share_partition(services: Services, group_id: str, where: TopicPartition) -> SharePartition | None:
    """Return a share partition at the partition's leader, if members use it."""
    topic = services.cluster.current.topics.get(where.topic)
    if topic is None:
        return None
    found = services.coordinators.share_partitions.find(SharePartitionKey(group_id, topic.topic_id, where.partition))
    return None if found is None or found.failure is not None else found


async def read_deliveries(cluster: TestCluster, group_id: str) -> tuple[Delivery, ...]:
    """Read what a share group has in flight. Raises NotFound."""
    group = (await _runtime(cluster, group_id))[1].group
    if not isinstance(group, ShareGroup):
        raise UnknownGroup(f"group {group_id!r} is no share group, but a {group.summary.type.value} group")
    deliveries: list[Delivery] = []
    for topic in sorted({*group.topics(), *group.names.values()}):
        for partition in topic_of(cluster, topic).partitions:
            where = TopicPartition(topic, partition.index)
            share = _share_partition((await leader_of(cluster, where)).services, group_id, where)
            deliveries += [
                Delivery(
                    topic=topic,
                    partition=partition.index,
                    first_offset=each.first,
                    last_offset=each.last,
                    state=each.state.name.lower(),
                    delivery_count=each.delivery_count,
                    member_id=each.member or None,
                )
                for each in (() if share is None else share.ranges())
            ]
    return tuple(deliveries)
