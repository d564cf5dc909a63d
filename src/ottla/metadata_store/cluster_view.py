"""Keeps an immutable snapshot of the cluster's metadata, built from the store and replaced atomically.

Request handlers read `cluster.current` and never wait for the store. A snapshot never changes; a newer one shares the
parts that are equal. `cluster_view_builder.py` builds it from the changes that a watch of the store delivers.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from ottla.core.ids import INTERNAL_TOPICS
from ottla.metadata_store import znodes
from ottla.metadata_store.acl_index import NO_ACLS, AclIndex
from ottla.metadata_store.store import Node

if TYPE_CHECKING:  # with the first token
    from ottla.metadata_store.token_znodes import StoredToken

_NO_CONFIGS: Mapping[str, EntityConfig] = MappingProxyType({})
_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})

NO_LEADER = -1


class BrokerInfo(NamedTuple):
    """Describes a live broker."""

    node_id: int
    endpoints: Mapping[str, znodes.Endpoint]  # listener name -> (host, port), the first one first
    rack: str | None
    epoch: int  # grows with every start of any broker
    protocols: Mapping[str, str]
    is_shutting_down: bool = False  # it gets no new leaders and leaves the in-sync replicas
    is_cordoned: bool = False  # it gets no new replicas


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
    """Holds the settings of a broker, a group, a metrics subscription, a user, a client id or an address, or of all."""

    values: Mapping[str, str]
    version: int


Configs = Mapping[str, Mapping[str, EntityConfig]]
"""By kind (`brokers`, `groups`, `client-metrics`, `users`, `clients`, `ips`; topics carry their own) and name."""


def metric_name(topic: str) -> str:
    """Return a topic's name as in Kafka's metrics, where '.' and '_' are the same: topics must differ in it.

    >>> metric_name("web.clicks") == metric_name("web_clicks")
    True
    """
    return topic.replace(".", "_")


class ClusterDelta(NamedTuple):
    """Lists what differs between two snapshots."""

    topics: Mapping[str, tuple[int, ...]]
    """By topic that was created, changed or deleted: the partitions of which that is true. None of them if only the
    topic's settings changed, all of the old and of the new one if it was deleted and created again."""
    brokers: tuple[int, ...]  # started, stopped, changed, or started again


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
    acls: AclIndex = NO_ACLS
    replica_reports: Mapping[int, znodes.ReplicaReport] = field(default_factory=dict)  # by node id
    deleted_topics: frozenset[uuid.UUID] = frozenset()  # those noted as deleted: their logs may be removed
    admin_requests: Mapping[str, Node] = field(default_factory=dict)  # of Kafka's older tools, by path
    delegation_tokens: Mapping[str, StoredToken] = field(default_factory=dict)  # by id
    unreadable_topics: frozenset[str] = frozenset()  # topics that exist, whose nodes are malformed
    number: int = field(default=0, compare=False)  # of the snapshot, one more with each; 0: nothing was read yet
    delta: ClusterDelta | None = field(default=None, compare=False)  # from the snapshot before

    @property
    def broker_configs(self) -> Mapping[str, EntityConfig]:
        """Return brokers' settings by node id as text, or `<default>` for all brokers."""
        return self.configs.get(znodes.BROKERS_KIND, _NO_CONFIGS)

    def user_settings(self, user: str) -> Mapping[str, str]:
        """Return the settings of a user: credentials by their mechanism, and quotas."""
        stored = self.configs.get(znodes.USERS_KIND, _NO_CONFIGS).get(znodes.sanitized(user))
        return _NO_SETTINGS if stored is None else stored.values

    def with_topics(self, changed: Mapping[str, TopicView | None]) -> ClusterView:
        """Return a snapshot with some topics added, changed or (None) removed."""
        topics, by_id, by_metric_name = dict(self.topics), dict(self.topic_by_id), self.topic_by_metric_name
        if any((name in topics) != (topic is not None) for name, topic in changed.items()):
            by_metric_name = dict(by_metric_name)
            for name in changed:
                by_metric_name.pop(metric_name(name), None)
            by_metric_name |= {metric_name(name): name for name, topic in changed.items() if topic is not None}
        for name, topic in changed.items():
            old = topics.get(name)
            if old is not None:
                by_id.pop(old.topic_id.bytes, None)
            if topic is None:
                topics.pop(name, None)
            else:
                topics[name] = topic
                by_id[topic.topic_id.bytes] = topic
        return replace(self, topics=topics, topic_by_id=by_id, topic_by_metric_name=by_metric_name, delta=None)

    def changes_since(self, old: ClusterView) -> ClusterDelta:
        """Return what differs from an older snapshot: at once if that is the one before this."""
        if self.delta is not None and old.number == self.number - 1:
            return self.delta
        return difference(old, self)

    def offline_replicas(self, partition: PartitionView) -> tuple[int, ...]:
        """Return the replicas whose broker is not alive."""
        return tuple(replica for replica in partition.replicas if replica not in self.brokers)

    def partition(self, topic: str, index: int) -> PartitionView | None:
        """Return a partition, or None if it does not exist."""
        topic_view = self.topics.get(topic)
        return topic_view.partitions[index] if topic_view and 0 <= index < len(topic_view.partitions) else None


def difference(old: ClusterView, new: ClusterView) -> ClusterDelta:
    """Compare all of two snapshots."""
    names = [name for name, topic in new.topics.items() if old.topics.get(name) is not topic]
    names += [name for name in old.topics if name not in new.topics]
    nodes = [*new.brokers, *(node for node in old.brokers if node not in new.brokers)]
    return ClusterDelta(
        {name: changed_partitions(old.topics.get(name), new.topics.get(name)) for name in names},
        tuple(node for node in nodes if old.brokers.get(node) != new.brokers.get(node)),
    )


def changed_partitions(old: TopicView | None, new: TopicView | None) -> tuple[int, ...]:
    """Return the partitions that differ; all if one topic is absent or they are different topics of one name."""
    before, after = old.partitions if old else (), new.partitions if new else ()
    if old is None or new is None or old.topic_id != new.topic_id:
        return tuple(range(max(len(before), len(after))))
    common = min(len(before), len(after))
    changed = [index for index in range(common) if before[index] is not after[index]]
    return (*changed, *range(common, max(len(before), len(after))))
