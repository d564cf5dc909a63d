"""Runs the transactions of one transactional id as a pure state machine: events in, outputs out (events.py).

`step` never waits, never reads a clock, never touches a log, so a seed replays any schedule. It decides; it never
changes `metadata`, the state that is in the log. A transition is written first (`WriteMetadata`), and its record
changes the state by `apply`, which also loads the log, as soon as it is durable; the event `Stored` follows. Until then
the transition is pending, and requests that would need another one are refused with CONCURRENT_TRANSACTIONS. A write
that fails leaves the state as it is; one that takes too long stays pending, since its record may get into the log yet.

    Empty --AddPartitions--> Ongoing --EndTxn, timeout, InitProducerId--> PrepareCommit or PrepareAbort
      ^                        ^                                            |
      |                        |                                            markers are written to all partitions
    InitProducerId             AddPartitions                                v
      +------------------------+--------------------------------------- CompleteCommit or CompleteAbort

PrepareCommit and PrepareAbort are the points of no return: they are durable before any marker is written, and after a
restart the markers are written again. Sources: KIP-98, KIP-360 (producers that continue), KIP-588 (timeouts are
recoverable), KIP-890 (the epoch grows with each transaction), KAFKA-18464, KAFKA-18660, KAFKA-19367, KAFKA-20090 and
KAFKA-20785 (order of the checks, overflow of epochs).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import NamedTuple, assert_never

from ottla.core.errors import ErrorCode
from ottla.core.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP, ProducerIdAndEpoch, TopicPartition
from ottla.internal_topics.machine_events import NO_TICKET, Loaded, NotStored, Reply, Stored
from ottla.transactions.events import (
    AbortTimedOut,
    AddPartitions,
    AllocateProducerId,
    EndTxn,
    Event,
    Expire,
    InitProducerId,
    MarkersSent,
    NeedsProducerId,
    Output,
    Retry,
    RetryTimer,
    SendMarkers,
    TransactionAnswer,
    WriteMetadata,
    WriteTimedOut,
)
from ottla.transactions.metadata import (
    BETWEEN_TRANSACTIONS,
    EPOCH_MAX,
    PREPARED,
    SERVER_VERSION,
    TransactionMetadata,
    TransactionState,
    TransactionVersion,
    is_epoch_exhausted,
)

RETRY_MS = 100
"""Delay before markers, or the record of the completion, are written again."""

_GIVE_UP = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})
"""Errors of a marker after which another coordinator must complete the transaction."""

_PARTITION_IS_DONE = frozenset(
    {ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT}
)
"""Results after which no marker has to be written to a partition; a deleted one needs none."""


class TransitionReason(Enum):
    """Lists the reasons of a transition."""

    INIT = "a producer id is initialized"
    ADD = "partitions are added"
    END = "the client ends the transaction"
    FENCE = "the coordinator aborts the transaction"
    COMPLETE = "all markers are written"
    EXPIRE = "the id was unused for too long"


class Pending(NamedTuple):
    """Holds the transition in progress. While markers are being written its `write` is None."""

    why: TransitionReason
    metadata: TransactionMetadata | None  # None deletes the id
    write: int | None
    ticket: int = NO_TICKET
    last_epoch: int = NO_PRODUCER_EPOCH  # before that of the metadata


class TransactionMachine:
    """Decides what happens to one transactional id.

    Only `metadata` is in the log. The rest is lost with the machine: a producer that repeats a request to the
    coordinator after that is fenced where the answer depends on it, as it is in Kafka.
    """

    __slots__ = (
        "_out",
        "_writes",
        "last_epoch",
        "metadata",
        "pending",
        "stopped",
        "was_aborted_by_client",
        "without_marker",
    )

    def __init__(self, metadata: TransactionMetadata) -> None:
        """Begin with the state of the first record of an id that is loaded, or of a new id, whose epoch is -1."""
        self.metadata = metadata  # changed by `apply` only
        self.pending: Pending | None = None
        self.without_marker: frozenset[TopicPartition] = frozenset()
        self.last_epoch = NO_PRODUCER_EPOCH  # the producer epoch before the present one
        self.was_aborted_by_client = False  # the last transaction
        self.stopped = False  # another coordinator has to complete the transaction
        self._writes = 0
        self._out: list[Output] = []

    def apply(self, metadata: TransactionMetadata) -> None:
        """Take the state of a record in the log: one that was written just now, or that is being loaded."""
        self.metadata = metadata

    def step(self, event: Event, *, now_ms: int, ticket: int = NO_TICKET) -> list[Output]:
        """Handle an event and return the outputs in order. Each ticket is answered once, now or by a later step."""
        self._out = []
        match event:
            case InitProducerId():
                self._init(event, now_ms, ticket)
            case AddPartitions():
                self._add(event, now_ms, ticket)
            case EndTxn():
                self._end(event, now_ms, ticket)
            case AbortTimedOut():
                self._abort_timed_out(event, now_ms)
            case Expire(after_ms):
                self._expire(after_ms, now_ms)
            case Stored(write):
                self._stored(write, now_ms)
            case NotStored(write, error):
                self._not_stored(write, error)
            case WriteTimedOut(write):
                self._write_timed_out(write)
            case MarkersSent(results):
                self._markers_sent(results)
            case RetryTimer():
                self._retry()
            case Loaded():
                if self.metadata.state in PREPARED:
                    self._complete(now_ms)
            case _:
                assert_never(event)
        self._check()
        outputs, self._out = self._out, []
        return outputs

    def verify(self, producer: ProducerIdAndEpoch, partitions: frozenset[TopicPartition]) -> ErrorCode:
        """Return whether all partitions are in the transaction of this producer (KIP-890). Changes nothing."""
        metadata = self.metadata
        if metadata.producer_id != producer.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if metadata.producer_epoch != producer.epoch:
            return ErrorCode.PRODUCER_FENCED
        if metadata.state in PREPARED:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        return ErrorCode.NONE if partitions <= metadata.partitions else ErrorCode.TRANSACTION_ABORTABLE

    # ---- InitProducerId

    def _init(self, event: InitProducerId, now_ms: int, ticket: int) -> None:
        metadata, expected = self.metadata, event.expected
        if self.pending is not None:
            self._refuse(ticket, ErrorCode.CONCURRENT_TRANSACTIONS)
        elif expected is not None and not self._may_continue(expected):
            self._refuse(ticket, ErrorCode.PRODUCER_FENCED)
        elif metadata.state in PREPARED:
            self._refuse(ticket, ErrorCode.CONCURRENT_TRANSACTIONS)
        elif metadata.state is TransactionState.ONGOING:
            self._fence(event, now_ms, ticket)
        elif metadata.is_epoch_exhausted and (expected is None or expected.epoch == metadata.producer_epoch):
            if event.new_producer_id == NO_PRODUCER_ID:
                self._out.append(AllocateProducerId(event, ticket))
                return
            last_epoch = metadata.producer_epoch if expected is not None else NO_PRODUCER_EPOCH
            self._initialize(event.new_producer_id, 0, last_epoch, event.timeout_ms, now_ms, ticket)
        else:
            self._initialize_next_epoch(event, now_ms, ticket)

    def _may_continue(self, expected: ProducerIdAndEpoch) -> bool:
        """Return whether a producer that gives its id may go on; its epoch is compared later."""
        metadata = self.metadata
        if metadata.producer_epoch == NO_PRODUCER_EPOCH:
            return True  # a new id: the producer's state expired
        if expected.producer_id == metadata.producer_id:
            return True
        # It repeats the request for which it got a new producer id, whose answer was lost.
        return expected.producer_id == metadata.previous_producer_id and is_epoch_exhausted(expected.epoch)

    def _initialize_next_epoch(self, event: InitProducerId, now_ms: int, ticket: int) -> None:
        metadata, expected = self.metadata, event.expected
        epoch = metadata.producer_epoch
        if expected is None:
            next_epoch, last_epoch = epoch + 1, NO_PRODUCER_EPOCH
        elif epoch in (NO_PRODUCER_EPOCH, expected.epoch):
            next_epoch, last_epoch = epoch + 1, epoch
        elif expected.epoch == self.last_epoch:
            # A retry of a request that succeeded. No other producer was initialized: that would have set it to -1.
            next_epoch, last_epoch = epoch, self.last_epoch
        else:
            self._refuse(ticket, ErrorCode.PRODUCER_FENCED)
            return
        self._initialize(metadata.producer_id, next_epoch, last_epoch, event.timeout_ms, now_ms, ticket)

    def _initialize(
        self, producer_id: int, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int, ticket: int
    ) -> None:
        metadata = replace(
            self.metadata,
            state=TransactionState.EMPTY,
            producer_id=producer_id,
            previous_producer_id=self.metadata.producer_id,
            producer_epoch=epoch,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            started_wall_ms=NO_TIMESTAMP,
            updated_wall_ms=now_ms,
        )
        self._store(TransitionReason.INIT, metadata, ticket, last_epoch)

    # ---- AddPartitions

    def _add(self, event: AddPartitions, now_ms: int, ticket: int) -> None:
        metadata = self.metadata
        if self.pending is not None:  # before the epoch, which the pending transition may change (KAFKA-18660)
            self._refuse(ticket, ErrorCode.CONCURRENT_TRANSACTIONS)
        elif metadata.producer_id != event.producer_id:
            self._refuse(ticket, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        elif metadata.producer_epoch != event.producer_epoch:
            self._refuse(ticket, ErrorCode.PRODUCER_FENCED)
        elif metadata.state in PREPARED:
            self._refuse(ticket, ErrorCode.CONCURRENT_TRANSACTIONS)
        elif metadata.state is TransactionState.ONGOING and event.partitions <= metadata.partitions:
            self._reply(ticket, TransactionAnswer())
        else:
            started = metadata.started_wall_ms if metadata.state is TransactionState.ONGOING else now_ms
            added = replace(
                metadata,
                state=TransactionState.ONGOING,
                previous_producer_id=metadata.producer_id,
                partitions=metadata.partitions | event.partitions,
                started_wall_ms=started,
                updated_wall_ms=now_ms,
                client_version=event.client_version,
            )
            self._store(TransitionReason.ADD, added, ticket)

    # ---- The end of a transaction

    def _end(self, event: EndTxn, now_ms: int, ticket: int) -> None:
        if event.client_version >= TransactionVersion.TV_2:
            self._end_with_epoch_bump(event, now_ms, ticket)
            return
        metadata, state = self.metadata, self.metadata.state
        complete = TransactionState.COMPLETE_COMMIT if event.committed else TransactionState.COMPLETE_ABORT
        prepared = TransactionState.PREPARE_COMMIT if event.committed else TransactionState.PREPARE_ABORT
        if metadata.producer_id != event.producer_id:
            self._refuse(ticket, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        elif metadata.producer_epoch != event.producer_epoch:
            self._refuse(ticket, ErrorCode.PRODUCER_FENCED)
        elif self.pending is not None:
            self._refuse(ticket, ErrorCode.CONCURRENT_TRANSACTIONS)
        elif state is TransactionState.ONGOING:
            self._prepare(TransitionReason.END, event, metadata, prepared, now_ms, ticket)
        elif state is complete:
            self._reply(ticket, TransactionAnswer())
        elif state is prepared:
            self._refuse(ticket, ErrorCode.CONCURRENT_TRANSACTIONS)
        else:
            self._refuse(ticket, ErrorCode.INVALID_TXN_STATE)

    def _end_with_epoch_bump(self, event: EndTxn, now_ms: int, ticket: int) -> None:
        """End a transaction of a client that gets a new epoch for the next one.

        The epoch decides whether the request is a retry: then it is the last epoch, else the present one. An abort
        of no transaction is a transaction of its own, whose bumped epoch fences late records.
        """
        metadata, state = self.metadata, self.metadata.state
        retry_after_overflow = (
            metadata.producer_epoch == 0
            and event.producer_epoch == EPOCH_MAX - 1
            and metadata.previous_producer_id == event.producer_id
        )
        is_retry = retry_after_overflow or metadata.producer_epoch == event.producer_epoch + 1
        is_current = metadata.producer_epoch == event.producer_epoch
        if metadata.producer_id != event.producer_id and not retry_after_overflow:
            self._refuse(ticket, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        elif self.pending is not None:  # before the epoch (KAFKA-18464)
            self._refuse(ticket, ErrorCode.CONCURRENT_TRANSACTIONS)
        elif state in PREPARED:
            same = (state is TransactionState.PREPARE_COMMIT) == event.committed
            wrong = ErrorCode.CONCURRENT_TRANSACTIONS if same else ErrorCode.INVALID_TXN_STATE
            self._refuse(ticket, wrong if is_retry else ErrorCode.PRODUCER_FENCED)
        elif state is TransactionState.ONGOING and is_current:
            prepared = TransactionState.PREPARE_COMMIT if event.committed else TransactionState.PREPARE_ABORT
            self._prepare(TransitionReason.END, event, metadata, prepared, now_ms, ticket)
        elif state in BETWEEN_TRANSACTIONS and is_current:
            if event.committed:
                self._refuse(ticket, ErrorCode.INVALID_TXN_STATE)
            else:
                begun = replace(metadata, started_wall_ms=now_ms)
                self._prepare(TransitionReason.END, event, begun, TransactionState.PREPARE_ABORT, now_ms, ticket)
        elif is_retry and state is TransactionState.COMPLETE_COMMIT:
            if event.committed:
                self._reply(ticket, TransactionAnswer(ErrorCode.NONE, metadata.producer_id, metadata.producer_epoch))
            else:
                self._refuse(ticket, ErrorCode.INVALID_TXN_STATE)
        elif is_retry and state is TransactionState.COMPLETE_ABORT:
            if (
                event.committed
            ):  # the client can recover from an abort of the coordinator (KAFKA-20785), not from its own
                own = ErrorCode.INVALID_TXN_STATE
                self._refuse(ticket, own if self.was_aborted_by_client else ErrorCode.PRODUCER_FENCED)
            else:
                self._reply(ticket, TransactionAnswer(ErrorCode.NONE, metadata.producer_id, metadata.producer_epoch))
        else:
            self._refuse(ticket, ErrorCode.PRODUCER_FENCED)

    def _abort_timed_out(self, event: AbortTimedOut, now_ms: int) -> None:
        metadata = self.metadata
        is_open = metadata.state is TransactionState.ONGOING and self.pending is None
        if is_open and metadata.started_wall_ms + metadata.timeout_ms < now_ms:
            self._fence(event, now_ms, NO_TICKET)

    def _fence(self, event: InitProducerId | AbortTimedOut, now_ms: int, ticket: int) -> None:
        """Abort the open transaction with a higher epoch, which its producer does not get."""
        self._prepare(TransitionReason.FENCE, event, self.metadata, TransactionState.PREPARE_ABORT, now_ms, ticket)

    def _prepare(
        self,
        why: TransitionReason,
        event: NeedsProducerId,
        metadata: TransactionMetadata,
        state: TransactionState,
        now_ms: int,
        ticket: int,
    ) -> None:
        version = event.client_version if isinstance(event, EndTxn) else SERVER_VERSION
        epoch, last_epoch = metadata.producer_epoch, self.last_epoch
        next_producer_id = NO_PRODUCER_ID
        if version >= TransactionVersion.TV_2:
            if metadata.is_epoch_exhausted:
                if event.new_producer_id == NO_PRODUCER_ID:
                    self._out.append(AllocateProducerId(event, ticket))
                    return
                next_producer_id = event.new_producer_id
            epoch, last_epoch = min(epoch + 1, EPOCH_MAX), epoch
        prepared = replace(
            metadata,
            state=state,
            previous_producer_id=metadata.producer_id,
            producer_epoch=epoch,
            next_producer_id=next_producer_id,
            updated_wall_ms=now_ms,
            client_version=version,
        )
        self._store(why, prepared, ticket, last_epoch)

    def _complete(self, now_ms: int) -> None:
        """Write the markers of a decided transaction, then its completion."""
        metadata = self.metadata
        rotates = metadata.client_version >= TransactionVersion.TV_2 and metadata.next_producer_id != NO_PRODUCER_ID
        completed = replace(
            metadata,
            state=(
                TransactionState.COMPLETE_COMMIT
                if metadata.state is TransactionState.PREPARE_COMMIT
                else TransactionState.COMPLETE_ABORT
            ),
            producer_id=metadata.next_producer_id if rotates else metadata.producer_id,
            previous_producer_id=metadata.producer_id,
            producer_epoch=0 if rotates else metadata.producer_epoch,
            next_producer_id=NO_PRODUCER_ID,
            partitions=frozenset(),
            updated_wall_ms=now_ms,
        )
        self.pending = Pending(TransitionReason.COMPLETE, completed, None, last_epoch=self.last_epoch)
        self.without_marker = metadata.partitions
        self._retry()

    def _retry(self) -> None:
        """Write what a decided transaction still lacks: markers, or the record of its completion."""
        pending, metadata = self.pending, self.metadata
        assert pending is not None, metadata
        assert pending.why is TransitionReason.COMPLETE, pending
        if not self.without_marker:
            self._store(TransitionReason.COMPLETE, pending.metadata, NO_TICKET)
            return
        self._out.append(
            SendMarkers(
                metadata.producer_id,
                metadata.producer_epoch,
                metadata.state is TransactionState.PREPARE_COMMIT,
                metadata.client_version,
                self.without_marker,
            )
        )

    def _markers_sent(self, results: Mapping[TopicPartition, ErrorCode]) -> None:
        if any(error in _GIVE_UP for error in results.values()):
            self.stopped = True
            return
        self.without_marker -= {one for one, error in results.items() if error in _PARTITION_IS_DONE}
        if self.without_marker:
            self._out.append(Retry(RETRY_MS))
        else:
            self._retry()

    # ---- Expiry

    def _expire(self, after_ms: int, now_ms: int) -> None:
        metadata = self.metadata
        is_unused = metadata.state in BETWEEN_TRANSACTIONS and self.pending is None
        if is_unused and metadata.updated_wall_ms <= now_ms - after_ms:
            self._store(TransitionReason.EXPIRE, None, NO_TICKET)

    # ---- Writes

    def _store(
        self, why: TransitionReason, metadata: TransactionMetadata | None, ticket: int, last_epoch: int | None = None
    ) -> None:
        self._writes += 1
        if last_epoch is None:
            last_epoch = self.last_epoch
        self.pending = Pending(why, metadata, self._writes, ticket, last_epoch)
        self._out.append(WriteMetadata(self._writes, metadata))

    def _stored(self, write: int, now_ms: int) -> None:
        """Go on after a transition whose record is durable, and applied."""
        pending, self.pending = self.pending, None
        assert pending is not None, write
        assert pending.write == write, (pending, write)
        metadata = self.metadata
        assert pending.metadata == metadata, (pending, metadata)
        self.last_epoch = pending.last_epoch
        match pending.why:
            case TransitionReason.INIT:
                self._reply(
                    pending.ticket, TransactionAnswer(ErrorCode.NONE, metadata.producer_id, metadata.producer_epoch)
                )
            case TransitionReason.ADD:
                self._reply(pending.ticket, TransactionAnswer())
            case TransitionReason.END:
                self.was_aborted_by_client = metadata.state is TransactionState.PREPARE_ABORT
                if metadata.client_version >= TransactionVersion.TV_2:
                    self._reply(pending.ticket, self._next_transaction())
                else:
                    self._reply(pending.ticket, TransactionAnswer())
                self._complete(now_ms)
            case TransitionReason.FENCE:
                self.was_aborted_by_client = False
                # The producer retries, and gets an epoch that the aborted transaction did not have.
                self._refuse(pending.ticket, ErrorCode.CONCURRENT_TRANSACTIONS)
                self._complete(now_ms)
            case TransitionReason.COMPLETE:
                pass
            case TransitionReason.EXPIRE:
                raise AssertionError("the machine ends with the record that deletes its id")
            case _:
                assert_never(pending.why)

    def _next_transaction(self) -> TransactionAnswer:
        """Return the id and epoch of the next transaction: after the last epoch, those of the new producer id."""
        metadata = self.metadata
        if metadata.next_producer_id != NO_PRODUCER_ID:
            return TransactionAnswer(ErrorCode.NONE, metadata.next_producer_id, 0)
        return TransactionAnswer(ErrorCode.NONE, metadata.producer_id, metadata.producer_epoch)

    def _not_stored(self, write: int, error: ErrorCode) -> None:
        pending = self.pending
        assert pending is not None, write
        assert pending.write == write, (pending, write)
        if pending.why is not TransitionReason.COMPLETE:
            self.pending = None
            self._refuse(pending.ticket, error)
            return
        # Also after NOT_COORDINATOR: a disk may accept the record later, and a new leader closes this machine anyway.
        self.pending = pending._replace(write=None)
        self._out.append(Retry(RETRY_MS))

    def _write_timed_out(self, write: int) -> None:
        """Answer who waits. The transition stays in progress: another one must not be decided beside it."""
        pending = self.pending
        if pending is not None and pending.write == write:
            self._refuse(pending.ticket, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            self.pending = pending._replace(ticket=NO_TICKET)

    # ---- Outputs

    def _reply(self, ticket: int, answer: TransactionAnswer) -> None:
        if ticket != NO_TICKET:
            self._out.append(Reply(ticket, answer))

    def _refuse(self, ticket: int, error: ErrorCode) -> None:
        self._reply(ticket, TransactionAnswer(error))

    def _check(self) -> None:
        """Assert the invariants that hold after every step."""
        metadata, pending = self.metadata, self.pending
        if pending is not None and pending.metadata is not None:
            pending.metadata.check()
        if metadata.producer_epoch != NO_PRODUCER_EPOCH:
            metadata.check()
        if metadata.state in PREPARED:
            assert pending is not None, metadata
            assert pending.why is TransitionReason.COMPLETE, (metadata, pending)
            assert self.without_marker <= metadata.partitions
            assert not self.without_marker or pending.write is None, "completed before all markers are written"
        else:
            assert pending is None or pending.write is not None, pending
