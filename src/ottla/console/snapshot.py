"""Reads the state of a cluster for pages, and shares it between requests for some seconds.

A page with 10,000 partitions costs its reader a look at what is here, not requests to the brokers. A snapshot that has
become old is served once more while the next one is read, unless it is very old or a change has made it wrong.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from ottla.client import admin, groups
from ottla.client.admin import ClusterDescription, LogDir
from ottla.client.cluster import Cluster
from ottla.client.cluster_health import missing_brokers
from ottla.client.errors import CannotConnect
from ottla.client.groups import GroupListing
from ottla.client.metadata import TopicInfo
from ottla.client.partition_health import Moves, UnhealthyPartition, judge_partitions, required_replicas, running_moves
from ottla.core.clock import Clock, SystemClock
from ottla.core.errors import ErrorCode, KafkaError
from ottla.core.ids import TopicPartition
from ottla.wire.apis import ApiKey

if TYPE_CHECKING:
    from ottla.wire.generated.describe_log_dirs import DescribeLogDirsResponse

T = TypeVar("T")
FRESH_S = 5.0
"""The age up to which a snapshot is served without reading another one."""
STALE_S = 30.0
"""The age up to which it is served while another one is read."""
_ANSWER_S = 5.0


@dataclass(frozen=True, slots=True)
class BrokerState:
    """A broker as it is now: what it leads and keeps, and its disks."""

    node_id: int
    address: str
    rack: str | None
    leaders: int
    replicas: int
    out_of_sync: int
    log_dirs: Sequence[LogDir]
    trouble: str  # the reason if it does not answer, or is not registered

    @property
    def total_bytes(self) -> int:
        """The size of its disks, as far as it reports them."""
        return sum(max(0, log_dir.total_bytes) for log_dir in self.log_dirs)

    @property
    def used_bytes(self) -> int:
        """The used part of its disks."""
        return sum(log_dir.total_bytes - log_dir.usable_bytes for log_dir in self.log_dirs if log_dir.total_bytes > 0)

    @property
    def log_bytes(self) -> int:
        """The size of its logs."""
        return sum(log_dir.log_bytes for log_dir in self.log_dirs)

    @property
    def offline_dirs(self) -> list[str]:
        """The log directories that cannot be used."""
        return [log_dir.path for log_dir in self.log_dirs if log_dir.is_offline]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a cluster at one time."""

    at: float  # of the monotonic clock
    wall_ms: int
    described: ClusterDescription
    topics: Mapping[str, TopicInfo]  # sorted by name
    brokers: Sequence[BrokerState]
    moves: Moves
    unhealthy: Sequence[UnhealthyPartition]
    groups: Mapping[str, GroupListing]  # sorted by id
    refusals: Sequence[str]  # what could not be read, and why
    sizes: Mapping[str, int] = field(default_factory=dict)  # bytes of all replicas of a topic

    @property
    def partitions(self) -> int:
        """The number of all partitions."""
        return sum(len(topic.partitions) for topic in self.topics.values())

    @property
    def racks(self) -> dict[str, list[BrokerState]]:
        """The brokers by their racks."""
        by_rack: dict[str, list[BrokerState]] = {}
        for broker in self.brokers:
            by_rack.setdefault(broker.rack or "", []).append(broker)
        return dict(sorted(by_rack.items()))

    def unhealthy_of(self, topic: str) -> list[UnhealthyPartition]:
        """Return the partitions of a topic that have a problem."""
        return [partition for partition in self.unhealthy if partition.tp.topic == topic]


