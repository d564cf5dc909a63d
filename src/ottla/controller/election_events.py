"""Decides which replicas lead: when brokers come and go, on request, and to move leaders to their preferred replicas.

Every event names the partitions that it concerns, or all with None: the caller decides about many in slices.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ottla.controller.elections import Election, ElectionRules
from ottla.controller.next_partition_state import PartitionTarget, changed
from ottla.controller.overlay import Overlay, partitions_of
from ottla.core.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    KafkaError,
    PreferredLeaderNotAvailable,
    UnknownTopicOrPartition,
)
from ottla.core.ids import TopicPartition
from ottla.metadata_store import znodes
from ottla.metadata_store.cluster_view import NO_LEADER, ClusterView, PartitionView
from ottla.metadata_store.store import NO_VERSION, Create, Put

log = logging.getLogger(__name__)

Partitions = Sequence[TopicPartition]


class BrokersGone(NamedTuple):
    """Registrations of brokers have ended. A broker that has registered again counts as gone, and then as started."""

    node_ids: frozenset[int]
    partitions: Partitions | None = None


class BrokerStarted(NamedTuple):
    """A broker started: it leads its partitions in a new epoch, and partitions that waited for it get a leader."""

    node_id: int
    partitions: Partitions | None = None


class BrokerShutsDown(NamedTuple):
    """A broker is about to stop: others take over what they can, and it leaves the ISRs."""

    node_id: int
    partitions: Partitions | None = None


class ReplicasReported(NamedTuple):
    """A broker reported replicas that lost records or are offline, or that they are not so any more."""

    node_id: int
    partitions: Partitions


class ElectMissing(NamedTuple):
    """Elect leaders of partitions without one, where the rules now allow it."""

    partitions: Partitions | None = None


class NoteBrokers(NamedTuple):
    """Remember in the store the broker epochs on which the controller has acted."""

    epochs: Mapping[int, int]
    is_new: bool  # the node does not exist yet


class ElectLeaders(NamedTuple):
    """Elect preferred leaders or, as an operator's order, leaders that may lack records."""

    election: Election
    partitions: Partitions


ElectionEvent = BrokersGone | BrokerStarted | BrokerShutsDown | ReplicasReported | ElectMissing


class ContradictoryStates:
    """The states with an ISR that has none of the replicas: they get no leader before an operator writes others."""

    def __init__(self) -> None:
        self._logged: dict[TopicPartition, int] = {}  # with their partition epochs

    def log(self, overlay: Overlay) -> None:
        """Log once each state from which no leader can be elected; a malformed one was logged with its node."""
        for name, epoch in overlay.contradictory.items():
            partition = overlay.partition(*name)
            if self._logged.get(name) != epoch and partition is not None and partition.isr:
                log.error(
                    "no leader can be elected for %s: none of its ISR %s is among its replicas %s. Write a replica "
                    "that has all records into `isr` of %s with ZooKeeper's shell",
                    name,
                    list(partition.isr),
                    list(partition.replicas),
                    znodes.state_path(*name),
                )
            self._logged[name] = epoch


def elect(overlay: Overlay, event: ElectionEvent) -> None:
    """Decide the states of the partitions that an event concerns."""
    names: Iterable[TopicPartition] = (
        event.partitions if event.partitions is not None else list(partitions_of(overlay.base.topics.values()))
    )
    for name in names:
        partition = overlay.partition(*name)
        if partition is not None:
            try:
                new = _next_state(overlay, event, name, partition)
            except EligibleLeadersNotAvailable:
                overlay.contradictory[name] = partition.partition_epoch
                continue
            if new is not None:
                overlay.put_partition(name.topic, new)


def _next_state(
    overlay: Overlay, event: ElectionEvent, name: TopicPartition, partition: PartitionView
) -> PartitionView | None:
    match event:
        case BrokersGone(node_ids):
            if partition.partition_epoch == NO_VERSION or node_ids.isdisjoint((partition.leader, *partition.isr)):
                return None
            rules = overlay.election_rules(*name)._replace(gone=node_ids)
            return changed(
                partition, rules, PartitionTarget(isr=tuple(each for each in partition.isr if each not in node_ids))
            )
        case BrokerStarted(node_id):
            if partition.partition_epoch == NO_VERSION:
                return _first_leader(overlay, partition) if node_id in partition.replicas else None
            rules = overlay.election_rules(*name)
            if is_unclean_start(overlay, node_id, name.topic):
                rules = rules._replace(unclean={node_id})
            return changed(
                partition, rules, _without_offline(partition, rules), starts_term=partition.leader == node_id
            )
        case BrokerShutsDown(node_id):
            if partition.partition_epoch == NO_VERSION or node_id not in (partition.leader, *partition.isr):
                return None
            rest = tuple(each for each in partition.isr if each != node_id)
            return changed(partition, overlay.election_rules(*name), PartitionTarget(isr=rest or partition.isr))
        case ReplicasReported() | ElectMissing():
            if partition.partition_epoch == NO_VERSION:
                return _first_leader(overlay, partition)
            rules = overlay.election_rules(*name)
            return changed(partition, rules, _without_offline(partition, rules))


