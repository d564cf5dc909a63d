"""Measures what happens in a cluster by differences of offsets: rates of topics, groups and their members.

Every broker that speaks Kafka's protocol has these numbers. A snapshot is a few requests to each broker, and one for
each group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ottla.client.admin import list_topics
from ottla.client.cluster import Cluster
from ottla.client.group_lag import GroupLag, describe_lags
from ottla.client.groups import list_groups
from ottla.client.offsets import available_bounds
from ottla.core.clock import Clock
from ottla.core.ids import TopicPartition

Names = Callable[[Sequence[str]], Sequence[str]]
"""Selects names of all that exist."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Offsets at a time: the end of each partition, and the positions of the groups."""

    at_s: float  # of a monotonic clock
    wall_ms: int
    brokers: int
    ends: Mapping[TopicPartition, int]
    groups: Mapping[str, GroupLag]


@dataclass(frozen=True, slots=True)
class TopicActivity:
    """The records a second that are written to a topic, and how they are spread."""

    topic: str
    partitions: int
    written_per_s: float
    busiest_share: float | None  # of its partition with the most new records; None without new records


@dataclass(frozen=True, slots=True)
class GroupActivity:
    """The records a second that a group reads, as far as it commits, and its lag."""

    group: str
    state: str
    members: int
    read_per_s: float
    written_per_s: float  # to the partitions that it reads
    lag: int | None
    lag_change: int | None

    @property
    def catches_up_s(self) -> float | None:
        """Return when there will be no lag if both rates stay as they are; None if it does not become less."""
        if not self.lag:
            return 0.0 if self.lag == 0 else None
        gain = self.read_per_s - self.written_per_s
        return self.lag / gain if gain > 0 else None


@dataclass(frozen=True, slots=True)
class ClientActivity:
    """The records a second that a member of a group reads, as far as it commits."""

    client: str
    host: str
    group: str
    partitions: int
    read_per_s: float


@dataclass(frozen=True, slots=True)
class Activity:
    """The rates between two snapshots, the highest first."""

    seconds: float
    wall_ms: int
    brokers: int
    topics: list[TopicActivity]
    groups: list[GroupActivity]
    clients: list[ClientActivity]


async def take_snapshot(
    cluster: Cluster,
    *,
    clock: Clock,
    select_topics: Names = lambda names: names,
    select_groups: Names = lambda names: names,
) -> Snapshot:
    """Read the offsets of these topics and groups; what cannot be read now is left out."""
    topics = await list_topics(cluster)
    selected = set(select_topics([topic.name for topic in topics]))
    partitions = [
        TopicPartition(topic.name, p.partition) for topic in topics if topic.name in selected for p in topic.partitions
    ]
    at_s, wall_ms = clock.monotonic(), clock.wall_ms()
    bounds, _ = await available_bounds(cluster, partitions)
    names = list(select_groups([group.group_id for group in await list_groups(cluster)]))
    lags = await describe_lags(cluster, names)
    return Snapshot(
        at_s=at_s,
        wall_ms=wall_ms,
        brokers=len(cluster.info.nodes),
        ends={tp: span.end_offset for tp, span in bounds.items()},
        groups={name: lag for name, lag in lags.items() if isinstance(lag, GroupLag)},
    )


def activity_between(before: Snapshot, after: Snapshot) -> Activity:
    """Compute the rates between two snapshots. What is not in both has no rate."""
    seconds = max(after.at_s - before.at_s, 1e-3)
    topics = _topics(before, after, seconds)
    groups, clients = list[GroupActivity](), list[ClientActivity]()
    for name, lag in after.groups.items():
        earlier = before.groups.get(name)
        read = {} if earlier is None else _differences(_positions(earlier), _positions(lag))
        written = {} if earlier is None else _differences(_ends(earlier), _ends(lag))
        groups.append(
            GroupActivity(
                group=name,
                state=lag.group.state,
                members=len(lag.group.members),
                read_per_s=sum(read.values()) / seconds,
                written_per_s=sum(written.values()) / seconds,
                lag=lag.lag,
                lag_change=None if earlier is None or earlier.lag is None or lag.lag is None else lag.lag - earlier.lag,
            )
        )
        clients += [
            ClientActivity(
                client=member.client_id,
                host=member.client_host.lstrip("/"),
                group=name,
                partitions=len(member.partitions),
                read_per_s=sum(read.get(tp, 0) for tp in member.partitions) / seconds,
            )
            for member in lag.group.members
        ]
    return Activity(
        seconds=seconds,
        wall_ms=after.wall_ms,
        brokers=after.brokers,
        topics=topics,
        groups=sorted(groups, key=lambda group: (-group.read_per_s, -(group.lag or 0), group.group)),
        clients=sorted(clients, key=lambda client: (-client.read_per_s, client.client, client.host)),
    )


def _topics(before: Snapshot, after: Snapshot, seconds: float) -> list[TopicActivity]:
    partitions: dict[str, list[TopicPartition]] = {}
    for tp in after.ends:
        partitions.setdefault(tp.topic, []).append(tp)
    written = _differences(before.ends, after.ends)
    activities = []
    for topic, tps in partitions.items():
        counts = [written.get(tp, 0) for tp in tps]
        total = sum(counts)
        activities.append(TopicActivity(topic, len(tps), total / seconds, max(counts) / total if total else None))
    return sorted(activities, key=lambda topic: (-topic.written_per_s, topic.topic))


def _positions(lag: GroupLag) -> dict[TopicPartition, int]:
    return {tp: lag.committed[tp].offset for tp in lag.partitions if tp in lag.committed}


def _ends(lag: GroupLag) -> dict[TopicPartition, int]:
    return {tp: lag.bounds[tp].end_offset for tp in lag.partitions if tp in lag.bounds}


def _differences(
    before: Mapping[TopicPartition, int], after: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return how far each partition moved; one that moved back (a seek, a topic created again) did not move."""
    return {tp: max(0, at - before[tp]) for tp, at in after.items() if tp in before}
