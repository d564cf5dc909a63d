"""Estimates the work of the controller's decisions, so that it does many in slices, and indexes partitions so."""

from __future__ import annotations

from ottla.controller.broker_changes import PARTITIONS_PER_EVENT
from ottla.controller.election_events import (
    BrokersGone,
    BrokerShutsDown,
    BrokerStarted,
    ElectLeaders,
    ElectMissing,
    ReplicasReported,
)
from ottla.controller.isr import AlterPartition, AlterPartitionResult, alter_partitions
from ottla.controller.machine import Event
from ottla.controller.overlay import Overlay, PartitionIndex
from ottla.controller.reassignments import Reassign
from ottla.controller.security_changes import CreateAcls, DeleteAcls
from ottla.controller.topics import BROKER_DEFAULT, CreatePartitions, CreateTopic, DeleteTopic, FinishDeletion
from ottla.core.errors import KafkaError
from ottla.limits.loop_slices import LoopSlices
from ottla.metadata_store.cluster_view import ClusterView

EVENT_WORK = 10
"""Work of one event."""

PARTITION_WORK = 5
"""Work of one partition of an election."""

_MANY = 1_000
"""Of a deletion of ACLs, which may look at all of them."""


def work_of(event: Event) -> int:
    """Return the work of deciding an event, in units of `limits/loop_slices.py`."""
    if isinstance(event, BrokersGone | BrokerStarted | BrokerShutsDown | ReplicasReported | ElectMissing):
        return PARTITION_WORK * len(event.partitions or ())
    return EVENT_WORK


def new_partitions(event: CreateTopic, default: int) -> int:
    """Return the number of partitions that an event creates; 1 if it is invalid and will be refused."""
    if event.assignments:
        return len(event.assignments)
    return max(default if event.partitions == BROKER_DEFAULT else event.partitions, 1)


def _known_entries(overlay: Overlay, event: CreateAcls) -> int:
    """Return how many ACLs are written again beside the new ones, as far as it matters."""
    patterns = {binding.pattern for binding in event.bindings[:_MANY]}
    known = (overlay.base.acls.get(pattern) for pattern in patterns)
    return sum(len(acls.entries) for acls in known if acls is not None)


def partitions_of(overlay: Overlay, event: Event) -> int:
    """Estimate the number of partitions that a decision concerns."""
    match event:
        case CreateTopic():
            return new_partitions(event, 1)
        case CreatePartitions(name, total):
            return max(total, 0) if overlay.topic(name) is not None else 0
        case DeleteTopic(name):
            topic = overlay.topic(name)
            return len(topic.partitions) if topic is not None else 0
        case FinishDeletion():
            return len(event.nodes)
        case Reassign():
            return len(event.reassignments)
        case ElectLeaders():
            return len(event.partitions)
        case CreateAcls():
            return len(event.bindings) + _known_entries(overlay, event)
        case DeleteAcls():
            return _MANY
        case _:
            return 0


async def index_partitions(view: ClusterView, slices: LoopSlices) -> PartitionIndex:
    """Build the index of a snapshot in slices; what changes meanwhile is for the caller to apply."""
    index = PartitionIndex()
    for topic in view.topics.values():
        for first in range(0, len(topic.partitions), PARTITIONS_PER_EVENT):
            partitions = topic.partitions[first : first + PARTITIONS_PER_EVENT]
            index.add(topic.name, partitions)
            if slices.spend(len(partitions)):
                await slices.yield_to_loop()
    return index


async def alter_in_slices(
    overlay: Overlay, event: AlterPartition, slices: LoopSlices
) -> list[AlterPartitionResult | KafkaError]:
    """Decide the proposals of a request in slices; each is decided for itself. Raises `StaleBrokerEpoch`."""
    outcomes: list[AlterPartitionResult | KafkaError] = []
    for first in range(0, len(event.changes), PARTITIONS_PER_EVENT):
        some = event._replace(changes=event.changes[first : first + PARTITIONS_PER_EVENT])
        outcomes += alter_partitions(overlay, some)
        if slices.spend(PARTITION_WORK * len(some.changes)):
            await slices.yield_to_loop()
    return outcomes