class SnapshotCache:
    """Keeps the last snapshot, and reads the next one when it is asked for; one reading at a time."""

    def __init__(self, cluster: Callable[[], Awaitable[Cluster]], *, clock: Clock | None = None) -> None:
        self._cluster, self._clock = cluster, clock or SystemClock()
        self._last: Snapshot | None = None
        self._reading: asyncio.Task[Snapshot] | None = None
        self._is_wrong = False
        self.readings = 0

    async def get(self) -> Snapshot:
        """Return a snapshot. Raises CannotConnect or KafkaError if none can be read."""
        last = self._last
        age_s = float("inf") if last is None else self._clock.monotonic() - last.at
        if last is None or self._is_wrong or age_s > STALE_S:
            return await self._read()
        if age_s > FRESH_S and self._reading is None:
            self._begin()
        return last

    def forget(self) -> None:
        """Let the next request read the cluster: it was changed."""
        self._is_wrong = True
        self._reading = None  # what is being read may be of before

    async def close(self) -> None:
        """Cancel what is being read."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> Snapshot:
        return await asyncio.shield(self._reading or self._begin())

    def _begin(self) -> asyncio.Task[Snapshot]:
        self._is_wrong = False
        self._reading = task = asyncio.get_running_loop().create_task(self._read_now())
        task.add_done_callback(self._done)
        return task

    async def _read_now(self) -> Snapshot:
        self.readings += 1
        cluster = await self._cluster()
        return await read_snapshot(cluster, self._clock)

    def _done(self, task: asyncio.Task[Snapshot]) -> None:
        if not task.cancelled() and task.exception() is None and self._reading is task:
            self._last = task.result()
        if self._reading is task:
            self._reading = None


async def read_snapshot(cluster: Cluster, clock: Clock) -> Snapshot:
    """Read the state of a cluster: two requests, three for each broker, and one more for problems and moves."""
    at = clock.monotonic()
    refusals: list[str] = []
    described = await admin.describe_cluster(cluster)
    nodes = [node.node_id for node in described.nodes]
    topics, moves, listings, disks = await asyncio.gather(
        admin.list_topics(cluster),
        running_moves(cluster),
        _allowed(groups.list_groups(cluster), [], "groups", refusals),
        asyncio.gather(*(_disks(cluster, node) for node in nodes)),
    )
    answers = dict(zip(nodes, disks, strict=True))
    required = await _allowed(required_replicas(cluster, topics), {}, "settings of topics", refusals)
    if moves.refusal:
        refusals.append(f"moves of replicas: {moves.refusal}")
    sizes: dict[str, int] = {}
    for _, dirs_sizes, why in answers.values():
        if why.is_refused:
            refusals.append(f"log directories: {why.text}")
        for name, size_bytes in dirs_sizes.items():
            sizes[name] = sizes.get(name, 0) + size_bytes
    return Snapshot(
        at=at,
        wall_ms=clock.wall_ms(),
        described=described,
        topics={topic.name: topic for topic in topics},
        brokers=_brokers(described, topics, moves, answers),
        moves=moves,
        unhealthy=judge_partitions(topics, required, moves.running),
        groups={listing.group_id: listing for listing in listings},
        refusals=list(dict.fromkeys(refusals)),
        sizes=sizes,
    )


@dataclass(frozen=True, slots=True)
class _Failure:
    """The reason why a broker's disks are unknown; refused by its ACLs, or no answer."""

    text: str = ""
    is_refused: bool = False


_Disks = tuple[list[LogDir], dict[str, int], _Failure]


async def _disks(cluster: Cluster, node_id: int) -> _Disks:
    """Ask a broker for its log directories and the bytes of each topic there."""
    from ottla.wire.generated.describe_log_dirs import DescribeLogDirsRequest

    try:
        async with asyncio.timeout(_ANSWER_S):
            answer: DescribeLogDirsResponse = await cluster.request(
                node_id, ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=None)
            )
    except TimeoutError:
        return [], {}, _Failure(f"no answer within {_ANSWER_S:g} s")
    except CannotConnect as error:
        return [], {}, _Failure(error.reason)
    except KafkaError as error:
        return [], {}, _Failure(error.message, is_refused=True)
    if answer.error_code != ErrorCode.NONE or any(
        directory.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED for directory in answer.results
    ):
        return [], {}, _Failure("not authorized to describe the cluster", is_refused=True)
    log_dirs, sizes = [], dict[str, int]()
    for directory in answer.results:
        partitions = log_bytes = 0
        for topic in directory.topics:
            topic_bytes = sum(p.partition_size for p in topic.partitions)
            sizes[topic.name] = sizes.get(topic.name, 0) + topic_bytes
            log_bytes += topic_bytes
            partitions += sum(not p.is_future_key for p in topic.partitions)
        log_dirs.append(
            LogDir(
                node_id,
                directory.log_dir,
                directory.error_code,
                partitions,
                log_bytes,
                directory.total_bytes,
                directory.usable_bytes,
            )
        )
    return log_dirs, sizes, _Failure()


def _brokers(
    described: ClusterDescription, topics: Sequence[TopicInfo], moves: Moves, answers: Mapping[int, _Disks]
) -> list[BrokerState]:
    leaders = Counter(p.leader_id for topic in topics for p in topic.partitions)
    replicas, out_of_sync = Counter[int](), Counter[int]()
    placements = Counter((p.replicas, p.isr) for topic in topics for p in topic.partitions)  # far fewer than partitions
    for (placed, in_sync), count in placements.items():
        replicas.update(dict.fromkeys(placed, count))
        out_of_sync.update(dict.fromkeys(set(placed).difference(in_sync), count))
    known = {node.node_id: node for node in described.nodes}
    missing = missing_brokers(described, topics, moves)
    states = []
    for node_id in sorted({*known, *missing}):
        node = known.get(node_id)
        log_dirs, _, failure = answers.get(node_id, ([], {}, _Failure("it is not registered: it does not run")))
        states.append(
            BrokerState(
                node_id,
                "" if node is None else str(node.address),
                None if node is None else node.rack,
                leaders[node_id],
                replicas[node_id],
                out_of_sync[node_id],
                log_dirs,
                "" if failure.is_refused else failure.text,
            )
        )
    return states


async def _allowed(work: Awaitable[T], otherwise: T, what: str, refusals: list[str]) -> T:
    try:
        return await work
    except (KafkaError, CannotConnect) as error:
        refusals.append(f"{what}: {error}")
        return otherwise


def partitions_of(topic: TopicInfo) -> list[TopicPartition]:
    """Return the partitions of a topic that have a leader."""
    return [TopicPartition(topic.name, p.partition) for p in topic.partitions if p.leader_id >= 0]
