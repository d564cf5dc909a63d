"""Finds what brokers have done since the controller last acted: started, stopped, bounced, begun to shut down.

A controller remembers in the metadata store on which broker epochs it has acted, so that the next controller also sees
a broker that stopped and started while there was no controller.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from ottla.controller.election_events import (
    BrokersGone,
    BrokerShutsDown,
    BrokerStarted,
    ElectionEvent,
    ElectMissing,
    ReplicasReported,
)
from ottla.controller.overlay import PartitionIndex
from ottla.core.ids import TopicPartition
from ottla.metadata_store import znodes
from ottla.metadata_store.cluster_view import NO_LEADER, ClusterView, PartitionView

_NO_PARTITIONS: frozenset[TopicPartition] = frozenset()

PARTITIONS_PER_EVENT = 100
"""Decided in one step of the event loop: about two milliseconds."""


class HandledBrokers(NamedTuple):
    """Holds the state of the brokers on which the controller has acted."""

    epochs: Mapping[int, int]  # of the brokers, by node id
    shutting_down: frozenset[int] = frozenset()
    reports: Mapping[int, znodes.ReplicaReport] = {}


def handled_after(view: ClusterView) -> HandledBrokers:
    """Return the state once all events of a snapshot are handled."""
    return HandledBrokers(
        {node: broker.epoch for node, broker in sorted(view.brokers.items())},
        frozenset(node for node, broker in view.brokers.items() if broker.is_shutting_down),
        view.replica_reports,
    )


def broker_events(
    view: ClusterView, handled: HandledBrokers, index: PartitionIndex, gone: Iterable[int] = ()
) -> list[ElectionEvent]:
    """List what brokers have done, in the order in which to decide it; `gone` are others that are not alive.

    A broker that is alive in another epoch was gone meanwhile.
    """
    alive = view.brokers
    lost = {node for node, epoch in handled.epochs.items() if node not in alive or alive[node].epoch != epoch}
    lost.update(node for node in gone if node not in alive)
    started = sorted(node for node, broker in alive.items() if handled.epochs.get(node) != broker.epoch)
    stopping = sorted(
        node
        for node, broker in alive.items()
        if broker.is_shutting_down and (node in started or node not in handled.shutting_down)
    )
    events: list[ElectionEvent] = []
    if lost:
        nodes = frozenset(lost)
        events += [BrokersGone(nodes, names) for names in _slices(_led_first(view, nodes, index))]
    for node in started:
        events += [BrokerStarted(node, names) for names in _slices(index.of([node]))]
    for node in sorted(view.replica_reports):
        events += [ReplicasReported(node, names) for names in _slices(_reported(view, handled, node))]
    for node in stopping:
        events += [BrokerShutsDown(node, names) for names in _slices(_led_first(view, {node}, index))]
    return events


def _led_first(view: ClusterView, nodes: Collection[int], index: PartitionIndex) -> list[TopicPartition]:
    """List the partitions with a replica on one of the brokers, first those that wait for another leader."""
    names = index.of(nodes)
    led = {name for name in names if (partition := view.partition(*name)) is not None and partition.leader in nodes}
    return sorted(names, key=lambda name: name not in led)


def _reported(view: ClusterView, handled: HandledBrokers, node: int) -> list[TopicPartition]:
    """List the replicas about which a broker reports something else than before."""
    new, old = view.replica_reports[node], handled.reports.get(node)
    if old is new:
        return []
    before, now = _named_by(old) if old else (_NO_PARTITIONS,) * 3, _named_by(new)
    return sorted(frozenset().union(*(earlier ^ later for earlier, later in zip(before, now, strict=True))))


def _named_by(report: znodes.ReplicaReport) -> tuple[frozenset[TopicPartition], ...]:
    """Return the suspect, the offline and the impaired replicas of a report."""
    return report.suspects, report.offline, _NO_PARTITIONS.union(*report.impaired.values())


def elections_missing(view: ClusterView) -> list[ElectionEvent]:
    """List elections of all partitions without a live leader, and of those whose reassignment may be complete."""
    names = [
        TopicPartition(topic.name, partition.index)
        for topic in view.topics.values()
        for partition in topic.partitions
        if _is_unsettled(view, partition)
    ]
    return [ElectMissing(topic_partitions) for topic_partitions in _slices(names)]


def _is_unsettled(view: ClusterView, partition: PartitionView) -> bool:
    """Return whether the state of a partition is not what a decision would have left."""
    if partition.leader not in view.brokers or partition.adding or partition.removing:
        return True
    return not set(partition.isr).issubset(partition.replicas)  # its assignment was written, its state was not


def is_any_restored(old: ClusterView, new: ClusterView) -> bool:
    """Return whether a partition without a valid state has one now, which an operator wrote: it may need a leader."""
    for name, indexes in new.changes_since(old).topics.items():
        before, after = old.topics.get(name), new.topics.get(name)
        if before is None or after is None:
            if after is not None and name in old.unreadable_topics:
                return True
            continue
        for index in indexes:
            if index < len(before.partitions) and index < len(after.partitions):
                was, is_now = before.partitions[index], after.partitions[index]
                if is_now.leader == NO_LEADER and is_now.isr and _is_contradictory(was):
                    return True
    return False


def _is_contradictory(partition: PartitionView) -> bool:
    return set(partition.isr).isdisjoint(partition.replicas)


def _slices(names: list[TopicPartition]) -> list[list[TopicPartition]]:
    return [names[first : first + PARTITIONS_PER_EVENT] for first in range(0, len(names), PARTITIONS_PER_EVENT)]
