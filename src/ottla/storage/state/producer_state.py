"""What a log knows of its producers: the rules of idempotence, and Kafka's `.snapshot` files.

For each producer id: its epoch and its last five batches. A batch is taken, answered as a duplicate of one of the five
(with the offset it got the first time), or refused:

    epoch older than known                      InvalidProducerEpoch
    one of the last five batches again          duplicate
    epoch newer than known, sequence 0          taken
    epoch newer than known, other sequence      OutOfOrderSequenceNumber
    sequence follows the last (2^31-1 wraps)    taken
    producer unknown here, any sequence         taken: retention or expiry may have forgotten it (KIP-360)
    else                                        OutOfOrderSequenceNumber

`check` decides and changes nothing, so that a failed write leaves no trace; `record` follows the write. Replicated
batches and recovery only `record`: the leader has decided.

A snapshot holds each producer's last batch (Kafka's format has room for one) and its open transaction:

    version 1 (2), CRC-32C of what follows (4), count (4), then for each producer, big-endian:
    producer id (8), epoch (2), last sequence (4), last offset (8), offset delta (4), timestamp (8),
    coordinator epoch (4), first offset of the open transaction or -1 (8)
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from crc32c import crc32c

from ottla.core.errors import InvalidProducerEpoch, InvalidTxnState, OutOfOrderSequenceNumber
from ottla.records.batch_scan import BATCHES_KEPT

SEQUENCE_MAX = (1 << 31) - 1
NO_EPOCH = -1
NO_SEQUENCE = -1
NO_OFFSET = -1

_SNAPSHOT_HEAD = struct.Struct(">hIi")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_CRC_FROM = 6
_VERSION = 1


def sequence_plus(sequence: int, more: int) -> int:
    """A sequence number `more` records on; after 2^31-1 comes 0.

    >>> sequence_plus(2**31 - 1, 1), sequence_plus(5, 2)
    (0, 7)
    """
    return (sequence + more) & SEQUENCE_MAX


class WrittenBatch(NamedTuple):
    """A batch that can come again."""

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


class Producer:
    """One producer's state."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_timestamp", "seen_ms", "txn_first_offset")

    def __init__(self) -> None:
        self.epoch = NO_EPOCH
        self.batches: deque[WrittenBatch] = deque(maxlen=BATCHES_KEPT)
        self.last_timestamp = -1  # of its newest record or marker
        self.seen_ms = -1  # when this process last heard of it, by the wall clock: records may carry old times
        self.coordinator_epoch = -1
        self.txn_first_offset = NO_OFFSET

    @property
    def last_sequence(self) -> int:
        """Of its newest batch in this epoch."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


class ProducerStates:
    """Every producer of one log."""

    __slots__ = ("_producers", "open_transactions")

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}
        self.open_transactions: dict[int, int] = {}  # producer id -> first offset

    def __len__(self) -> int:
        return len(self._producers)

    def get(self, producer_id: int) -> Producer | None:
        """One producer, if known."""
        return self._producers.get(producer_id)

    def check(
        self, producer_id: int, epoch: int, first_sequence: int, record_count: int, *, transactional: bool
    ) -> WrittenBatch | None:
        """Whether a client's batch may be appended: None if so, the earlier batch if it is a duplicate. Else raises."""
        producer = self._producers.get(producer_id)
        if producer is None:
            return None
        known = producer.epoch
        if epoch == known:
            last_sequence = NO_SEQUENCE
            if producer.batches:
                last_sequence = producer.batches[-1].last_sequence
                if first_sequence != (last_sequence + 1) & SEQUENCE_MAX:
                    ends = sequence_plus(first_sequence, record_count - 1)
                    for batch in producer.batches:
                        if batch.first_sequence == first_sequence and batch.last_sequence == ends:
                            return batch
                    raise OutOfOrderSequenceNumber(_out_of_order(producer_id, first_sequence, last_sequence))
            elif first_sequence:
                raise OutOfOrderSequenceNumber(_out_of_order(producer_id, first_sequence, last_sequence))
        elif epoch < known:
            raise InvalidProducerEpoch(
                f"Epoch of producer {producer_id} is {epoch}, which is smaller than the last seen epoch {known}"
            )
        elif first_sequence:
            raise OutOfOrderSequenceNumber(
                f"Invalid sequence number for new epoch of producer {producer_id}: {epoch} (request epoch), "
                f"{first_sequence} (seq. number), {known} (current producer epoch)"
            )
        if producer.txn_first_offset != NO_OFFSET and not transactional:
            raise InvalidTxnState(f"Expected transactional write from producer {producer_id}")
        return None

    def record(
        self,
        producer_id: int,
        epoch: int,
        batch: WrittenBatch,
        *,
        transactional: bool,
        now_ms: int,
    ) -> None:
        """Note a batch that was written."""
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = Producer()
        if producer.epoch != epoch:
            producer.epoch = epoch
            producer.batches.clear()
        producer.batches.append(batch)
        producer.last_timestamp = batch.timestamp
        producer.seen_ms = now_ms
        if transactional and producer.txn_first_offset == NO_OFFSET:
            producer.txn_first_offset = self.open_transactions[producer_id] = batch.first_offset

    def record_marker(
        self, producer_id: int, epoch: int, *, coordinator_epoch: int, timestamp: int, now_ms: int
    ) -> int:
        """Note a transaction's end; the first offset of the transaction it ended, or -1 if none was open."""
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = Producer()
        if producer.epoch != epoch:
            producer.epoch = epoch
            producer.batches.clear()
        producer.coordinator_epoch = max(producer.coordinator_epoch, coordinator_epoch)
        producer.last_timestamp = timestamp
        producer.seen_ms = now_ms
        first_offset, producer.txn_first_offset = producer.txn_first_offset, NO_OFFSET
        self.open_transactions.pop(producer_id, None)
        return first_offset

    def first_open_offset(self) -> int | None:
        """Where the oldest open transaction begins."""
        return min(self.open_transactions.values()) if self.open_transactions else None

    def expire(self, now_ms: int, *, after_ms: int) -> int:
        """Forget producers silent for `after_ms` that have no open transaction; how many went."""
        gone = [
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.txn_first_offset == NO_OFFSET
            and now_ms - max(producer.last_timestamp, producer.seen_ms) >= after_ms
        ]
        for producer_id in gone:
            del self._producers[producer_id]
        return len(gone)

    def describe(self) -> list[ProducerInfo]:
        """For DescribeProducers."""
        return [
            ProducerInfo(
                producer_id,
                producer.epoch,
                producer.last_sequence,
                producer.last_timestamp,
                producer.coordinator_epoch,
                producer.txn_first_offset,
            )
            for producer_id, producer in sorted(self._producers.items())
        ]

    def clear(self) -> None:
        """Forget everybody (truncation, before the snapshot is loaded again)."""
        self._producers.clear()
        self.open_transactions.clear()

    def to_snapshot(self) -> bytes:
        """Kafka's file."""
        body = bytearray(struct.pack(">i", len(self._producers)))
        for producer_id, producer in self._producers.items():
            last = producer.batches[-1] if producer.batches else None
            body += _SNAPSHOT_ENTRY.pack(
                producer_id,
                producer.epoch,
                last.last_sequence if last else NO_SEQUENCE,
                last.last_offset if last else NO_OFFSET,
                last.last_offset - last.first_offset if last else 0,
                producer.last_timestamp,
                producer.coordinator_epoch,
                producer.txn_first_offset,
            )
        return struct.pack(">hI", _VERSION, crc32c(body)) + bytes(body)

    def load_snapshot(self, data: bytes, *, now_ms: int) -> bool:
        """Take over a snapshot's producers; False, and nothing changed, if it is damaged."""
        entries = read_snapshot(data)
        if entries is None:
            return False
        self.clear()
        for producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, txn_first in entries:
            producer = self._producers[producer_id] = Producer()
            producer.epoch = epoch
            producer.last_timestamp = timestamp
            producer.seen_ms = now_ms
            producer.coordinator_epoch = coordinator_epoch
            if sequence != NO_SEQUENCE:
                first_sequence = (sequence - delta) & SEQUENCE_MAX
                producer.batches.append(WrittenBatch(first_sequence, sequence, offset - delta, offset, timestamp))
            if txn_first != NO_OFFSET:
                producer.txn_first_offset = self.open_transactions[producer_id] = txn_first
        return True


def read_snapshot(data: bytes) -> list[tuple[int, int, int, int, int, int, int, int]] | None:
    """A snapshot's rows; None if version, length or CRC are not right."""
    if len(data) < _SNAPSHOT_HEAD.size:
        return None
    version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
    if version != _VERSION or crc32c(data[_CRC_FROM:]) != crc or count < 0:
        return None
    if len(data) != _SNAPSHOT_HEAD.size + count * _SNAPSHOT_ENTRY.size:
        return None
    rows: Iterable[tuple[int, int, int, int, int, int, int, int]] = _SNAPSHOT_ENTRY.iter_unpack(
        data[_SNAPSHOT_HEAD.size :]
    )
    return list(rows)


def _out_of_order(producer_id: int, first_sequence: int, last_sequence: int) -> str:
    return (
        f"Out of order sequence number for producer {producer_id}: {first_sequence} (incoming seq. number), "
        f"{last_sequence} (current end sequence number)"
    )
