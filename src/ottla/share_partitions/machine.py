"""Runs one share partition as a pure state machine: events in, outputs out (both declared in events.py).

A share partition is a partition of a topic as a share group consumes it: which records are delivered to whom, how
often, and which are done (KIP-932).

    Available --acquired by a fetch--> Acquired --accepted--> Acknowledged
        ^                                  |
        |                                  +--rejected, or released after the last delivery--> Archived
        +---released, or the lock expired--+                                                     ^
                                           |                                                     |
                                           +--the same, with a dead letter queue--> Archiving ---+

Archiving (KIP-1191) is persisted before the record is written to the dead letter queue: after a crash it is written
again. It is archived whether that succeeds or is given up, and holds the start of the share partition until then.

Acquiring is not persisted: a restart makes what was acquired available. The end of a delivery that a member asks for is
persisted first, and applies when that is durable: by `_apply`, which also loads what is persisted. Until then the
records stay acquired, and cannot change; if the write fails, the member holds them, unless the lock expired meanwhile.
What follows from an expired lock or from the dead letter queue applies at once, by `_apply` too, and is persisted then.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple, assert_never

from ottla.core.errors import ErrorCode
from ottla.internal_topics.machine_events import NO_TICKET
from ottla.share_coordinator.states import TERMINAL, RecordState, StateBatch, joined
from ottla.share_partitions.acknowledgements import AcknowledgementBatch, AcknowledgeType, AcquiredRecords, AcquireMode
from ottla.share_partitions.events import (
    Acknowledge,
    Acquire,
    AvailabilityChanged,
    DeadLetters,
    DeadLettersDone,
    Event,
    Extent,
    LocksDue,
    LogStartMoved,
    NotPersisted,
    Output,
    Persist,
    Persisted,
    Release,
    SharePartitionLimits,
    ShareReply,
    WriteDeadLetters,
)
from ottla.share_partitions.in_flight import NO_WRITE, InFlight, InFlightRange

NEVER_MS = -1
"""As the time of the next lock that expires: there is none."""

CHECKED_ALWAYS_MAX = 64
"""Up to so many ranges the invariants are checked after every step."""

_ALONE_ABOVE = 2
"""With a larger delivery count limit, a record is delivered alone at its last attempt: it may fail its batch."""

REJECTED = "Offset rejected by client."
EXHAUSTED = "Offset delivery count exceeded the threshold."
"""The causes that dead letters name, in Kafka's words."""

_NEW_STATE = {
    AcknowledgeType.GAP: RecordState.ARCHIVED,
    AcknowledgeType.ACCEPT: RecordState.ACKNOWLEDGED,
    AcknowledgeType.RELEASE: RecordState.AVAILABLE,
}


class PendingWrite(NamedTuple):
    """Holds a write to the share coordinator that has not ended."""

    ticket: int  # that waits for it
    ending: Sequence[StateBatch] = ()  # what applies once it is durable
    letters: tuple[DeadLetters, ...] = ()  # what goes to the dead letter queue then


