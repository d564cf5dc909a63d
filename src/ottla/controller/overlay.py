"""Holds the decisions that are not committed yet as an overlay on the snapshot of the cluster.

Each decision is made on the result of those before it, without a copy of the snapshot for each.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple

from ottla.controller.config import ControllerConfig
from ottla.controller.elections import ElectionRules
from ottla.core.ids import TopicPartition
from ottla.metadata_store import znodes
from ottla.metadata_store.cluster_view import ClusterView, EntityConfig, PartitionView, TopicView, metric_name
from ottla.metadata_store.store import NO_VERSION, Create, Op, Put, parent_of
from ottla.storage.config import LogConfig

OPS_PER_COMMIT = 500
COMMIT_BYTES_MAX = 900_000
"""ZooKeeper refuses a commit of more than one MiB."""

MIN_ISR, UNCLEAN_ELECTION, DURABILITY = "min.insync.replicas", "unclean.leader.election.enable", "durability"


class Rules(NamedTuple):
    """Holds what decisions depend on besides the cluster."""

    config: ControllerConfig
    log_defaults: LogConfig  # a topic's overrides are checked together with these
    controller_epoch: int = 0


_Settings = tuple[int, bool, bool]
"""min.insync.replicas, whether unclean elections are allowed, whether records count in the page cache."""


class PartitionIndex:
    """Finds the partitions of each broker: those with a replica on it."""

    def __init__(self, topics: Iterable[TopicView] = ()) -> None:
        self._by_broker: dict[int, dict[TopicPartition, None]] = {}
        for topic in topics:
            self.add(topic.name, topic.partitions)

    def add(self, topic: str, partitions: Iterable[PartitionView]) -> None:
        """Add partitions of a topic."""
        for partition in partitions:
            self._add(TopicPartition(topic, partition.index), partition)

    def _add(self, name: TopicPartition, partition: PartitionView) -> None:
        for replica in partition.replicas:
            self._by_broker.setdefault(replica, {})[name] = None

    def _remove(self, name: TopicPartition, partition: PartitionView) -> None:
        for replica in partition.replicas:
            self._by_broker.get(replica, {}).pop(name, None)

    def update(self, old: ClusterView, new: ClusterView) -> None:
        """Apply what differs between two snapshots."""
        if old.topics is new.topics:
            return
        for name in new.changes_since(old).topics:
            before, after = old.topics.get(name), new.topics.get(name)
            if before and after and (before.version, before.topic_id) == (after.version, after.topic_id):
                continue  # the assignments are the same
            for partition in before.partitions if before else ():
                self._remove(TopicPartition(name, partition.index), partition)
            if after is not None:
                self.add(name, after.partitions)

    def of(self, brokers: Iterable[int]) -> list[TopicPartition]:
        """List the partitions with a replica on one of these brokers."""
        found: dict[TopicPartition, None] = {}
        for broker in sorted(brokers):
            found.update(self._by_broker.get(broker, {}))
        return list(found)

    def brokers(self) -> list[int]:
        """List the brokers with replicas."""
        return sorted(broker for broker, partitions in self._by_broker.items() if partitions)


class Overlay:
    """Collects decisions: the operations to write, and the state of the cluster after them."""

    def __init__(self, view: ClusterView, rules: Rules) -> None:
        self.base, self.rules = view, rules
        self._ops: list[Op] = []
        self._ends: list[int] = []  # where one decision ends and the next begins
        self._unencoded: dict[str, int] = {}  # topics with a changed assignment -> place of its operation
        self._topics: dict[str, TopicView | None] = {}
        self._by_metric_name: dict[str, str] = {}  # of the topics in `_topics`
        self._partitions: dict[str, dict[int, PartitionView]] = {}
        self._settings: dict[str, _Settings] = {}
        self._configs: dict[tuple[str, str], EntityConfig] = {}  # by kind and name; of topics in `_topics`
        self.contradictory: dict[TopicPartition, int] = {}  # partitions without an election, and their partition epochs

    # ---- The state after the decisions

    def topic(self, name: str) -> TopicView | None:
        """Return a topic, or None if there is none."""
        topic = self._topics[name] if name in self._topics else self.base.topics.get(name)
        changed = self._partitions.pop(name, None)
        if topic is None or not changed:
            return topic
        partitions = tuple(changed.get(partition.index, partition) for partition in topic.partitions)
        self._topics[name] = topic = topic._replace(partitions=partitions)
        return topic

    def topic_of_metric_name(self, name: str) -> str | None:
        """Return the topic with the same name in metrics."""
        found = self.base.topic_by_metric_name.get(name)
        if found is not None and (found not in self._topics or self._topics[found] is not None):
            return found
        return self._by_metric_name.get(name)

    def topic_by_id(self, topic_id: uuid.UUID) -> str | None:
        """Return the name of a topic, or None if there is none. Topics that are not committed yet have no id here."""
        topic = self.base.topic_by_id.get(topic_id.bytes)
        if topic is None or (topic.name in self._topics and self._topics[topic.name] is None):
            return None
        return topic.name

    def partition(self, topic: str, index: int) -> PartitionView | None:
        """Return a partition, or None if there is none."""
        changed = self._partitions.get(topic, {}).get(index)
        if changed is not None:
            return changed
        topic_view = self._topics[topic] if topic in self._topics else self.base.topics.get(topic)
        return topic_view.partitions[index] if topic_view and 0 <= index < len(topic_view.partitions) else None

    def changed_partitions(self) -> Iterator[tuple[TopicPartition, PartitionView, PartitionView]]:
        """Yield the partitions of existing topics that decisions change: their states before and after."""
        for name, after_topic in self._topics.items():
            before_topic = self.base.topics.get(name)
            if before_topic is not None and after_topic is not None:
                for before, after in zip(before_topic.partitions, after_topic.partitions, strict=False):
                    if before is not after and after.index not in self._partitions.get(name, {}):
                        yield TopicPartition(name, after.index), before, after
        for name, changed in self._partitions.items():
            known = self.base.topics.get(name)
            for index, after in changed.items():
                if known is not None and index < len(known.partitions):
                    yield TopicPartition(name, index), known.partitions[index], after

    def view(self) -> ClusterView:
        """Return the snapshot after the decisions."""
        for name in tuple(self._partitions):
            self.topic(name)
        return self.base.with_topics(self._topics) if self._topics else self.base

    # ---- Decisions

    @property
    def size(self) -> int:
        """Return the number of operations."""
        return len(self._ops)

    def commits(self) -> list[list[Op]]:
        """Return the operations in the order of the decisions, cut into commits.

        A decision is in one commit if it fits. One operation is left for the check of the controller epoch.
        """
        ops, ends = self.ops(), [*self._ends, len(self._ops)]
        found: list[list[Op]] = []
        sizes = list(accumulate((_size(op) for op in ops), initial=0))
        begin = last = 0
        for end in ends:
            is_too_large = end - begin >= OPS_PER_COMMIT or sizes[end] - sizes[begin] > COMMIT_BYTES_MAX
            if is_too_large and last > begin:
                found.append(ops[begin:last])
                begin = last
            while end - begin >= OPS_PER_COMMIT:
                cut = begin + OPS_PER_COMMIT - 1
                while parent_of(ops[cut].path) == ops[cut - 1].path:
                    cut -= 1  # a partition without a state is created with its node: that must not exist alone
                found.append(ops[begin:cut])
                begin = cut
            last = end
        return [*found, ops[begin:]] if begin < len(ops) else found

    def ops(self) -> list[Op]:
        """Return the operations, in the order of the decisions."""
        for name in tuple(self._unencoded):
            self._encode_assignment(name)
        return self._ops

    def put_topic(self, name: str, topic: TopicView | None, ops: Iterable[Op]) -> None:
        """Add, replace or (None) remove a topic."""
        if name in self._unencoded:
            self._encode_assignment(name)
        self._ops += ops
        self._ends.append(len(self._ops))
        self._partitions.pop(name, None)
        self._topics[name] = topic
        self._settings.pop(name, None)
        if topic is None:
            self._by_metric_name.pop(metric_name(name), None)
        else:
            self._by_metric_name[metric_name(name)] = name

    def put_nodes(self, ops: Iterable[Op]) -> None:
        """Write nodes outside the topics: settings, notes. No node may occur twice."""
        self._ops += ops
        self._ends.append(len(self._ops))

    def entity_config(self, kind: str, name: str) -> EntityConfig | None:
        """Return the settings of an entity that is no topic, or None if it has no node."""
        return self._configs.get((kind, name)) or self.base.configs.get(kind, {}).get(name)

    def put_entity_config(self, kind: str, name: str, config: EntityConfig) -> None:
        """Add or replace the settings of an entity that is no topic; `put_nodes` writes them."""
        self._configs[kind, name] = config

    def put_partition(self, topic: str, new: PartitionView) -> None:
        """Replace the state of a partition, and the topic's assignment if the replicas change."""
        old = self.partition(topic, new.index)
        assert old is not None, "the partition exists"
        self._partitions.setdefault(topic, {})[new.index] = new
        path, text = znodes.state_path(topic, new.index), encoded_state(new, self.rules.controller_epoch)
        if (old.replicas, old.adding, old.removing) != (new.replicas, new.adding, new.removing):
            self._assignment_changes(topic)
        if old.partition_epoch == NO_VERSION:
            self._ops += [Create(znodes.partition_path(topic, new.index)), Create(path, text)]
        else:
            self._ops.append(Put(path, text, old.partition_epoch))
        self._ends.append(len(self._ops))

    def _assignment_changes(self, topic: str) -> None:
        """Reserve the place of one operation for all changes of a topic's assignment; it is encoded at the end."""
        if topic in self._unencoded:
            return
        topic_view = self._topics[topic] if topic in self._topics else self.base.topics[topic]
        assert topic_view is not None, "the partition's topic exists"
        self._unencoded[topic] = len(self._ops)
        self._ops.append(Put(znodes.topic_path(topic), b"", topic_view.version))
        self._topics[topic] = topic_view._replace(version=topic_view.version + 1)

    def _encode_assignment(self, name: str) -> None:
        place = self._unencoded.pop(name)
        topic, reserved = self.topic(name), self._ops[place]
        assert topic is not None, "a deletion encodes the assignment first"
        assert isinstance(reserved, Put), "the place was reserved for it"
        self._ops[place] = reserved._replace(value=encoded_assignment(topic))

    # ---- Rules of a partition

    def election_rules(self, topic: str, index: int = -1) -> ElectionRules:
        """Return the rules for elections of a partition."""
        min_isr, is_unclean_allowed, _ = self._settings_of(topic)
        offline, suspects, impaired = set[int](), set[int](), set[int]()
        name = TopicPartition(topic, index)
        for node, report in self.base.replica_reports.items():
            if name in report.offline:
                offline.add(node)
            if name in report.suspects:
                suspects.add(node)
            if report.impaired and report.impairments_of(name):
                impaired.add(node)
        return ElectionRules(
            self.base.brokers, min_isr, is_unclean_allowed, offline=offline, suspects=suspects, impaired=impaired
        )

    def min_isr(self, topic: str) -> int:
        """Return the setting min.insync.replicas of a topic."""
        return self._settings_of(topic)[0]

    def is_page_cache(self, topic: str) -> bool:
        """Return whether records of the topic count before they are synced."""
        return self._settings_of(topic)[2]

    def _settings_of(self, topic: str) -> _Settings:
        found = self._settings.get(topic)
        if found is None:
            known = self._topics[topic] if topic in self._topics else self.base.topics.get(topic)
            config = known.config if known else {}
            every = self.base.broker_configs.get(znodes.DEFAULT_ENTITY, EntityConfig({}, 0)).values
            defaults = self.rules.log_defaults
            min_isr = config.get(MIN_ISR) or every.get(MIN_ISR)
            unclean = config.get(UNCLEAN_ELECTION) or every.get(UNCLEAN_ELECTION)
            durability = config.get(DURABILITY) or defaults.durability
            found = self._settings[topic] = (
                int(min_isr) if min_isr else defaults.min_insync_replicas,
                unclean.strip().lower() == "true" if unclean else defaults.unclean_leader_election,
                durability == "page-cache",
            )
        return found


def encoded_assignment(topic: TopicView) -> bytes:
    """Encode the assignment of a topic with the reassignments that are running."""
    return znodes.encode_assignment(
        znodes.Assignment(
            topic.topic_id,
            {partition.index: partition.replicas for partition in topic.partitions},
            {partition.index: partition.adding for partition in topic.partitions if partition.adding},
            {partition.index: partition.removing for partition in topic.partitions if partition.removing},
            topic.unknown_keys,
        )
    )


def encoded_state(partition: PartitionView, controller_epoch: int) -> bytes:
    """Encode the state of a partition."""
    return znodes.encode_state(
        znodes.PartitionState(
            partition.leader,
            partition.leader_epoch,
            partition.isr,
            controller_epoch,
            partition.is_recovering,
            partition.elr,
            partition.last_known_elr,
            partition.last_unclean_epoch,
            partition.unknown_keys,
        )
    )


def partitions_of(topics: Iterable[TopicView]) -> Iterator[TopicPartition]:
    """Yield the names of all partitions."""
    for topic in topics:
        for partition in topic.partitions:
            yield TopicPartition(topic.name, partition.index)


def _size(op: Op) -> int:
    return len(op.path) + (len(op.value) if isinstance(op, Create | Put) else 0)
