"""Estimates the work of deciding an event, so that the controller decides many in slices."""

from __future__ import annotations

from ottla.controller.election_events import (
    BrokersGone,
    BrokerShutsDown,
    BrokerStarted,
    ElectLeaders,
    ElectMissing,
    ReplicasReported,
)
from ottla.controller.machine import Event
from ottla.controller.overlay import Overlay
from ottla.controller.reassignments import Reassign
from ottla.controller.security_changes import CreateAcls, DeleteAcls
from ottla.controller.topics import BROKER_DEFAULT, CreatePartitions, CreateTopic, DeleteTopic, FinishDeletion

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