class PartitionMachine:
    """Changes the states of the records of one share partition: `acquire` and `step`."""

    __slots__ = ("_flight", "_out", "_pending", "_writes", "limits", "next_expiry_ms")

    def __init__(self, start_offset: int, batches: Iterable[StateBatch], limits: SharePartitionLimits) -> None:
        """Take persisted states into use. Offsets between them were acquired and not persisted: they are available."""
        self.limits = limits
        self.next_expiry_ms = NEVER_MS  # `LocksDue` must come then; it may come earlier
        self._flight = InFlight(start_offset)
        self._writes = 0
        self._pending: dict[int, PendingWrite] = {}
        self._out: list[Output] = []
        for batch in batches:
            if batch.last >= start_offset:
                self._append(self._flight.end, batch.first - 1, RecordState.AVAILABLE, 0)
                self._append(max(batch.first, self._flight.end), batch.last, RecordState.AVAILABLE, 0)
                self._apply(batch)
        self._advance()

    def _apply(self, batch: StateBatch) -> list[InFlightRange]:
        """Take the persisted state of offsets in flight: of an end of their delivery now, or of one before a load."""
        flight = self._flight
        ranges = flight.between(max(batch.first, flight.start), min(batch.last, flight.end - 1))
        for each in ranges:
            each.apply(batch)
        return ranges

    def _append(self, first: int, last: int, state: RecordState, delivery_count: int) -> None:
        if first <= last:
            width = last - first + 1
            new = InFlightRange(first=first, last=last, state=state, delivery_count=delivery_count, width=width)
            self._flight.append(new)

    # ---- What a fetch needs

    @property
    def start_offset(self) -> int:
        """Return the first offset that is not done."""
        return self._flight.start

    @property
    def end_offset(self) -> int:
        """Return the next offset to read from the log for the first time."""
        return self._flight.end

    @property
    def delivery_complete_count(self) -> int:
        """Return how many offsets from the start on are done, or will be once they are persisted."""
        done = sum(len(each) for each in self._flight if each.is_terminal)
        return done + sum(
            max(0, batch.last - max(batch.first, self._flight.start) + 1)
            for write in self._pending.values()
            for batch in write.ending
            if batch.state in TERMINAL
        )

    @property
    def next_fetch_offset(self) -> int:
        """Return the offset to read from the log: of the first available record."""
        return next((each.first for each in self._flight if each.is_available), self._flight.end)

    @property
    def can_acquire(self) -> bool:
        """Return whether a fetch may succeed, as far as the share partition itself is concerned."""
        return self._flight.count < self.limits.record_locks_max or self.next_fetch_offset < self._flight.end

    def unwritten_dead_letters(self) -> tuple[DeadLetters, ...]:
        """Return what is on its way to the dead letter queue: after loading, what has to be written again."""
        return tuple(
            DeadLetters(each.first, each.last, each.delivery_count, self._likely_cause(each.delivery_count))
            for each in self._flight
            if each.state is RecordState.ARCHIVING
        )

    def _likely_cause(self, delivery_count: int) -> str:
        return EXHAUSTED if delivery_count >= self.limits.delivery_count_max else REJECTED

    def ranges(self) -> list[InFlightRange]:
        """Return the states of all offsets in flight, for tests and descriptions."""
        return list(self._flight)

    # ---- Acquiring

    def acquire(self, request: Acquire, *, now_ms: int) -> tuple[list[AcquiredRecords], list[Output]]:
        """Give available records of those that were read to a member. Each is delivered once more than before."""
        self._out = []
        acquired = self._acquire(request, now_ms) if request.max_records > 0 else []
        if request.aborted and acquired:
            acquired = self._without_aborted(acquired, request.aborted)
        return acquired, self._finish()

    def _acquire(self, request: Acquire, now_ms: int) -> list[AcquiredRecords]:
        flight, batches = self._flight, request.batches
        first, last = batches[0].first, batches[-1].last
        self._archive_missing(request.fetch_offset, first)
        first = max(first, flight.start)
        wanted = min(request.max_records, self.limits.record_locks_max - flight.count)
        if wanted <= 0:  # no further offset may be in flight
            wanted = min(request.max_records, flight.end - request.fetch_offset)
            last = min(last, flight.end - 1)
        found: list[AcquiredRecords] = []
        wanted -= self._acquire_again(request, first, last, wanted, now_ms, found)
        if wanted > 0 and last >= flight.end:
            self._acquire_new(request, max(first, flight.end), last, wanted, now_ms, found)
        return found

    def _acquire_again(
        self, request: Acquire, first: int, last: int, wanted: int, now_ms: int, found: list[AcquiredRecords]
    ) -> int:
        """Acquire records that were in flight before; returns how many, or all that were wanted to stop there."""
        available = [
            (max(each.first, first), min(each.last, last), self._may_deliver_together(each))
            for each in self._flight.overlapping(first, last)
            if each.is_available
        ]
        taken = 0
        for begin, end, together in available:
            if taken >= wanted:
                break
            if together is not None and taken:
                return wanted  # records that often failed are delivered by themselves
            stop = end if together is None else min(end, begin + together - 1)
            stop = min(stop, self._last_wanted(request, begin, stop, wanted - taken))
            found += [self._take(each, request.member, now_ms) for each in self._flight.between(begin, stop)]
            taken += stop - begin + 1
            if together is not None:
                return wanted
        return taken

    def _acquire_new(
        self, request: Acquire, first: int, last: int, wanted: int, now_ms: int, found: list[AcquiredRecords]
    ) -> None:
        """Acquire records that are read for the first time."""
        flight = self._flight
        if first > flight.end and not len(flight):
            flight.advance(first)
        self._append(flight.end, first - 1, RecordState.ARCHIVED, 0)  # the log has no records there
        last = self._last_wanted(request, first, last, wanted)
        piece_first = first
        if request.mode is AcquireMode.BATCH_OPTIMIZED:
            for batch in request.batches:
                if piece_first + request.batch_size <= batch.first <= last:
                    self._append(piece_first, batch.first - 1, RecordState.AVAILABLE, 0)
                    piece_first = batch.first
        self._append(piece_first, last, RecordState.AVAILABLE, 0)
        found += [self._take(each, request.member, now_ms) for each in flight.between(first, last)]

    def _take(self, each: InFlightRange, member: str, now_ms: int) -> AcquiredRecords:
        each.acquire(member, now_ms + self.limits.lock_duration_ms)
        self._expires_at(each.lock_ms)
        return AcquiredRecords(each.first, each.last, each.delivery_count)

    def _last_wanted(self, request: Acquire, first: int, last: int, wanted: int) -> int:
        """Return the last offset to acquire of [first, last]: with whole batches it may be more than wanted."""
        if last - first + 1 <= wanted:
            return last
        limit = first + wanted - 1
        if request.mode is AcquireMode.RECORD_LIMIT:
            return limit
        at = bisect_right(request.batches, limit, key=_first_of) - 1
        return min(last, max(limit, request.batches[at].last)) if at >= 0 else limit

    def _may_deliver_together(self, each: InFlightRange) -> int | None:
        """Return how many of these records a fetch may acquire; None without a limit.

        From half of the delivery count limit on, deliveries become smaller: one poison record must not archive the
        good ones that are delivered with it.
        """
        limit = self.limits.delivery_count_max
        if limit > _ALONE_ABOVE and each.delivery_count >= limit - 1:
            return 1
        small_from = max(2, (limit + 1) // 2)
        return (
            max(1, each.width >> (each.delivery_count - small_from + 1)) if each.delivery_count >= small_from else None
        )

    def _archive_missing(self, fetch_offset: int, first: int) -> None:
        """Archive available offsets from the one that was read up to the first batch: the log has no records there."""
        flight = self._flight
        for each in flight.between(max(fetch_offset, flight.start), min(first, flight.end) - 1):
            if each.is_available:
                each.release(RecordState.ARCHIVED)

    def _without_aborted(self, acquired: list[AcquiredRecords], aborted: Sequence[Extent]) -> list[AcquiredRecords]:
        """Archive what was acquired of aborted transactions; returns the rest."""
        result = []
        for one in acquired:
            first = one.first
            for extent in aborted:
                begin, end = max(first, extent.first), min(one.last, extent.last)
                if begin > end:
                    continue
                for each in self._flight.between(begin, end):
                    each.release(RecordState.ARCHIVED)
                if first < begin:
                    result.append(one._replace(first=first, last=begin - 1))
                first = end + 1
            if first <= one.last:
                result.append(one._replace(first=first))
        return result

    # ---- Events

    def step(self, event: Event, *, now_ms: int, ticket: int = NO_TICKET) -> list[Output]:
        """Handle an event and return the outputs in order. Each ticket is answered once, now or by a later step."""
        self._out = []
        match event:
            case Acknowledge():
                self._acknowledge(event, now_ms, ticket)
            case Release(member):
                self._release(member, ticket)
            case LocksDue():
                self._expire_locks(now_ms)
            case LogStartMoved(offset):
                if offset > self._flight.start:
                    self._flight.advance(offset)
                    self._out.append(AvailabilityChanged())
            case Persisted(write):
                self._persisted(write)
            case NotPersisted():
                self._not_persisted(event, now_ms)
            case DeadLettersDone(letters):
                self._archive(letters, ticket)
            case _:
                assert_never(event)
        return self._finish()

    def _finish(self) -> list[Output]:
        start = self._flight.start
        self._advance()
        if self._flight.start != start:
            self._out.append(AvailabilityChanged())
        if len(self._flight) <= CHECKED_ALWAYS_MAX:
            self._flight.check()
        outputs, self._out = self._out, []
        return outputs

    def _advance(self) -> None:
        """Move the start past records that are done."""
        start = self._flight.start
        for each in self._flight:
            if not each.is_terminal:
                break
            start = each.last + 1
        if start != self._flight.start:
            self._flight.advance(start)
        self._flight.merge()

    # ---- The end of a delivery

    def _acknowledge(self, event: Acknowledge, now_ms: int, ticket: int) -> None:
        for batch in event.batches:
            refusal = self._refusal(batch, event.member)
            if refusal is not None:
                self._reply(ticket, *refusal)
                return
        ended: list[StateBatch] = []
        letters: list[DeadLetters] = []
        for batch in event.batches:
            for first, last, kind in _by_type(batch):
                ranges = self._flight.between(max(first, self._flight.start), last)
                if kind is AcknowledgeType.RENEW:
                    self._renew(ranges, now_ms)
                else:
                    batches = [self._after(each, kind) for each in ranges]
                    ended += batches
                    letters += _dead_letters(batches, REJECTED if kind is AcknowledgeType.REJECT else EXHAUSTED)
        self._persist(ended, letters, ticket)

    def _refusal(self, batch: AcknowledgementBatch, member: str) -> tuple[ErrorCode, str] | None:
        """Return why a batch cannot be acknowledged; offsets before the start are ignored."""
        flight = self._flight
        if AcknowledgeType.RENEW in batch.types and not self.limits.may_renew:
            return ErrorCode.INVALID_REQUEST, "Renewing acquisition locks is not enabled for the group."
        if batch.last < flight.start:
            return None
        if not len(flight):
            return ErrorCode.INVALID_RECORD_STATE, "No record of the batch is acquired."
        if batch.first >= flight.end:
            return ErrorCode.INVALID_REQUEST, "The first offset is after the acquired records."
        if batch.last >= flight.end:
            return ErrorCode.INVALID_REQUEST, "The last offset is after the acquired records."
        for each in flight.overlapping(max(batch.first, flight.start), batch.last):
            if not each.is_acquired:
                return ErrorCode.INVALID_RECORD_STATE, "A record of the batch is not acquired."
            if each.member != member:
                return ErrorCode.INVALID_RECORD_STATE, "A record of the batch is acquired by another member."
        return None

    def _renew(self, ranges: list[InFlightRange], now_ms: int) -> None:
        for each in ranges:
            each.lock_ms = now_ms + self.limits.lock_duration_ms
            self._expires_at(each.lock_ms)

    def _release(self, member: str, ticket: int) -> None:
        """Make what a member holds available. The delivery counts, as in Kafka 4.4: the member may have had it."""
        held = [each for each in self._flight if each.is_acquired and each.member == member]
        ended = [self._after(each, AcknowledgeType.RELEASE) for each in held]
        self._persist(ended, _dead_letters(ended, EXHAUSTED), ticket)

    def _after(self, delivered: InFlightRange, kind: AcknowledgeType) -> StateBatch:
        """Return what is to be persisted at the end of a delivery."""
        count = delivered.delivery_count
        return StateBatch(delivered.first, delivered.last, self._state_after(count, kind), count)

    def _state_after(self, delivery_count: int, kind: AcknowledgeType) -> RecordState:
        """Return the state after a delivery: a record that was delivered often enough is not available any more."""
        is_last = kind is AcknowledgeType.RELEASE and delivery_count >= self.limits.delivery_count_max
        if is_last or kind is AcknowledgeType.REJECT:
            return RecordState.ARCHIVING if self.limits.has_dead_letter_queue else RecordState.ARCHIVED
        return _NEW_STATE[kind]

    def count_expired(self, now_ms: int) -> int:
        """Return how many records are acquired by a lock that has expired."""
        return sum(each.last - each.first + 1 for each in self._flight if each.is_acquired and each.lock_ms <= now_ms)

    def _expire_locks(self, now_ms: int) -> None:
        """Release what was acquired too long ago. That applies at once: no request waits for it."""
        held = [each for each in self._flight if each.is_acquired and each.lock_ms <= now_ms]
        expired = [self._after(each, AcknowledgeType.RELEASE) for each in held]
        for batch in expired:
            self._apply(batch)
        self.next_expiry_ms = NEVER_MS
        for each in self._flight:
            if each.is_acquired:
                self._expires_at(each.lock_ms)
        if expired:
            self._out.append(AvailabilityChanged())
            self._write(expired, PendingWrite(NO_TICKET, letters=_dead_letters(expired, EXHAUSTED)))

    def _expires_at(self, lock_ms: int) -> None:
        self.next_expiry_ms = lock_ms if self.next_expiry_ms == NEVER_MS else min(self.next_expiry_ms, lock_ms)

    # ---- Writes

    def _persist(self, ended: Sequence[StateBatch], letters: Sequence[DeadLetters], ticket: int) -> None:
        """Write the ends of deliveries; they apply, and the ticket is answered, when that is durable."""
        if not ended:
            self._reply(ticket, ErrorCode.NONE)
            return
        write = self._write(ended, PendingWrite(ticket, ended, tuple(letters)))
        for batch in ended:
            for each in self._flight.between(batch.first, batch.last):
                each.write = write

    def _write(self, batches: Sequence[StateBatch], write: PendingWrite) -> int:
        self._writes += 1
        self._pending[self._writes] = write
        self._out.append(Persist(self._writes, self._flight.start, self.delivery_complete_count, joined(batches)))
        return self._writes

    def _persisted(self, write: int) -> None:
        ticket, ending, letters = self._pending.pop(write)
        ended = [each for batch in ending for each in self._apply(batch)]
        if any(each.is_available for each in ended):
            self._out.append(AvailabilityChanged())
        if letters:
            self._out.append(WriteDeadLetters(letters))
        self._reply(ticket, ErrorCode.NONE)

    def _not_persisted(self, event: NotPersisted, now_ms: int) -> None:
        """Leave its records to the member that asked. What followed from an expired lock applies already."""
        ticket, _, letters = self._pending.pop(event.write)
        expired: list[StateBatch] = []
        for each in self._flight:
            if each.write == event.write:
                each.write = NO_WRITE
                if each.lock_ms <= now_ms:
                    expired.append(self._after(each, AcknowledgeType.RELEASE))
                else:
                    self._expires_at(each.lock_ms)
        for batch in expired:
            self._apply(batch)
        if expired:
            self._out.append(AvailabilityChanged())
        again = _dead_letters(expired, EXHAUSTED)
        if again:
            self._write(expired, PendingWrite(NO_TICKET, letters=again))
        elif letters and ticket == NO_TICKET:
            self._out.append(WriteDeadLetters(letters))
        self._reply(ticket, event.error, event.message)

    def _archive(self, letters: tuple[DeadLetters, ...], ticket: int) -> None:
        """Archive what the dead letter queue has. That applies at once, also if its write fails."""
        flight = self._flight
        archived = [
            StateBatch(each.first, each.last, RecordState.ARCHIVED, each.delivery_count)
            for one in letters
            for each in flight.between(max(one.first, flight.start), min(one.last, flight.end - 1))
            if each.state is RecordState.ARCHIVING
        ]
        for batch in archived:
            self._apply(batch)
        if archived:
            self._write(archived, PendingWrite(ticket))
        else:
            self._reply(ticket, ErrorCode.NONE)

    def _reply(self, ticket: int, error: ErrorCode, message: str = "") -> None:
        if ticket != NO_TICKET:
            self._out.append(ShareReply(ticket, error, message))


def _by_type(batch: AcknowledgementBatch) -> list[tuple[int, int, AcknowledgeType]]:
    """Divide a batch into ranges with one type each."""
    if len(batch.types) == 1:
        return [(batch.first, batch.last, AcknowledgeType(batch.types[0]))]
    assert len(batch.types) == batch.last - batch.first + 1, "one type for each offset"
    ranges, first = [], batch.first
    for kind, same in groupby(batch.types):
        count = sum(1 for _ in same)
        ranges.append((first, first + count - 1, AcknowledgeType(kind)))
        first += count
    return ranges


def _dead_letters(ended: Sequence[StateBatch], cause: str) -> tuple[DeadLetters, ...]:
    """Return what is to be written to the dead letter queue."""
    return tuple(
        DeadLetters(batch.first, batch.last, batch.delivery_count, cause)
        for batch in ended
        if batch.state is RecordState.ARCHIVING
    )


def _first_of(batch: Extent) -> int:
    return batch.first
