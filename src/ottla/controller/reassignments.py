"""Decides reassignments of replicas (KIP-455): start, replace, cancel, complete.

A reassignment is one change of the topic's assignment: the replicas are the target and, at the end, those to remove.
Replicas that are added fetch outside the ISR. When the ISR holds all that are added, the change that says so also
completes the reassignment (`next_partition_state.py`): one that stays may be down, unless the ISR would shrink, as
fewer are added than removed. The rules and the errors are Kafka's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ottla.controller.next_partition_state import PartitionTarget, changed
from ottla.controller.overlay import Overlay
from ottla.controller.topics import checked_assignment
from ottla.core.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    KafkaError,
    NoReassignmentInProgress,
    UnknownTopicOrPartition,
)
from ottla.core.ids import TopicPartition
from ottla.metadata_store.cluster_view import ClusterView, PartitionView


class RequestedReassignment(NamedTuple):
    """Assign a partition to other brokers; None cancels the reassignment that is running."""

    partition: TopicPartition
    replicas: Sequence[int] | None


class Reassign(NamedTuple):
    """Start or cancel reassignments. Without `allow_factor_change` the number of replicas must stay (KIP-860)."""

    reassignments: Sequence[RequestedReassignment]
    allow_factor_change: bool = True


class RunningReassignment(NamedTuple):
    """Describes a reassignment that is running."""

    partition: TopicPartition
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


def reassign(overlay: Overlay, event: Reassign) -> list[KafkaError | None]:
    """Decide reassignments, each for itself; returns None or an error for each."""
    outcomes: list[KafkaError | None] = []
    for reassignment in event.reassignments:
        try:
            _reassign(overlay, reassignment, event)
        except KafkaError as error:
            outcomes.append(error)
        else:
            outcomes.append(None)
    return outcomes


def _reassign(overlay: Overlay, wanted: RequestedReassignment, event: Reassign) -> None:
    name = wanted.partition
    partition = overlay.partition(*name)
    if partition is None:
        if overlay.topic(name.topic) is None:
            raise UnknownTopicOrPartition(f"Unable to find a topic named {name.topic}.")
        raise UnknownTopicOrPartition(f"Unable to find partition {name.topic}:{name.partition}.")
    rules = overlay.election_rules(*name)
    target = _original(partition) if wanted.replicas is None else _target(overlay, partition, wanted.replicas, event)
    kept = target.replicas or partition.replicas
    stays_in_sync = any(each in kept for each in partition.isr)
    if not stays_in_sync and not (rules.is_unclean_allowed and any(map(rules.may_lead, kept))):
        raise InvalidReplicaAssignment(
            f"Unable to {'revert' if wanted.replicas is None else 'change'} partition assignment for "
            f"{name.topic}:{name.partition} because it would require an unclean leader election."
        )
    new = changed(partition, rules, target)
    if new is not None:
        overlay.put_partition(name.topic, new)


def _target(overlay: Overlay, partition: PartitionView, replicas: Sequence[int], event: Reassign) -> PartitionTarget:
    """Return the assignment with the new target; it replaces a running one, whose added replicas may go at once."""
    target = checked_assignment(overlay.base, replicas, None)
    original = _original_replicas(partition)
    if not event.allow_factor_change and len(target) != len(original):
        raise InvalidReplicationFactor(f"The replication factor is changed from {len(original)} to {len(target)}")
    removing = tuple(each for each in sorted(original) if each not in target)
    adding = tuple(each for each in sorted(target) if each not in original)
    return PartitionTarget(replicas=(*target, *removing), adding=adding, removing=removing)


def _original(partition: PartitionView) -> PartitionTarget:
    """Return the assignment before the reassignment that is running. Raises `NoReassignmentInProgress`."""
    if not partition.adding and not partition.removing:
        raise NoReassignmentInProgress
    return PartitionTarget(replicas=_original_replicas(partition), adding=(), removing=())


def _original_replicas(partition: PartitionView) -> tuple[int, ...]:
    return tuple(each for each in partition.replicas if each not in partition.adding)


def running_reassignments(
    view: ClusterView, partitions: Sequence[TopicPartition] | None = None
) -> list[RunningReassignment]:
    """List the reassignments that are running, of all or of some partitions; unknown partitions are left out."""
    if partitions is None:
        found = [
            (TopicPartition(topic.name, partition.index), partition)
            for topic in view.topics.values()
            for partition in topic.partitions
        ]
    else:
        found = [(name, known) for name in partitions if (known := view.partition(*name)) is not None]
    return [
        RunningReassignment(name, partition.replicas, partition.adding, partition.removing)
        for name, partition in found
        if partition.adding or partition.removing
    ]
