"""Keeps an immutable snapshot of the cluster's metadata, read from the store and replaced atomically.

Request handlers read `cluster.current` and never wait for the store. A snapshot never changes; a newer one shares the
parts that are equal. `Cluster` reads again exactly the nodes that changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from ottla.coordination import layout
from ottla.coordination.store import NO_VERSION, MetadataStore, SessionLost
from ottla.core.ids import INTERNAL_TOPICS

NODES_AT_ONCE = 200
"""After so many nodes are read the event loop serves others; the store answers at once where it is in memory."""

_NO_CONFIGS: Mapping[str, EntityConfig] = MappingProxyType({})
_KINDS = (layout.BROKERS_KIND, layout.GROUPS_KIND, layout.CLIENT_METRICS_KIND)

NO_LEADER = -1
_NO_STATE = layout.PartitionState(NO_LEADER, 0, (), 0)


class BrokerInfo(NamedTuple):
    """Describes a live broker."""

    node_id: int
    endpoints: Mapping[str, layout.Endpoint]  # listener name -> (host, port), the first one first
    rack: str | None
    epoch: int  # grows with every start of any broker
    protocols: Mapping[str, str]
    is_shutting_down: bool = False  # it gets no new leaders and leaves the in-sync replicas


@dataclass(frozen=True, slots=True)
class PartitionView:
    """Describes one partition: its replicas and its leader."""

    index: int
    leader: int  # NO_LEADER if there is none
    leader_epoch: int
    replicas: tuple[int, ...]  # the preferred leader first
    isr: tuple[int, ...]
    partition_epoch: int  # version of its state node; NO_VERSION while the controller has not elected a first leader
    adding: tuple[int, ...] = ()  # part of `replicas`: a reassignment adds them
    removing: tuple[int, ...] = ()  # part of `replicas`: a reassignment removes them
    is_recovering: bool = False  # the leader was elected uncleanly and has not confirmed it yet
    elr: tuple[int, ...] = ()  # eligible leader replicas (KIP-966)
    last_known_elr: tuple[int, ...] = ()
    last_unclean_epoch: int = -1  # the leader epoch of the last unclean election; -1 if there was none
    unknown_keys: str = ""  # of its state node, as JSON: kept when the state is written


class TopicView(NamedTuple):
    """Describes one topic and its own settings."""

    name: str
    topic_id: uuid.UUID
    partitions: tuple[PartitionView, ...]
    config: Mapping[str, str]  # only what was set for this topic
    version: int  # of its assignment node
    config_version: int  # of its settings node; NO_VERSION if it has none
    unknown_keys: str = ""  # of its assignment node, as JSON: kept when the assignment is written

    @property
    def internal(self) -> bool:
        """Return whether it is one of `INTERNAL_TOPICS`."""
        return self.name in INTERNAL_TOPICS

    @property
    def replication_factor(self) -> int:
        """Return the number of replicas of the first partition, as Kafka counts it."""
        return len(self.partitions[0].replicas) if self.partitions else 0


class EntityConfig(NamedTuple):
    """Holds the settings of a broker, of all brokers, of a group or of a metrics subscription."""

    values: Mapping[str, str]
    version: int


Configs = Mapping[str, Mapping[str, EntityConfig]]
"""By kind (`brokers`, `groups`, `client-metrics`; topics carry their own) and name."""


def metric_name(topic: str) -> str:
    """Return a topic's name as in Kafka's metrics, where '.' and '_' are the same: topics must differ in it.

    >>> metric_name("web.clicks") == metric_name("web_clicks")
    True
    """
    return topic.replace(".", "_")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """Snapshot of the cluster at one moment."""

    cluster_id: str = ""
    controller_id: int = NO_LEADER
    controller_epoch: int = 0
    brokers: Mapping[int, BrokerInfo] = field(default_factory=dict)
    topics: Mapping[str, TopicView] = field(default_factory=dict)
    topic_by_id: Mapping[bytes, TopicView] = field(default_factory=dict)  # the 16 bytes of an id, as on the wire
    topic_by_metric_name: Mapping[str, str] = field(default_factory=dict)  # see `metric_name`
    configs: Configs = field(default_factory=dict)
    replica_reports: Mapping[int, layout.ReplicaReport] = field(default_factory=dict)  # by node id

    @property
    def broker_configs(self) -> Mapping[str, EntityConfig]:
        """Return brokers' settings by node id as text, or `<default>` for all brokers."""
        return self.configs.get(layout.BROKERS_KIND, _NO_CONFIGS)

    def with_topics(self, changed: Mapping[str, TopicView | None]) -> ClusterView:
        """Return a snapshot with some topics added, changed or (None) removed."""
        topics, by_id, by_metric_name = dict(self.topics), dict(self.topic_by_id), dict(self.topic_by_metric_name)
        for name, topic in changed.items():
            old = topics.pop(name, None)
            if old is not None:
                by_id.pop(old.topic_id.bytes, None)
                by_metric_name.pop(metric_name(name), None)
            if topic is not None:
                topics[name] = topic
                by_id[topic.topic_id.bytes] = topic
                by_metric_name[metric_name(name)] = name
        return replace(self, topics=topics, topic_by_id=by_id, topic_by_metric_name=by_metric_name)

    def offline_replicas(self, partition: PartitionView) -> tuple[int, ...]:
        """Return the replicas whose broker is not alive."""
        return tuple(replica for replica in partition.replicas if replica not in self.brokers)

    def partition(self, topic: str, index: int) -> PartitionView | None:
        """Return a partition, or None if it does not exist."""
        found = self.topics.get(topic)
        return found.partitions[index] if found and 0 <= index < len(found.partitions) else None


