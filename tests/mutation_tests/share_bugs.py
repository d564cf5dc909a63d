"""Lists bugs of share partitions and of the share coordinator, and the suite of random schedules that must find them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla.core.errors import ErrorCode
from ottla.share_coordinator import machine as coordinator_machine
from ottla.share_coordinator.machine import ShareCoordinatorMachine
from ottla.share_coordinator.records import Snapshot, StateRecord
from ottla.share_coordinator.states import RecordState
from ottla.share_partitions.events import ShareReply
from ottla.share_partitions.in_flight import InFlightRange
from ottla.share_partitions.machine import PartitionMachine
from tests.mutation_tests.patching import Bug, Patch
from tests.support.share_driver import run_schedule

Original = Callable[..., Any]

SUITE = "share partitions in simulated time"


def schedules(seed: int, within: int) -> tuple[int, str] | None:
    """Play schedules; returns how many it took and what was wrong."""
    for count in range(1, within + 1):
        try:
            run_schedule(seed * 1_000 + count)
        except Exception as error:  # noqa: BLE001 - whatever the bug led to
            return count, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return None


def _nothing(_original: Original) -> Original:
    return lambda *_args, **_more: None


def _count_stays(original: Original) -> Original:
    def take(machine: PartitionMachine, each: InFlightRange, member: str, now_ms: int) -> Any:
        before = each.delivery_count
        acquired = original(machine, each, member, now_ms)
        each.delivery_count = max(before, 1)
        return acquired._replace(delivery_count=each.delivery_count)

    return take


def _answered_first(original: Original) -> Original:
    def persist(machine: PartitionMachine, ended: Any, letters: Any, ticket: int) -> None:
        machine._out.append(ShareReply(ticket, ErrorCode.NONE))
        original(machine, ended, letters, -1)

    return persist


def _newest_alone(original: Original) -> Original:
    return lambda _older, newer, start_offset=-1: original((), newer, start_offset)


def _snapshot_without_states(original: Original) -> Original:
    def change(machine: ShareCoordinatorMachine, *more: Any) -> StateRecord:
        record: StateRecord = original(machine, *more)
        content = record.content
        return record._replace(content=content._replace(batches=())) if isinstance(content, Snapshot) else record

    return change


def _changed_at_once(original: Original) -> Original:
    """A decision changes the state itself."""

    def change(machine: ShareCoordinatorMachine, *more: Any) -> StateRecord:
        record: StateRecord = original(machine, *more)
        machine.apply(record, 0)
        return record

    return change


def _never_archived(original: Original) -> Original:
    return lambda machine, _count, kind: original(machine, 0, kind)


def _gap_is_done(original: Original) -> Original:
    def append(machine: PartitionMachine, first: int, last: int, state: RecordState, count: int) -> None:
        lost = state is RecordState.AVAILABLE and count == 0 and not machine._out and machine._writes == 0
        original(machine, first, last, RecordState.ARCHIVED if lost and len(machine._flight) else state, count)

    return append


def _archived_at_once(original: Original) -> Original:
    def state_after(*asked: Any) -> RecordState:
        state: RecordState = original(*asked)
        return RecordState.ARCHIVED if state is RecordState.ARCHIVING else state

    return state_after


def _applied_at_once(original: Original) -> Original:
    """The end of a delivery applies before it is durable."""

    def persist(machine: PartitionMachine, ended: Any, letters: Any, ticket: int) -> None:
        original(machine, ended, letters, ticket)
        for batch in ended:
            machine._apply(batch)

    return persist


def _bug(name: str, what: str, *patches: Patch) -> Bug:
    return Bug(name, what, SUITE, patches, 1, 60)


SHARE_BUGS = (
    _bug("share-lock-not-released", "a lock that expired is not released", Patch(PartitionMachine, "_expire_locks", _nothing)),
    _bug("delivery-count-not-increased", "a redelivery does not count", Patch(PartitionMachine, "_take", _count_stays)),
    _bug("delivery-limit-ignored", "a record is delivered beyond its limit",
         Patch(PartitionMachine, "_state_after", _never_archived)),
    _bug("foreign-acknowledgement-accepted", "a member may acknowledge what another one holds",
         Patch(PartitionMachine, "_refusal", _nothing)),
    _bug("share-acknowledged-before-durable", "an acknowledgement is answered before it is durable",
         Patch(PartitionMachine, "_persist", _answered_first)),
    _bug("delivery-ended-before-durable", "what a member acknowledged is done before that is durable",
         Patch(PartitionMachine, "_persist", _applied_at_once)),
    _bug("acknowledged-record-redelivered", "an update replaces the states of earlier ones: after loading they are available",
         Patch(coordinator_machine, "combine", _newest_alone)),
    _bug("snapshot-without-states", "a snapshot leaves out the states of records",
         Patch(ShareCoordinatorMachine, "_change", _snapshot_without_states)),
    _bug("state-changed-by-the-decision", "a decision of the share coordinator changes the state beside its records",
         Patch(ShareCoordinatorMachine, "_change", _changed_at_once)),
    _bug("unpersisted-records-dropped", "what was acquired at a crash counts as done",
         Patch(PartitionMachine, "_append", _gap_is_done)),
    _bug("dead-letters-lost", "what is for the dead letter queue is archived and not written there",
         Patch(PartitionMachine, "_state_after", _archived_at_once)),
    _bug("dead-letters-forgotten", "dead letters that a broker had not written before it was killed are not written",
         Patch(PartitionMachine, "unwritten_dead_letters", lambda _original: lambda _machine: ())),
)  # fmt: skip

SHARE_SUITES = {SUITE: schedules}
