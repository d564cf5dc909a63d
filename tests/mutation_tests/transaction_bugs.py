"""Lists bugs of transactions and of their coordinator, and the suites of random schedules that must find them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ottla.broker.transaction_marker_writer import TransactionMarkerWriter
from ottla.core.errors import ErrorCode
from ottla.internal_topics.machine_runtime import MachineRuntime
from ottla.transactions.events import AddPartitions, TransactionAnswer
from ottla.transactions.machine import TransactionMachine, TransitionReason
from ottla.transactions.metadata import PREPARED, TransactionVersion
from ottla.transactions.transaction_runtime import TransactionRuntime
from tests.coordinator_schedules.test_transactions import schedule
from tests.coordinator_schedules.test_undecided_transactions import undecided
from tests.mutation_tests.group_bugs import schedules
from tests.mutation_tests.patching import Bug, Patch

FIRST, SECOND = "transactions of the first version in simulated time", "transactions in simulated time"
UNDECIDED = "a transaction whose outcome is not written"

TRANSACTION_SUITES: dict[str, Callable[[int, int], tuple[int, str] | None]] = {
    FIRST: partial(schedules, partial(schedule, TransactionVersion.TV_0)),
    SECOND: partial(schedules, partial(schedule, TransactionVersion.TV_2)),
    UNDECIDED: partial(schedules, partial(undecided, TransactionVersion.TV_2)),
}


# ---- The bugs

Original = Callable[..., Any]


def _any_epoch(original: Original) -> Original:
    def add(machine: TransactionMachine, event: AddPartitions, now_ms: int, ticket: int) -> None:
        original(machine, replace(event, producer_epoch=machine.metadata.producer_epoch), now_ms, ticket)

    return add


def _adds_nothing_to_what_is_there(original: Original) -> Original:
    def store(machine: TransactionMachine, why: TransitionReason, metadata: Any, *more: int) -> None:
        if why is TransitionReason.ADD:
            metadata = replace(metadata, partitions=metadata.partitions - machine.metadata.partitions)
        original(machine, why, metadata, *more)

    return store


def _no_epoch_bump(original: Original) -> Original:
    def store(machine: TransactionMachine, why: TransitionReason, metadata: Any, *more: int) -> None:
        if why in (TransitionReason.END, TransitionReason.FENCE):
            metadata = replace(metadata, producer_epoch=machine.metadata.producer_epoch)
        original(machine, why, metadata, *more)

    return store


def _fence_without_epoch_bump(original: Original) -> Original:
    def store(machine: TransactionMachine, why: TransitionReason, metadata: Any, ticket: int, *more: int) -> None:
        if why is TransitionReason.FENCE:
            epoch = machine.metadata.producer_epoch
            metadata = replace(metadata, producer_epoch=epoch, client_version=TransactionVersion.TV_0)
            more = ()
        original(machine, why, metadata, ticket, *more)

    return store


def _ready_at_once(original: Original) -> Original:
    """The client is answered before the outcome is durable."""

    def store(machine: TransactionMachine, why: TransitionReason, metadata: Any, ticket: int, *more: int) -> None:
        if why is TransitionReason.END:
            machine._reply(ticket, TransactionAnswer(ErrorCode.NONE, metadata.producer_id, metadata.producer_epoch))
            ticket = -1
        original(machine, why, metadata, ticket, *more)

    return store


def _applied_at_once(original: Original) -> Original:
    """A transition changes the state when it is decided."""

    def store(machine: TransactionMachine, why: TransitionReason, metadata: Any, *more: int) -> None:
        original(machine, why, metadata, *more)
        if why is TransitionReason.ADD:
            machine.apply(metadata)

    return store


def _over_at_its_timeout(original: Original) -> Original:
    """A transition whose write takes too long is over; its record gets into the log all the same."""

    def timed_out(machine: TransactionMachine, write: int) -> None:
        original(machine, write)
        if machine.pending is not None and machine.pending.why is not TransitionReason.COMPLETE:
            machine.pending = None

    return timed_out


def _ignored_when_it_is_late(original: Original) -> Original:
    def write_ended(runtime: TransactionRuntime, write: int, *more: Any) -> None:
        pending = runtime.machine.pending
        if pending is not None and pending.write == write:
            original(runtime, write, *more)

    return write_ended


def _without_markers(original: Original) -> Original:
    def retry(machine: TransactionMachine) -> None:
        machine.without_marker = frozenset()
        original(machine)

    return retry


def _every_marker_counts(original: Original) -> Original:
    return lambda machine, results: original(machine, dict.fromkeys(results, ErrorCode.NONE))


def _gives_up_the_completion(original: Original) -> Original:
    def not_stored(machine: TransactionMachine, store: int, error: ErrorCode) -> None:
        original(machine, store, error)
        if machine.metadata.state in PREPARED:
            machine._out = []

    return not_stored


def _without_abort(original: Original) -> Original:
    """A new producer gets its epoch while the transaction before it is open."""

    def init(machine: TransactionMachine, event: Any, now_ms: int, ticket: int) -> None:
        if machine.metadata.state.name == "ONGOING" and machine.pending is None and event.expected is None:
            machine._initialize_next_epoch(event, now_ms, ticket)
        else:
            original(machine, event, now_ms, ticket)

    return init


def _always_abort(original: Original) -> Original:
    async def send(writer: TransactionMarkerWriter, marker: Any, partitions: Any) -> Any:
        return await original(writer, marker._replace(committed=False), partitions)

    return send


def _does_nothing(_: Original) -> Original:
    return lambda *args, **kwargs: None


def _sent_before_durable(original: Original) -> Original:
    """Markers follow the decision at once, whether or not it gets into the log."""

    def feed(runtime: TransactionRuntime, event: Any, ticket: int = -1) -> None:
        original(runtime, event, ticket)
        pending = runtime.machine.pending
        decided = None if pending is None or pending.why is not TransitionReason.END else pending.metadata
        if decided is not None and decided.state in PREPARED:
            markers = runtime._environment.markers
            marker = _marker_of(decided, runtime._environment.writer.leader_epoch)
            runtime._run(_ignoring_the_result(markers.send(marker, decided.partitions)))

    return feed


def _marker_of(metadata: Any, coordinator_epoch: int) -> Any:
    from ottla.transactions.marker_port import TransactionMarker

    committed = metadata.state.name == "PREPARE_COMMIT"
    return TransactionMarker(
        metadata.producer_id, metadata.producer_epoch, committed, coordinator_epoch, metadata.client_version
    )


async def _ignoring_the_result(work: Any) -> None:
    await work


def _bug(name: str, what: str, suite: str, *patches: Patch, within: int = 60) -> Bug:
    return Bug(name, what, suite, patches, within=within)


TRANSACTION_BUGS = (
    _bug("transaction-epoch-not-checked", "partitions of a fenced producer are added", SECOND,
         Patch(TransactionMachine, "_add", _any_epoch)),
    _bug("partitions-replaced", "a partition that is added replaces the ones before", SECOND,
         Patch(TransactionMachine, "_store", _adds_nothing_to_what_is_there)),
    _bug("marker-kept-into-the-next-epoch", "a transaction ends without a new epoch", SECOND,
         Patch(TransactionMachine, "_store", _no_epoch_bump)),
    _bug("timeout-does-not-fence", "a transaction is aborted and its producer may go on", FIRST,
         Patch(TransactionMachine, "_store", _fence_without_epoch_bump)),
    _bug("commit-answered-before-durable", "EndTxn is answered before the outcome is durable", SECOND,
         Patch(TransactionMachine, "_store", _ready_at_once)),
    _bug("applied-before-durable", "a transition changes the state before its record is durable", SECOND,
         Patch(TransactionMachine, "_store", _applied_at_once)),
    _bug("slow-write-forgotten", "a transition is over when its write takes too long", SECOND,
         Patch(TransactionMachine, "_write_timed_out", _over_at_its_timeout),
         Patch(TransactionRuntime, "_write_ended", _ignored_when_it_is_late)),
    _bug("markers-before-durable", "markers are sent before the outcome is durable", UNDECIDED,
         Patch(TransactionRuntime, "feed", _sent_before_durable), within=1),
    _bug("completed-without-markers", "a transaction is complete before its markers are written", SECOND,
         Patch(TransactionMachine, "_retry", _without_markers)),
    _bug("failed-markers-count", "a marker that could not be written is not written again", SECOND,
         Patch(TransactionMachine, "_markers_sent", _every_marker_counts)),
    _bug("completion-given-up", "a completion that could not be written is not written again", SECOND,
         Patch(TransactionMachine, "_not_stored", _gives_up_the_completion), within=600),
    _bug("decided-transaction-not-resumed", "what was decided is not completed after a load", SECOND,
         Patch(MachineRuntime, "loaded", _does_nothing)),
    _bug("timeouts-not-checked", "a transaction that its producer left stays open", SECOND,
         Patch(TransactionMachine, "_abort_timed_out", _does_nothing)),
    _bug("open-transaction-not-aborted", "a new producer does not abort what the one before left", SECOND,
         Patch(TransactionMachine, "_init", _without_abort)),
    _bug("commit-marker-aborts", "the marker of a commit is one of an abort", SECOND,
         Patch(TransactionMarkerWriter, "send", _always_abort)),
)  # fmt: skip
