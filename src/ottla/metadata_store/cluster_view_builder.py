"""Builds the next snapshot of the cluster from the nodes that changed in the store.

No node is read again: a change of one partition decodes that partition and shares all else with the snapshot before.
Nodes whose parent in the snapshot is not known yet (Kafka's tools write a topic's settings before the topic) are kept
until it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from ottla.core.acls import PatternType, ResourcePattern
from ottla.metadata_store import znodes
from ottla.metadata_store.acl_index import ResourceAcls
from ottla.metadata_store.cluster_view import (
    NO_LEADER,
    BrokerInfo,
    ClusterDelta,
    ClusterView,
    Configs,
    EntityConfig,
    PartitionView,
    TopicView,
    changed_partitions,
)
from ottla.metadata_store.store import NO_VERSION, Node, NodeChange

if TYPE_CHECKING:  # with the first token
    from ottla.metadata_store.token_znodes import StoredToken

NODES_AT_ONCE = 200
"""After so many nodes the event loop serves others."""
_BYTES_OF_NODE = 500
"""A larger node, such as the ACLs of a resource, counts as several."""

_SHARED_MAX = 1000
_KINDS = (
    znodes.BROKERS_KIND,
    znodes.GROUPS_KIND,
    znodes.CLIENT_METRICS_KIND,
    znodes.USERS_KIND,
    znodes.CLIENTS_KIND,
    znodes.IPS_KIND,
)
_NO_STATE = znodes.PartitionState(NO_LEADER, 0, (), 0)

logger = logging.getLogger(__name__)


class _TopicChanges:
    """Collects the nodes of one topic that changed."""

    __slots__ = ("assignment", "config", "states")

    def __init__(self) -> None:
        self.assignment: NodeChange | None = None
        self.config: NodeChange | None = None
        self.states: dict[int, NodeChange] = {}

    @property
    def exists(self) -> bool:
        """Return whether the topic exists, malformed or not."""
        return self.assignment is not None and self.assignment.node is not None

    def followed_by(self, later: _TopicChanges) -> _TopicChanges:
        """Return these changes with later ones."""
        merged = _TopicChanges()
        merged.assignment = later.assignment or self.assignment
        merged.config = later.config or self.config
        merged.states = {**self.states, **later.states}
        return merged


class ViewBuilder:
    """Builds snapshots of one cluster, one after the other."""

    def __init__(self) -> None:
        self._orphans: dict[str, Node] = {}  # by path: settings and states of topics that are not in the snapshot
        self._deleting: set[str] = set()  # topics whose deletion has begun
        # nodes of topics that exist, but are in no snapshot, because a node of theirs is malformed
        self._unreadable: dict[str, _TopicChanges] = {}
        self._shared: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._states: dict[bytes, znodes.PartitionState] = {}
        self._nodes = 0

    async def build(self, view: ClusterView, changes: Sequence[NodeChange], *, is_complete: bool) -> ClusterView:
        """Return the snapshot after the changes, `view` itself if nothing in it differs.

        With `is_complete` the changes are all nodes of the store. A malformed node is logged once. What it describes
        stays as it was, or is left out if no snapshot had it; a partition with a malformed state is offline.
        """
        topics: dict[str, _TopicChanges] = {}
        others: list[NodeChange] = []
        if is_complete:
            self._deleting.clear()
        for change in changes:
            self._assign(change, topics, others)
            await self._pause()
        if is_complete:
            self._orphans.clear()
            for name in view.topics:
                if name not in topics or topics[name].assignment is None:
                    gone = topics.setdefault(name, _TopicChanges())
                    gone.assignment = NodeChange(0, znodes.topic_path(name), None)
        changed: dict[str, TopicView | None] = {}
        partitions: dict[str, tuple[int, ...]] = {}
        for name, news in topics.items():
            old = view.topics.get(name)
            if is_complete:
                self._unreadable.pop(name, None)
            all_nodes = self._unreadable.pop(name, _TopicChanges()).followed_by(news)
            nodes = news if old is not None else all_nodes.followed_by(_TopicChanges())
            new = await self._topic(name, None if is_complete else old, nodes)
            if is_complete and old is not None:
                if new is not None:
                    new = _sharing(old, new)
                elif name not in self._deleting and nodes.assignment is not None and nodes.assignment.node is not None:
                    new = old  # a node of it is malformed
            if new is None and name not in self._deleting and all_nodes.exists:
                self._unreadable[name] = all_nodes
            if new != old:
                changed[name] = new
                partitions[name] = changed_partitions(old, new)
        if is_complete:
            self._unreadable = {name: nodes for name, nodes in self._unreadable.items() if name in topics}
        built = await self._with_others(view, others, is_complete=is_complete)
        if built is view and not changed:
            return view
        nodes_changed = [*built.brokers, *(node for node in view.brokers if node not in built.brokers)]
        delta = ClusterDelta(
            partitions, tuple(node for node in nodes_changed if view.brokers.get(node) != built.brokers.get(node))
        )
        if len(changed) > NODES_AT_ONCE:
            await asyncio.sleep(0)
        return replace(built.with_topics(changed) if changed else built, number=view.number + 1, delta=delta)

    async def _pause(self, nodes: int = 1) -> None:
        self._nodes += nodes
        if self._nodes >= NODES_AT_ONCE:
            self._nodes = 0
            await asyncio.sleep(0)

    # ---- Topics

    def _assign(self, change: NodeChange, topics: dict[str, _TopicChanges], others: list[NodeChange]) -> None:
        match change.path.split("/"):
            case ["", "brokers", "topics", name]:
                topics.setdefault(name, _TopicChanges()).assignment = change
            case ["", "brokers", "topics", name, "partitions", index, "state"] if index.isdecimal():
                topics.setdefault(name, _TopicChanges()).states[int(index)] = change
            case ["", "admin", "delete_topics", name]:
                topics.setdefault(name, _TopicChanges())
                if change.node is None:
                    self._deleting.discard(name)
                else:
                    self._deleting.add(name)
            case ["", "config", "topics", name]:
                topics.setdefault(name, _TopicChanges()).config = change
            case _:
                others.append(change)

    async def _topic(self, name: str, old: TopicView | None, nodes: _TopicChanges) -> TopicView | None:
        topic = old
        if name in self._deleting:
            return None
        if nodes.assignment is not None and nodes.assignment.node is None:
            self._keep_config(name, old, nodes)
            topic = None
        elif nodes.assignment is not None and nodes.assignment.node is not None:
            topic = await self._assigned(name, old, nodes)
        if topic is None:
            for change in nodes.states.values():
                self._keep_orphan(change)
            if nodes.config is not None:
                self._keep_orphan(nodes.config)
            return None
        if nodes.states:
            topic = await self._with_states(topic, nodes.states)
        if nodes.config is None:
            return topic
        return self._with_config(topic, nodes.config.path, nodes.config.node, is_known=old is not None)

    async def _assigned(self, name: str, old: TopicView | None, nodes: _TopicChanges) -> TopicView | None:
        """Build the topic by a new assignment; the states and settings that did not change are those known so far.

        Takes the states of new partitions from `nodes`.
        """
        assert nodes.assignment is not None
        node = nodes.assignment.node
        assert node is not None
        try:
            assignment = znodes.decode_assignment(name, node.value)
            if list(assignment.replicas) != list(range(len(assignment.replicas))):
                raise znodes.MalformedNode(znodes.topic_path(name), "the partitions are not numbered from 0")
        except znodes.MalformedNode as error:
            _log(error)
            return old
        known = old.partitions if old is not None else ()
        partitions = []
        for index, replicas in assignment.replicas.items():
            adding, removing = assignment.adding.get(index, ()), assignment.removing.get(index, ())
            if index < len(known):
                partitions.append(self._reassigned(known[index], replicas, adding, removing))
            else:
                change = nodes.states.pop(index, None)
                state_node = change.node if change is not None else self._orphan(znodes.state_path(name, index))
                state = self._state(name, index, state_node)
                version = state_node.version if state_node is not None else NO_VERSION
                partitions.append(
                    _partition(index, self._share(replicas), self._share(adding), self._share(removing), state, version)
                )
            await self._pause()
        topic = TopicView(
            name,
            assignment.topic_id,
            tuple(partitions),
            old.config if old is not None else {},
            node.version,
            old.config_version if old is not None else NO_VERSION,
            assignment.unknown_keys,
        )
        path = znodes.topic_config_path(name)
        orphan = self._orphan(path)
        if orphan is None or nodes.config is not None:
            return topic
        return self._with_config(topic, path, orphan, is_known=old is not None)

    def _with_config(self, topic: TopicView, path: str, node: Node | None, *, is_known: bool) -> TopicView | None:
        """Return the topic with settings; None if they are malformed and others are not known.

        With other settings than its own a topic could lose records.
        """
        if node is None:
            return topic._replace(config={}, config_version=NO_VERSION)
        try:
            return topic._replace(config=znodes.decode_config(path, node.value), config_version=node.version)
        except znodes.MalformedNode as error:
            _log(error)
            return topic if is_known else None

    async def _with_states(self, topic: TopicView, states: Mapping[int, NodeChange]) -> TopicView:
        partitions = list(topic.partitions)
        for index, change in states.items():
            if index >= len(partitions):
                self._keep_orphan(change)
                continue
            old, node = partitions[index], change.node
            state = self._state(topic.name, index, node, old)
            version = node.version if node is not None else NO_VERSION
            new = _partition(index, old.replicas, old.adding, old.removing, state, version)
            if new != old:
                partitions[index] = new
            await self._pause()
        return topic._replace(partitions=tuple(partitions))

    def _reassigned(
        self, partition: PartitionView, replicas: tuple[int, ...], adding: tuple[int, ...], removing: tuple[int, ...]
    ) -> PartitionView:
        if (replicas, adding, removing) == (partition.replicas, partition.adding, partition.removing):
            return partition
        return replace(
            partition, replicas=self._share(replicas), adding=self._share(adding), removing=self._share(removing)
        )

    def _state(
        self, topic: str, index: int, node: Node | None, known: PartitionView | None = None
    ) -> znodes.PartitionState:
        """Decode a state, once for all partitions that have the same.

        A malformed state is one without leader and ISR: the partition is offline, and no election changes it.
        """
        if node is None:
            return _NO_STATE
        state = self._states.get(node.value)
        if state is not None:
            return state
        try:
            state = znodes.decode_state(topic, index, node.value)
            if not state.isr:
                raise znodes.MalformedNode(znodes.state_path(topic, index), "the ISR is empty")
        except znodes.MalformedNode as error:
            last = (
                ""
                if known is None
                else (
                    f"; the last known state had leader {known.leader}, leader_epoch {known.leader_epoch}, "
                    f"ISR {list(known.isr)}"
                )
            )
            logger.error(  # noqa: TRY400 - the message says all
                "partition %s-%d is offline, because the node of its state is malformed: %s%s. Write it again with "
                "ZooKeeper's shell, with a replica that has all records in `isr`, `leader` -1 and a higher "
                "`leader_epoch`; a leader is elected then",
                topic,
                index,
                error,
                last,
            )
            return _NO_STATE if known is None else _NO_STATE._replace(leader_epoch=known.leader_epoch)
        state = state._replace(
            isr=self._share(state.isr), elr=self._share(state.elr), last_known_elr=self._share(state.last_known_elr)
        )
        if len(self._states) >= _SHARED_MAX:
            self._states.clear()
        self._states[node.value] = state
        return state

    def _share(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """Return an equal tuple that is used already: 10,000 partitions have few different ones."""
        if len(self._shared) >= _SHARED_MAX:
            self._shared.clear()
        return self._shared.setdefault(ids, ids)

    # ---- Nodes without a topic

    def _keep_config(self, name: str, old: TopicView | None, nodes: _TopicChanges) -> None:
        """Keep the settings that outlive their topic: a topic of that name would have them again."""
        if nodes.config is None and old is not None and old.config_version != NO_VERSION:
            value = znodes.encode_config(old.config)
            self._orphans[znodes.topic_config_path(name)] = Node(value, old.config_version, 0, ephemeral=False)

    def _keep_orphan(self, change: NodeChange) -> None:
        if change.node is not None:
            self._orphans[change.path] = change.node
        else:
            self._orphans.pop(change.path, None)

    def _orphan(self, path: str) -> Node | None:
        return self._orphans.pop(path, None) if self._orphans else None

    # ---- Everything else

    async def _with_others(self, view: ClusterView, changes: Iterable[NodeChange], *, is_complete: bool) -> ClusterView:
        """Apply the changes of brokers, controller and settings; `view` itself if nothing in it differs."""
        base = ClusterView() if is_complete else view
        brokers, reports, configs = dict(base.brokers), dict(base.replica_reports), base.configs
        controller_id, epoch, cluster_id = base.controller_id, base.controller_epoch, base.cluster_id
        deleted, requests = base.deleted_topics, base.admin_requests
        changed: dict[str, dict[str, EntityConfig]] = {}  # by kind
        acls: dict[ResourcePattern, ResourceAcls | None] = {}
        tokens = _Tokens(base.delegation_tokens)
        for _, path, node in changes:
            await self._pause(1 if node is None else 1 + len(node.value) // _BYTES_OF_NODE)
            try:
                if path.startswith(znodes.BROKER_IDS + "/"):
                    _put(brokers, path, None if node is None else _broker(path, node))
                elif path.startswith(znodes.REPLICA_REPORTS + "/"):
                    _put(reports, path, None if node is None else _report(path, node))
                elif path.startswith(znodes.DELETED_TOPICS + "/"):
                    noted = znodes.decode_deleted_topic_ids([path.rpartition("/")[2]])
                    deleted = deleted - noted if node is None else deleted | noted
                elif path.startswith(znodes.TOKENS + "/"):
                    tokens.put(path, node)
                elif path in znodes.ADMIN_REQUESTS:
                    requests = {**requests, path: node} if node else {p: n for p, n in requests.items() if p != path}
                elif path == znodes.CONTROLLER:
                    controller_id = znodes.decode_controller(node.value) if node else NO_LEADER
                elif path == znodes.CONTROLLER_EPOCH:
                    epoch = znodes.decode_epoch(node.value) if node else 0
                elif path == znodes.CLUSTER_ID:
                    cluster_id = znodes.decode_cluster_id(node.value) if node else ""
                elif (entity := znodes.parse_config_path(path)) and entity[0] in _KINDS:
                    kind, name = entity
                    _put_config(_of_kind(changed, configs, kind), name, path, node)
                elif znodes.is_acl_path(path):
                    _put_acls(acls, path, node)
            except znodes.MalformedNode as error:
                _log(error)
        configs = {**configs, **{kind: _same_or_new(view.configs.get(kind), new) for kind, new in changed.items()}}
        new = replace(
            view,
            cluster_id=cluster_id,
            controller_id=controller_id,
            controller_epoch=epoch,
            brokers=brokers if brokers != view.brokers else view.brokers,
            configs=configs if configs != view.configs else view.configs,
            acls=view.acls.replaced_by(acls) if is_complete else view.acls.with_changes(acls),
            replica_reports=reports if reports != view.replica_reports else view.replica_reports,
            deleted_topics=deleted if deleted != view.deleted_topics else view.deleted_topics,
            admin_requests=requests if requests != view.admin_requests else view.admin_requests,
            delegation_tokens=tokens.same_or_new(view.delegation_tokens),
            unreadable_topics=frozenset(self._unreadable),
        )
        return view if new == view else new


def _log(error: znodes.MalformedNode) -> None:
    logger.error(
        "a node of the metadata store is malformed and is ignored until it changes: %s. Restore its value with "
        "ZooKeeper's shell",
        error,
    )


def _put_acls(acls: dict[ResourcePattern, ResourceAcls | None], path: str, node: Node | None) -> None:
    """Note the ACLs of a pattern, or that they are gone. A directory of ACLs has none."""
    from ottla.metadata_store.acl_znodes import parse_acl_path  # most clusters have no ACLs

    if pattern := parse_acl_path(path):
        acls[pattern] = None if node is None else _resource_acls(pattern, path, node)


def _resource_acls(pattern: ResourcePattern, path: str, node: Node) -> ResourceAcls:
    """Decode the ACLs of a pattern; those that are malformed are unreadable, which denies everything."""
    from ottla.metadata_store.acl_znodes import decode_acls

    try:
        entries = decode_acls(path, node.value)
        if entries and pattern.pattern_type == PatternType.UNKNOWN:
            raise znodes.MalformedNode(path, "the type of the pattern is not known")
    except znodes.MalformedNode as error:
        logger.error(  # noqa: TRY400 - the message says all
            "ACLs cannot be read, and everything but what super users do with their resources is denied until they "
            "can: %s. Delete all ACLs of the resource and create them again, or restore the value with ZooKeeper's "
            "shell",
            error,
        )
        return ResourceAcls((), node.version, is_unreadable=True)
    return ResourceAcls(entries, node.version)


def _report(path: str, node: Node) -> znodes.ReplicaReport:
    """Decode a report; one that is malformed is that of an unclean start."""
    node_id = _node_id(path)
    try:
        return znodes.decode_replica_report(node_id, node.value)
    except znodes.MalformedNode as error:
        _log(error)
        return znodes.ReplicaReport(is_clean=False)


def _partition(
    index: int,
    replicas: tuple[int, ...],
    adding: tuple[int, ...],
    removing: tuple[int, ...],
    state: znodes.PartitionState,
    version: int,
) -> PartitionView:
    return PartitionView(
        index,
        state.leader,
        state.leader_epoch,
        replicas,
        state.isr,
        version,
        adding,
        removing,
        state.is_recovering,
        state.elr,
        state.last_known_elr,
        state.last_unclean_epoch,
        state.unknown_keys,
    )


def _sharing(old: TopicView, new: TopicView) -> TopicView:
    """Return a topic that was read again with the partitions of the old one that are equal."""
    common = min(len(old.partitions), len(new.partitions))
    kept = [
        old.partitions[at] if old.partitions[at] == new.partitions[at] else new.partitions[at] for at in range(common)
    ]
    return new._replace(partitions=(*kept, *new.partitions[common:]))


_Value = TypeVar("_Value")


def _put(by_node_id: dict[int, _Value], path: str, value: _Value | None) -> None:
    if value is None:
        by_node_id.pop(_node_id(path), None)
    else:
        by_node_id[_node_id(path)] = value


class _Tokens:
    """The delegation tokens, copied with the first change: there may be many."""

    def __init__(self, tokens: Mapping[str, StoredToken]) -> None:
        self._old = tokens
        self._new: dict[str, StoredToken] = {}
        self._is_copied = False

    def put(self, path: str, node: Node | None) -> None:
        """Note a token. One whose node is malformed is none: it could not be said until when it is valid."""
        from ottla.metadata_store.token_znodes import StoredToken, decode_token

        if not self._is_copied:
            self._new, self._is_copied = dict(self._old), True
        token_id = path.rpartition("/")[2]
        self._new.pop(token_id, None)
        if node is not None:
            self._new[token_id] = StoredToken(decode_token(path, node.value), node.version)

    def same_or_new(self, known: Mapping[str, StoredToken]) -> Mapping[str, StoredToken]:
        """Return the tokens, and the known ones if they are equal."""
        tokens = self._new if self._is_copied else self._old
        return known if tokens == known else tokens


def _node_id(path: str) -> int:
    name = path.rpartition("/")[2]
    if not name.isdecimal():
        raise znodes.MalformedNode(path, "the name is not a node id")
    return int(name)


def _broker(path: str, node: Node) -> BrokerInfo:
    node_id = _node_id(path)
    registered = znodes.decode_broker(node_id, node.value)
    return BrokerInfo(
        node_id,
        registered.endpoints,
        registered.rack,
        node.created,
        registered.protocols,
        registered.is_shutting_down,
        registered.is_cordoned,
    )


def _put_config(of_kind: dict[str, EntityConfig], name: str, path: str, node: Node | None) -> None:
    """Add, replace or remove one entity's settings."""
    if node is None:
        of_kind.pop(name, None)
    else:
        of_kind[name] = EntityConfig(znodes.decode_config(path, node.value), node.version)


def _same_or_new(old: Mapping[str, EntityConfig] | None, new: Mapping[str, EntityConfig]) -> Mapping[str, EntityConfig]:
    return old if old is not None and old == new else new


def _of_kind(changed: dict[str, dict[str, EntityConfig]], configs: Configs, kind: str) -> dict[str, EntityConfig]:
    """Return the settings of a kind to be changed: they are copied once, however many entities there are."""
    of_kind = changed.get(kind)
    if of_kind is None:
        of_kind = changed[kind] = dict(configs.get(kind, {}))
    return of_kind
