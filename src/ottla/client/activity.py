"""Measures what happens in a cluster by differences between two snapshots: rates of topics, groups, members, brokers.

Every broker that speaks Kafka's protocol has offsets and sizes of logs. A snapshot is a few requests to each broker,
and one for each group. Brokers of Ottla add what their pages /metrics count, if those can be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ottla.client import broker_metrics as metrics
from ottla.client.admin import list_topics
from ottla.client.broker_metrics import BrokerPages, listeners_of, read_pages
from ottla.client.cluster import Cluster
from ottla.client.errors import CannotConnect
from ottla.client.group_lag import GroupLag, describe_lags, lag_seconds
from ottla.client.groups import list_groups
from ottla.client.log_dirs import replicas
from ottla.client.metadata import BrokerNode
from ottla.client.offsets import available_bounds
from ottla.core.clock import Clock
from ottla.core.errors import KafkaError
from ottla.core.ids import TopicPartition

Names = Callable[[Sequence[str]], Sequence[str]]
"""Selects names of all that exist."""

_LAG_SECONDS_GROUPS_MAX = 20
"""Groups whose lag in seconds is read from their logs, where no page has it: a read for each."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Offsets at a time: the end of each partition, and the positions of the groups; and what else can be read."""

    at_s: float  # of a monotonic clock
    wall_ms: int
    brokers: int
    ends: Mapping[TopicPartition, int]
    groups: Mapping[str, GroupLag]
    nodes: Sequence[BrokerNode] = ()
    leaders: Mapping[TopicPartition, int] = field(default_factory=dict)
    sizes: Mapping[int, Mapping[TopicPartition, int]] = field(default_factory=dict)  # bytes of replicas, by broker
    lag_s: Mapping[str, float] = field(default_factory=dict)
    pages: BrokerPages = field(default_factory=lambda: BrokerPages({}, {}))


@dataclass(frozen=True, slots=True)
class TopicActivity:
    """The records and bytes a second that are written to a topic, and how they are spread."""

    topic: str
    partitions: int
    written_per_s: float
    busiest_share: float | None  # of its partition with the most new records; None without new records
    bytes_per_s: float | None  # of its leaders' logs; None where their sizes are not known
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class PartitionActivity:
    """A partition that was written to."""

    topic: str
    partition: int
    leader: int
    written_per_s: float
    bytes_per_s: float | None


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
    lag_s: float | None
    """The age of the oldest record that it has not read; known for the groups with the largest lags."""

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
class BrokerActivity:
    """A broker: what is written to the partitions that it leads, and what its own page says; None where it has none."""

    broker: int
    address: str
    leaders: int
    written_per_s: float
    bytes_per_s: float | None
    bytes_out_per_s: float | None
    requests_per_s: float | None
    processor: float | None  # the share of one processor
    loop_delay_ms: float | None  # the mean time by which the event loop was late
    loop_stalls: int | None  # since the snapshot before
    memory_bytes: float | None
    connections: float | None
    unread: str = ""


@dataclass(frozen=True, slots=True)
class ApiActivity:
    """The requests of an API, of all brokers with a page."""

    api: str
    requests_per_s: float
    bytes_per_s: float
    mean_ms: float | None


@dataclass(frozen=True, slots=True)
class Activity:
    """The rates between two snapshots, the highest first."""

    seconds: float
    wall_ms: int
    brokers: int
    topics: list[TopicActivity]
    groups: list[GroupActivity]
    clients: list[ClientActivity]
    partitions: list[PartitionActivity]  # those that were written to, at most a hundred
    broker_activity: list[BrokerActivity]
    apis: list[ApiActivity]


async def take_snapshot(
    cluster: Cluster,
    *,
    clock: Clock,
    select_topics: Names = lambda names: names,
    select_groups: Names = lambda names: names,
    token: str = "",
    listeners: Mapping[int, str] | None = None,
) -> Snapshot:
    """Read what is measured of these topics and groups; what cannot be read now is left out.

    `listeners` are those of a snapshot before, which need not be asked for again.
    """
    topics = await list_topics(cluster)
    selected = set(select_topics([topic.name for topic in topics]))
    leaders = {
        TopicPartition(topic.name, p.partition): p.leader_id
        for topic in topics
        if topic.name in selected
        for p in topic.partitions
    }
    nodes = sorted(cluster.info.nodes.values(), key=lambda node: node.node_id)
    listeners = await listeners_of(cluster, nodes) if listeners is None else listeners
    at_s, wall_ms = clock.monotonic(), clock.wall_ms()
    (bounds, _), sizes, pages = await asyncio.gather(
        available_bounds(cluster, leaders), _sizes(cluster, nodes), read_pages(listeners, nodes, token=token)
    )
    names = list(select_groups([group.group_id for group in await list_groups(cluster)]))
    lags = await describe_lags(cluster, names)
    known = {name: lag for name, lag in lags.items() if isinstance(lag, GroupLag)}
    return Snapshot(
        at_s=at_s,
        wall_ms=wall_ms,
        brokers=len(nodes),
        ends={tp: span.end_offset for tp, span in bounds.items()},
        groups=known,
        nodes=nodes,
        leaders=leaders,
        sizes=sizes,
        lag_s=await _lags_s(cluster, known, pages, wall_ms),
        pages=pages,
    )


async def _sizes(cluster: Cluster, nodes: Iterable[BrokerNode]) -> dict[int, dict[TopicPartition, int]]:
    """Return the sizes of the replicas of the brokers that say them."""

    async def one(node_id: int) -> dict[TopicPartition, int] | None:
        try:
            return {replica.tp: replica.size_bytes for replica in await replicas(cluster, [node_id])}
        except (KafkaError, CannotConnect):
            return None

    ids = [node.node_id for node in nodes]
    sizes_of_brokers = await asyncio.gather(*map(one, ids))
    return {node_id: sizes for node_id, sizes in zip(ids, sizes_of_brokers, strict=True) if sizes is not None}


async def _lags_s(
    cluster: Cluster, groups: Mapping[str, GroupLag], pages: BrokerPages, wall_ms: int
) -> dict[str, float]:
    """Return the lags in seconds: of the pages of the coordinators, or read from the logs for the largest lags."""
    lags_s: dict[str, float] = {name: 0.0 for name, group in groups.items() if group.lag == 0}
    for page in pages.pages.values():
        lags_s |= page.by(metrics.GROUP_LAG_SECONDS, "group")
    left = sorted((name for name in groups if name not in lags_s), key=lambda name: -(groups[name].lag or 0))

    async def one(name: str) -> tuple[str, float | None]:
        try:
            ages = await lag_seconds(cluster, groups[name], now_ms=wall_ms)
        except (KafkaError, CannotConnect):
            ages = {}
        return name, max(ages.values(), default=None)

    asked = [name for name in left[:_LAG_SECONDS_GROUPS_MAX] if groups[name].lag]
    read = await asyncio.gather(*map(one, asked))
    return {name: age for name, age in {**lags_s, **dict(read)}.items() if age is not None and name in groups}
