"""Records the elections and the changes of in-sync replicas that the controller has decided, with their cause."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ottla.controller.election_events import (
    BrokersGone,
    BrokerShutsDown,
    BrokerStarted,
    ElectLeaders,
    ElectMissing,
    ReplicasReported,
)
from ottla.controller.elections import Election
from ottla.controller.isr import AlterPartition
from ottla.controller.machine import Event
from ottla.controller.overlay import Overlay
from ottla.controller.reassignments import Reassign
from ottla.core.events import EventKind, EventLog
from ottla.core.ids import TopicPartition
from ottla.metadata_store.cluster_view import NO_LEADER, PartitionView

EVENTS_PER_DECISION_MAX = 200
"""More elections of one decision, as of a broker that ends, are counted in one event."""


def record_changes(events: EventLog, overlay: Overlay, decided: Sequence[Event]) -> None:
    """Record what a decision has changed, once it is written."""
    cause = cause_of(decided)
    count = 0
    for name, before, after in overlay.changed_partitions():
        if before.leader == after.leader and (before.isr == after.isr or _is_by_leader(decided)):
            continue
        count += 1
        if count <= EVENTS_PER_DECISION_MAX:
            _record(events, name, before, after, cause)
    if count > EVENTS_PER_DECISION_MAX:
        more = count - EVENTS_PER_DECISION_MAX
        events.record(EventKind.ELECTION, f"{cause}: {more} more partitions", numbers={"partitions": more})


def cause_of(decided: Iterable[Event]) -> str:
    """Describe why the controller decides."""
    return "; ".join(dict.fromkeys(filter(None, map(_cause, decided)))) or "by the controller"


def _cause(event: Event) -> str:
    match event:
        case BrokersGone(node_ids):
            return f"broker {', '.join(map(str, sorted(node_ids)))} is gone: its session with the metadata store ended"
        case BrokerStarted(node_id):
            return f"broker {node_id} started"
        case BrokerShutsDown(node_id):
            return f"broker {node_id} shuts down"
        case ReplicasReported(node_id):
            return f"broker {node_id} reported replicas that are offline, full, corrupt or lost records"
        case ElectMissing():
            return "a replica that may lead is there again"
        case ElectLeaders(election):
            return "an operator allowed an unclean election" if election is Election.UNCLEAN else "preferred election"
        case Reassign():
            return "a reassignment"
        case AlterPartition(broker_id):
            return f"proposed by the leader, broker {broker_id}"
        case _:
            return ""


def _is_by_leader(decided: Sequence[Event]) -> bool:
    """Return whether leaders have proposed it: they record the change themselves, and know why."""
    return all(isinstance(event, AlterPartition) for event in decided)


def _record(events: EventLog, name: TopicPartition, before: PartitionView, after: PartitionView, cause: str) -> None:
    isr = ", ".join(map(str, after.isr))
    if before.leader == after.leader:
        events.record(
            EventKind.ISR_CHANGE,
            f"{cause}; in sync now: {isr}",
            topic=name.topic,
            partition=name.partition,
            node=after.leader,
            numbers={"isr": len(after.isr), "isr_before": len(before.isr)},
        )
        return
    what = "no replica can lead" if after.leader == NO_LEADER else f"broker {after.leader} leads"
    is_unclean = after.leader != NO_LEADER and bool(before.isr) and after.leader not in before.isr
    is_unclean = is_unclean and after.leader not in before.elr
    if is_unclean:
        what += ", UNCLEAN: it was not in sync, acknowledged records may be lost"
    events.record(
        EventKind.ELECTION,
        f"{what} instead of {before.leader if before.leader != NO_LEADER else 'none'}: {cause}; in sync now: {isr}",
        topic=name.topic,
        partition=name.partition,
        node=after.leader,
        error="UNCLEAN_ELECTION" if is_unclean else "",
        numbers={"leader": after.leader, "before": before.leader, "epoch": after.leader_epoch},
    )