Subscriber = Callable[[ClusterView, ClusterView], Awaitable[None] | None]
"""Called with the old and the new snapshot. If it returns an awaitable, the change completes only after it."""


class Cluster:
    """Holds the current snapshot and updates it."""

    def __init__(self, store: MetadataStore) -> None:
        self.current = ClusterView()
        self._store = store
        self._subscribers: list[Subscriber] = []
        self._folding = asyncio.Lock()
        self._loaded = False

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber` after each change; after `load` also at once with the current snapshot."""
        self._subscribers.append(subscriber)
        if self._loaded:
            waiting = subscriber(ClusterView(), self.current)
            assert waiting is None, "an asynchronous subscriber must subscribe before the load"

    async def load(self) -> ClusterView:
        """Read the whole cluster. Raises `layout.MalformedNode`."""
        read = self._store.children
        paths = [layout.CLUSTER_ID, layout.CONTROLLER, layout.CONTROLLER_EPOCH]
        paths += [layout.topic_path(name) for name in await read(layout.TOPICS)]
        for root in (layout.BROKER_IDS, layout.REPLICA_REPORTS):
            paths += [f"{root}/{name}" for name in await read(root)]
        paths += [f"/config/{kind}/{name}" for kind in _KINDS for name in await read(f"/config/{kind}")]
        view = await self.refresh(paths)
        self._loaded = True
        return view

    async def follow(self) -> None:
        """Apply the changes of other brokers until the session ends. Run as a task."""
        with contextlib.suppress(SessionLost):
            possibly_deleted = _paths_of(self.current)  # the watch starts with the existing nodes
            async for paths in self._store.watch("/"):
                await self.refresh(paths | possibly_deleted)
                possibly_deleted = frozenset()

    async def refresh(self, paths: Iterable[str]) -> ClusterView:
        """Read these nodes again; returns once the snapshot and every subscriber are up to date with them."""
        async with self._folding:
            old = self.current
            new = await _fold(self._store, old, sorted(paths))  # sorted: deterministic in simulations
            if new is not old:
                self.current = new
                for subscriber in self._subscribers:
                    waiting = subscriber(old, new)
                    if waiting is not None:
                        await waiting
            return self.current


def _paths_of(view: ClusterView) -> frozenset[str]:
    """List the store's nodes from which a snapshot was built, one for each entity."""
    return frozenset(
        [
            layout.CONTROLLER,
            *map(layout.topic_path, view.topics),
            *map(layout.broker_path, view.brokers),
            *map(layout.replica_report_path, view.replica_reports),
            *(layout.config_path(kind, name) for kind, named in view.configs.items() for name in named),
        ]
    )


async def _fold(store: MetadataStore, view: ClusterView, paths: Iterable[str]) -> ClusterView:
    """Build the snapshot after these nodes changed; `view` itself if nothing in it did."""
    topics: dict[str, TopicView | None] = {}
    brokers, reports, configs = dict(view.brokers), dict(view.replica_reports), view.configs
    controller_id, epoch, cluster_id = view.controller_id, view.controller_epoch, view.cluster_id
    for number, path in enumerate(paths, 1):
        if number % NODES_AT_ONCE == 0:
            await asyncio.sleep(0)
        topic = layout.parse_topic_path(path)
        if topic is not None:
            if topic not in topics:
                topics[topic] = await _read_topic(store, topic)
        elif path.startswith(layout.BROKER_IDS + "/"):
            await _read_broker(store, path, brokers)
        elif path.startswith(layout.REPLICA_REPORTS + "/"):
            await _read_replica_report(store, path, reports)
        elif (entity := layout.parse_config_path(path)) and entity[0] in _KINDS:
            configs = await _read_config(store, *entity, configs)
        elif path == layout.CONTROLLER:
            node = await store.get(path)
            controller_id = layout.decode_controller(node.value) if node else NO_LEADER
        elif path == layout.CONTROLLER_EPOCH:
            node = await store.get(path)
            epoch = layout.decode_epoch(node.value) if node else 0
        elif path == layout.CLUSTER_ID:
            node = await store.get(path)
            cluster_id = layout.decode_cluster_id(node.value) if node else ""
    changed = {name: topic for name, topic in topics.items() if topic != view.topics.get(name)}
    new = replace(
        view.with_topics(changed) if changed else view,
        cluster_id=cluster_id,
        controller_id=controller_id,
        controller_epoch=epoch,
        brokers=brokers if brokers != view.brokers else view.brokers,
        configs=configs,
        replica_reports=reports if reports != view.replica_reports else view.replica_reports,
    )
    return view if not changed and _same_but_topics(new, view) else new


def _same_but_topics(one: ClusterView, other: ClusterView) -> bool:
    return (
        one.brokers is other.brokers
        and one.configs is other.configs
        and one.replica_reports is other.replica_reports
        and (one.cluster_id, one.controller_id, one.controller_epoch)
        == (other.cluster_id, other.controller_id, other.controller_epoch)
    )


async def _read_topic(store: MetadataStore, name: str) -> TopicView | None:
    node = await store.get(layout.topic_path(name))
    if node is None:
        return None
    assignment = layout.decode_assignment(name, node.value)
    config = await store.get(layout.topic_config_path(name))
    return TopicView(
        name,
        assignment.topic_id,
        await _read_partitions(store, name, assignment),
        layout.decode_config(layout.topic_config_path(name), config.value) if config else {},
        node.version,
        config.version if config else NO_VERSION,
        assignment.unknown_keys,
    )


async def _read_partitions(
    store: MetadataStore, topic: str, assignment: layout.Assignment
) -> tuple[PartitionView, ...]:
    found = []
    for index in assignment.replicas:
        found.append(await _read_partition(store, topic, index, assignment))
        if len(found) % NODES_AT_ONCE == 0:
            await asyncio.sleep(0)
    return tuple(found)


async def _read_partition(store: MetadataStore, topic: str, index: int, assignment: layout.Assignment) -> PartitionView:
    node = await store.get(layout.state_path(topic, index))
    state = layout.decode_state(topic, index, node.value) if node else _NO_STATE
    return PartitionView(
        index,
        state.leader,
        state.leader_epoch,
        assignment.replicas[index],
        state.isr,
        node.version if node else NO_VERSION,
        assignment.adding.get(index, ()),
        assignment.removing.get(index, ()),
        state.is_recovering,
        state.elr,
        state.last_known_elr,
        state.last_unclean_epoch,
        state.unknown_keys,
    )


async def _read_broker(store: MetadataStore, path: str, brokers: dict[int, BrokerInfo]) -> None:
    node_id = int(path.rpartition("/")[2])
    node = await store.get(path)
    if node is None:
        brokers.pop(node_id, None)
        return
    registered = layout.decode_broker(node_id, node.value)
    brokers[node_id] = BrokerInfo(
        node_id,
        registered.endpoints,
        registered.rack,
        node.created,
        registered.protocols,
        registered.is_shutting_down,
    )


async def _read_replica_report(store: MetadataStore, path: str, reports: dict[int, layout.ReplicaReport]) -> None:
    node_id = int(path.rpartition("/")[2])
    node = await store.get(path)
    if node is None:
        reports.pop(node_id, None)
    else:
        reports[node_id] = layout.decode_replica_report(node_id, node.value)


async def _read_config(store: MetadataStore, kind: str, name: str, configs: Configs) -> Configs:
    """Read one entity's settings; returns the same object if nothing changed, so that callers can compare identity."""
    path = layout.config_path(kind, name)
    node = await store.get(path)
    new = EntityConfig(layout.decode_config(path, node.value), node.version) if node else None
    if new == configs.get(kind, {}).get(name):
        return configs
    of_kind = {key: config for key, config in configs.get(kind, {}).items() if key != name}
    if new is not None:
        of_kind[name] = new
    return {**configs, kind: of_kind}
