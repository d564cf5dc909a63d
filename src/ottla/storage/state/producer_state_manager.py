"""Keeps the state of a log's producers and transactions, by the rules of idempotence and of transactions (KIP-98).

For each producer id: its epoch, its last five batches, and where its open transaction begins. A client's batch is
appended, answered as a duplicate of one of the five (with the offset it got the first time), or refused:

    epoch older than known                      InvalidProducerEpoch
    one of the last five batches again          duplicate
    epoch newer than known, sequence 0          appended
    epoch newer than known, other sequence      OutOfOrderSequenceNumber
    sequence follows the last (2^31-1 wraps)    appended
    producer unknown here, any sequence         appended: retention or expiry may have removed it (KIP-360)
    else                                        OutOfOrderSequenceNumber

The first batch of a transaction must have been verified with its coordinator (KIP-890): `begin_verification`
gives a guard, and the append gets it. A marker that arrives in between removes the guard, so that a batch which
the network delayed cannot open a transaction that never ends.

A transaction is unstable from its first record until its marker is below the high watermark: readers of committed
records stop there (the last stable offset).

The checks change nothing, so that a failed write leaves no trace; `append_data_batch` and `append_end_marker` follow
the write. Replicated batches and recovery are not checked: the leader has decided.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from ottla.core.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
)
from ottla.core.ids import NO_OFFSET, NO_PRODUCER_EPOCH
from ottla.records.batch import NO_SEQUENCE, SEQUENCE_MAX, BatchHeader, increment_sequence
from ottla.records.batch_scan import BATCHES_KEPT
from ottla.storage.state.aborted_index import AbortedTransaction
from ottla.storage.state.end_marker import Marker, MarkerType, read_marker

EPOCH_MAX: Final = (1 << 15) - 1
READ_BACK_RECORDS: Final = 1_000_000
"""A batch that is further before the last known one is none of the last five."""


class BatchMetadata(NamedTuple):
    """A written batch, which the producer may send again."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class ProducerInfo(NamedTuple):
    """A producer, as DescribeProducers returns it."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int


class ProducerStateEntry:
    """One producer's state."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "is_of_snapshot",
        "last_timestamp",
        "seen_ms",
        "txn_first_offset",
    )

    def __init__(self) -> None:
        self.epoch = NO_PRODUCER_EPOCH
        self.batches: deque[BatchMetadata] = deque(maxlen=BATCHES_KEPT)
        self.last_timestamp = -1  # of its newest record or marker
        self.seen_ms = -1  # when this process last received something of it: records may carry old times
        self.coordinator_epoch = -1
        self.txn_first_offset = NO_OFFSET
        self.is_of_snapshot = False  # which has the last batch alone: the log has those before it

    @property
    def last_sequence(self) -> int:
        """Of its newest batch in this epoch."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def duplicate_of(self, epoch: int, first_sequence: int, last_sequence: int) -> BatchMetadata | None:
        """Return the one of the last batches that has these sequences, if the epoch is the same."""
        if epoch == self.epoch:
            for batch in self.batches:
                if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
                    return batch
        return None


class VerificationGuard:
    """Marks one verification of a transaction with its coordinator; two guards are never equal.

    It keeps the lowest sequence that was to be verified: a later batch whose verification ends first must not be
    appended before it.
    """

    __slots__ = ("began_ms", "epoch", "lowest_sequence", "supports_epoch_bump")

    def __init__(self, began_ms: int, sequence: int, epoch: int, *, supports_epoch_bump: bool) -> None:
        self.began_ms = began_ms
        self.lowest_sequence = sequence
        self.epoch = epoch
        self.supports_epoch_bump = supports_epoch_bump  # by the second version of transactions

    def add(self, sequence: int, epoch: int) -> None:
        """Take another batch into account that waits for the same verification."""
        if epoch == self.epoch and sequence < self.lowest_sequence:
            self.lowest_sequence = sequence
        elif epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence


NOT_REQUIRED: Final = VerificationGuard(0, 0, 0, supports_epoch_bump=False)
"""Given instead of a guard where transactions need no verification."""


class _CompletedTransaction(NamedTuple):
    """A transaction whose marker is written."""

    first_offset: int
    last_offset: int


_NO_ENTRIES: Final[dict[int, ProducerStateEntry]] = {}
_NO_OFFSETS: Final[dict[int, int]] = {}
_NO_GUARDS: Final[dict[int, VerificationGuard]] = {}
_NONE_COMPLETED: Final[list[_CompletedTransaction]] = []


class ProducerStateManager:
    """The producers and transactions of one log."""

    __slots__ = ("_entries", "_ongoing", "_verifications", "unreplicated")

    def __init__(self) -> None:
        # Each begins as one that all logs share, and is replaced before something is added: most of thousands of
        # partitions have no producers.
        self._entries = _NO_ENTRIES
        self._ongoing = _NO_OFFSETS  # producer id -> first offset, ascending: transactions begin at the end
        self.unreplicated = _NONE_COMPLETED  # whose marker is not below the high watermark yet
        self._verifications = _NO_GUARDS

    def __len__(self) -> int:
        return len(self._entries)

    def entry(self, producer_id: int) -> ProducerStateEntry | None:
        """Return the state of a producer, or None."""
        return self._entries.get(producer_id)

    def entries(self) -> Iterator[tuple[int, ProducerStateEntry]]:
        """Return all producers with their ids, in the order of their first batch."""
        return iter(self._entries.items())

    def snapshot_entry(self, producer_id: int, epoch: int, first_sequence: int) -> ProducerStateEntry | None:
        """Return a producer whose batch may be one of those that the snapshot lacked; None if the log need not be read.

        It is returned once: then its batches are to be read back.
        """
        entry = self._entries.get(producer_id)
        if entry is None or not entry.is_of_snapshot or entry.epoch != epoch or not entry.batches:
            return None
        distance = (entry.batches[0].first_sequence - first_sequence) & SEQUENCE_MAX
        if not 0 < distance <= READ_BACK_RECORDS:
            return None
        entry.is_of_snapshot = False
        return entry

    # ---- Checks before an append

    def check_data_batch(
        self,
        producer_id: int,
        epoch: int,
        first_sequence: int,
        record_count: int,
        *,
        transactional: bool,
        guard: VerificationGuard | None = NOT_REQUIRED,
    ) -> BatchMetadata | None:
        """Check a client's batch: None if it may be appended, the earlier batch if it is a duplicate. Else raises."""
        entry = self._entries.get(producer_id)
        if transactional and (entry is None or entry.txn_first_offset == NO_OFFSET or entry.epoch != epoch):
            if entry is not None:
                ends = increment_sequence(first_sequence, record_count - 1)
                if (duplicate := entry.duplicate_of(epoch, first_sequence, ends)) is not None:
                    return duplicate
            self._check_verified(producer_id, epoch, guard)
            if entry is None or epoch >= entry.epoch:
                self._check_first_sequence(entry, producer_id, first_sequence)
        if entry is None:
            return None
        known = entry.epoch
        if epoch == known:
            last_sequence = NO_SEQUENCE
            if entry.batches:
                last_sequence = entry.batches[-1].last_sequence
                if first_sequence != (last_sequence + 1) & SEQUENCE_MAX:
                    ends = increment_sequence(first_sequence, record_count - 1)
                    if (duplicate := entry.duplicate_of(epoch, first_sequence, ends)) is not None:
                        return duplicate
                    raise OutOfOrderSequenceNumber(_out_of_order(producer_id, first_sequence, last_sequence))
            elif first_sequence:
                raise OutOfOrderSequenceNumber(_out_of_order(producer_id, first_sequence, last_sequence))
        elif epoch < known:
            raise _old_epoch(producer_id, epoch, known)
        elif first_sequence:
            raise OutOfOrderSequenceNumber(
                f"Invalid sequence number for new epoch of producer {producer_id}: {epoch} (request epoch), "
                f"{first_sequence} (seq. number), {known} (current producer epoch)"
            )
        if entry.txn_first_offset != NO_OFFSET and not transactional:
            raise InvalidTxnState(f"Expected transactional write from producer {producer_id}")
        return None

    def check_coordinator_batch(
        self, header: BatchHeader, records: memoryview, guard: VerificationGuard | None
    ) -> Marker | None:
        """Check a marker, which is returned, or offsets that a group commits in a transaction; they have no sequence.

        Raises the KafkaError to respond with.
        """
        producer_id, epoch = header.producer_id, header.producer_epoch
        entry = self._entries.get(producer_id)
        if header.is_control:
            marker = read_marker(records)
            if marker is not None and entry is not None:
                _check_marker(entry, producer_id, epoch, marker)
            return marker
        if header.is_transactional and not self.has_ongoing_transaction(producer_id, epoch):
            self._check_verified(producer_id, epoch, guard)
        if entry is not None:
            if epoch < entry.epoch:
                raise _old_epoch(producer_id, epoch, entry.epoch)
            if entry.txn_first_offset != NO_OFFSET and not header.is_transactional:
                raise InvalidTxnState(f"Expected transactional write from producer {producer_id}")
        return None

    def check_epoch_bump(self, producer_id: int, epoch: int) -> None:
        """Refuse a marker whose epoch is not above that of its transaction (the second version of transactions).

        A marker that is sent again finds its epoch and no open transaction. The last epoch cannot grow any more.
        """
        entry = self._entries.get(producer_id)
        if entry is None or epoch != entry.epoch or entry.txn_first_offset == NO_OFFSET or epoch == EPOCH_MAX:
            return
        raise InvalidProducerEpoch(
            f"Epoch of producer {producer_id} is {epoch}, which is not above the last seen epoch {entry.epoch}"
        )

    # ---- Verification of transactions (KIP-890)

    def begin_verification(
        self, producer_id: int, sequence: int, epoch: int, *, supports_epoch_bump: bool, now_ms: int
    ) -> VerificationGuard | None:
        """Return the guard under which a batch is to be verified; None if its transaction is open here already.

        Raises InvalidProducerEpoch for an epoch that is old here; the coordinator may have forgotten its producer id.
        """
        entry = self._entries.get(producer_id)
        if entry is not None and epoch < entry.epoch:
            raise _old_epoch(producer_id, epoch, entry.epoch)
        if self.has_ongoing_transaction(producer_id, epoch):
            return None
        guard = self._verifications.get(producer_id)
        if guard is None:
            guard = VerificationGuard(now_ms, sequence, epoch, supports_epoch_bump=supports_epoch_bump)
            if self._verifications is _NO_GUARDS:
                self._verifications = {}
            self._verifications[producer_id] = guard
        else:
            guard.add(sequence, epoch)
        return guard

    def is_verifying(self, producer_id: int, guard: VerificationGuard) -> bool:
        """Return whether a guard still holds.

        That is so if neither a batch nor a marker of its producer was appended since it was taken.
        """
        return self._verifications.get(producer_id) is guard

    def has_ongoing_transaction(self, producer_id: int, epoch: int) -> bool:
        """Return whether the producer has written to a transaction of this epoch that has not ended."""
        entry = self._entries.get(producer_id)
        return entry is not None and entry.txn_first_offset != NO_OFFSET and entry.epoch == epoch

    def _check_verified(self, producer_id: int, epoch: int, guard: VerificationGuard | None) -> None:
        """Refuse a batch that would open a transaction which the coordinator has not verified, or not since its end."""
        if guard is NOT_REQUIRED or (guard is not None and self._verifications.get(producer_id) is guard):
            return
        entry = self._entries.get(producer_id)
        if entry is not None and epoch < entry.epoch:  # fatal to no producer, unlike the other error (KAFKA-19690)
            raise _old_epoch(producer_id, epoch, entry.epoch)
        raise InvalidTxnState("Record was not part of an ongoing transaction")

    def _check_first_sequence(self, entry: ProducerStateEntry | None, producer_id: int, first_sequence: int) -> None:
        """Refuse a batch whose predecessor is still to be verified, or was lost before it opened the transaction."""
        guard = self._verifications.get(producer_id)
        if guard is None:
            return
        if guard.supports_epoch_bump and first_sequence and (entry is None or not entry.batches):
            raise OutOfOrderSequenceNumber(
                f"Invalid sequence number for producer {producer_id}: {first_sequence} (incoming seq. number). "
                f"Expected sequence 0 for transactions v2 idempotent producer with no existing state."
            )
        if first_sequence > guard.lowest_sequence:
            raise OutOfOrderSequenceNumber(
                f"Out of order sequence number for producer {producer_id}: {first_sequence} (incoming seq. number), "
                f"{guard.lowest_sequence} (earliest seen sequence)"
            )

    # ---- Updates after an append

    def update(
        self,
        header: BatchHeader,
        marker: Marker | None,
        first_offset: int,
        last_offset: int,
        max_timestamp: int,
        now_ms: int,
    ) -> AbortedTransaction | None:
        """Note a batch that is in the log; returns the entry that an abort marker adds to the transaction index.

        Offsets and time are those that the batch has in the log: `header` may have been read before they were assigned.
        """
        if header.is_control:
            if marker is None:
                return None
            return self.append_end_marker(
                header.producer_id,
                header.producer_epoch,
                marker,
                offset=last_offset,
                timestamp=max_timestamp,
                now_ms=now_ms,
            )
        first_sequence = last_sequence = header.base_sequence
        if first_sequence >= 0:
            last_sequence = (first_sequence + header.last_offset_delta) & SEQUENCE_MAX
        elif not header.is_transactional:
            return None  # a batch that compaction emptied of its sequence
        self.append_data_batch(
            header.producer_id,
            header.producer_epoch,
            BatchMetadata(first_sequence, last_sequence, first_offset, last_offset, max_timestamp),
            transactional=header.is_transactional,
            now_ms=now_ms,
        )
        return None

    def append_data_batch(
        self, producer_id: int, epoch: int, batch: BatchMetadata, *, transactional: bool, now_ms: int
    ) -> None:
        """Note a batch that was written."""
        entry = self._entry_of_epoch(producer_id, epoch)
        entry.batches.append(batch)
        entry.last_timestamp = batch.timestamp
        entry.seen_ms = now_ms
        if transactional:
            if entry.txn_first_offset == NO_OFFSET:
                if self._ongoing is _NO_OFFSETS:
                    self._ongoing = {}
                entry.txn_first_offset = self._ongoing[producer_id] = batch.first_offset
            if self._verifications:
                self._verifications.pop(producer_id, None)

    def append_end_marker(
        self, producer_id: int, epoch: int, marker: Marker, *, offset: int, timestamp: int, now_ms: int
    ) -> AbortedTransaction | None:
        """Note the marker written at `offset`; returns what belongs into the index if it aborted a transaction."""
        entry = self._entry_of_epoch(producer_id, epoch)
        entry.coordinator_epoch = max(entry.coordinator_epoch, marker.coordinator_epoch)
        entry.last_timestamp = timestamp
        entry.seen_ms = now_ms
        self._verifications.pop(producer_id, None)
        first_offset, entry.txn_first_offset = entry.txn_first_offset, NO_OFFSET
        if first_offset == NO_OFFSET:
            return None
        del self._ongoing[producer_id]
        if self.unreplicated is _NONE_COMPLETED:
            self.unreplicated = []
        self.unreplicated.append(_CompletedTransaction(first_offset, offset))
        if marker.type is not MarkerType.ABORT:
            return None
        first_undecided = self.first_undecided_offset()
        last_stable_offset = offset + 1 if first_undecided is None else first_undecided
        return AbortedTransaction(producer_id, first_offset, offset, last_stable_offset)

    def _entry_of_epoch(self, producer_id: int, epoch: int) -> ProducerStateEntry:
        entry = self._entries.get(producer_id)
        if entry is None:
            if self._entries is _NO_ENTRIES:
                self._entries = {}
            entry = self._entries[producer_id] = ProducerStateEntry()
        if entry.epoch != epoch:
            entry.epoch = epoch
            entry.batches.clear()
        return entry

    # ---- The last stable offset

    @property
    def is_stable(self) -> bool:
        """Whether no transaction holds up readers of committed records."""
        return not self._ongoing and not self.unreplicated

    def first_undecided_offset(self) -> int | None:
        """Return the first offset of the oldest open transaction."""
        return next(iter(self._ongoing.values())) if self._ongoing else None

    def first_unstable_offset(self) -> int | None:
        """Return the offset at which read_committed consumers must stop; None if no transaction is undecided."""
        first_undecided = self.first_undecided_offset()
        if not self.unreplicated:
            return first_undecided
        first_unreplicated = min(done.first_offset for done in self.unreplicated)
        return first_unreplicated if first_undecided is None else min(first_undecided, first_unreplicated)

    def high_watermark_updated(self, high_watermark: int) -> None:
        """Release the transactions whose marker is below the high watermark: they are final."""
        if self.unreplicated:
            self.unreplicated = [done for done in self.unreplicated if done.last_offset >= high_watermark]

    # ---- All producers

    def remove_expired(self, now_ms: int, *, after_ms: int) -> int:
        """Remove producers silent for `after_ms` that have no open transaction; returns how many.

        Verifications that were never followed by an append are removed after the same time.
        """
        expired = [
            producer_id
            for producer_id, entry in self._entries.items()
            if entry.txn_first_offset == NO_OFFSET and now_ms - max(entry.last_timestamp, entry.seen_ms) >= after_ms
        ]
        for producer_id in expired:
            del self._entries[producer_id]
        if self._verifications:
            kept = self._verifications.items()
            self._verifications = {
                producer_id: guard for producer_id, guard in kept if now_ms - guard.began_ms < after_ms
            }
        return len(expired)

    def describe(self) -> list[ProducerInfo]:
        """Return all producers for DescribeProducers."""
        return [
            ProducerInfo(
                producer_id,
                entry.epoch,
                entry.last_sequence,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.txn_first_offset,
            )
            for producer_id, entry in sorted(self._entries.items())
        ]

    def late_transactions(self, now_ms: int, *, after_ms: int) -> list[tuple[int, int]]:
        """Return producer id and first offset of each open transaction without a record for so long, by offset."""
        return [
            (producer_id, first_offset)
            for producer_id, first_offset in self._ongoing.items()
            if now_ms - self._entries[producer_id].last_timestamp > after_ms
        ]

    def clear(self) -> None:
        """Remove everything (truncation, before the replay)."""
        self._entries, self._ongoing = _NO_ENTRIES, _NO_OFFSETS
        self.unreplicated, self._verifications = _NONE_COMPLETED, _NO_GUARDS

    def load(self, entries: dict[int, ProducerStateEntry]) -> None:
        """Replace the state by that of a snapshot."""
        self.clear()
        self._entries = entries or _NO_ENTRIES
        ongoing = [(entry.txn_first_offset, producer_id) for producer_id, entry in entries.items()]
        for first_offset, producer_id in sorted(ongoing):
            if first_offset != NO_OFFSET:
                if self._ongoing is _NO_OFFSETS:
                    self._ongoing = {}
                self._ongoing[producer_id] = first_offset


def _check_marker(entry: ProducerStateEntry, producer_id: int, epoch: int, marker: Marker) -> None:
    """Refuse the marker of a producer epoch or of a coordinator that has been replaced."""
    if epoch < entry.epoch:
        raise _old_epoch(producer_id, epoch, entry.epoch)
    if marker.coordinator_epoch < entry.coordinator_epoch:
        raise TransactionCoordinatorFenced(
            f"Invalid coordinator epoch for producer {producer_id}: {marker.coordinator_epoch} (zombie), "
            f"{entry.coordinator_epoch} (current)"
        )


def _old_epoch(producer_id: int, epoch: int, known: int) -> InvalidProducerEpoch:
    return InvalidProducerEpoch(
        f"Epoch of producer {producer_id} is {epoch}, which is smaller than the last seen epoch {known}"
    )


def _out_of_order(producer_id: int, first_sequence: int, last_sequence: int) -> str:
    return (
        f"Out of order sequence number for producer {producer_id}: {first_sequence} (incoming seq. number), "
        f"{last_sequence} (current end sequence number)"
    )