def note_brokers(overlay: Overlay, event: NoteBrokers) -> None:
    """Decide to write the note; the controller epoch alone fences it."""
    text = znodes.encode_handled_brokers(event.epochs)
    write = Create(znodes.HANDLED_BROKERS, text) if event.is_new else Put(znodes.HANDLED_BROKERS, text)
    overlay.put_nodes([write])


def is_unclean_start(overlay: Overlay, node_id: int, topic: str) -> bool:
    """Return whether a broker may have lost records of a topic that were acknowledged, but not synced."""
    report = overlay.base.replica_reports.get(node_id)
    return report is not None and not report.is_clean and overlay.is_page_cache(topic)


def _without_offline(partition: PartitionView, rules: ElectionRules) -> PartitionTarget:
    return PartitionTarget(isr=tuple(each for each in partition.isr if each not in rules.offline))


def _first_leader(overlay: Overlay, partition: PartitionView) -> PartitionView | None:
    """Return the first state of a partition that was assigned, but for which no controller elected a leader."""
    first = first_state(overlay.base, partition)
    if first.leader == NO_LEADER:
        return None
    return replace(first, leader_epoch=partition.leader_epoch + 1)


def first_state(view: ClusterView, partition: PartitionView) -> PartitionView:
    """Return the state of a new, empty partition: every live replica is in sync and the first of them leads."""
    replicas = partition.replicas
    alive = tuple(
        replica for replica in replicas if replica in view.brokers and not view.brokers[replica].is_shutting_down
    )
    alive = alive or tuple(replica for replica in replicas if replica in view.brokers)
    leader = alive[0] if alive else NO_LEADER
    return replace(partition, leader=leader, leader_epoch=0, isr=alive or replicas[:1], partition_epoch=0)


# ---- On request


def elect_leaders(overlay: Overlay, event: ElectLeaders) -> list[KafkaError | None]:
    """Elect leaders on request; returns None or an error for each partition, as Kafka's."""
    outcomes: list[KafkaError | None] = []
    for name in event.partitions:
        try:
            _elect_on_request(overlay, name, event.election)
        except KafkaError as error:
            outcomes.append(error)
        else:
            outcomes.append(None)
    return outcomes


def _elect_on_request(overlay: Overlay, name: TopicPartition, election: Election) -> None:
    partition = overlay.partition(*name)
    if partition is None:
        topic = overlay.topic(name.topic)
        raise UnknownTopicOrPartition(f"No such partition as {name}" if topic else f"No such topic as {name.topic}")
    if has_wanted_leader(partition, election):
        raise ElectionNotNeeded
    new = changed(partition, overlay.election_rules(*name), election=election)
    if new is None:
        raise PreferredLeaderNotAvailable if election is Election.PREFERRED else EligibleLeadersNotAvailable
    overlay.put_partition(name.topic, new)


def has_wanted_leader(partition: PartitionView, election: Election) -> bool:
    """Return whether an election is not needed."""
    if election is Election.PREFERRED:
        return partition.leader == partition.replicas[0]
    return partition.leader != NO_LEADER


# ---- Balance


def imbalanced(view: ClusterView, percentage: int) -> list[TopicPartition]:
    """List the partitions to lead again by their preferred replicas.

    They are those of live brokers that lead too few of the partitions for which they are the preferred replica: more
    than `percentage` of them are led by others. Partitions in reassignment are left out.
    """
    preferred: dict[int, int] = {}
    elsewhere: dict[int, list[TopicPartition]] = {}
    for topic in view.topics.values():
        for partition in topic.partitions:
            if partition.adding or partition.removing or not partition.replicas:
                continue
            first = partition.replicas[0]
            preferred[first] = preferred.get(first, 0) + 1
            if partition.leader != first and first in partition.isr:
                elsewhere.setdefault(first, []).append(TopicPartition(topic.name, partition.index))
    return [
        name
        for broker in sorted(elsewhere)
        if broker in view.brokers and len(elsewhere[broker]) * 100 > percentage * preferred[broker]
        for name in elsewhere[broker]
    ]
