"""Models the producer state of a log a second time, from Kafka's rules and not from our code.

Plain dictionaries and lists; nothing is fast and nothing is shared with `storage/state/producer_state_manager.py`. Used by
the property test of producer state and by the crash tests, which compare it with what recovery has rebuilt.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

MODULUS = 1 << 31  # sequence numbers go from 0 to 2^31-1 and begin again


class Taken(NamedTuple):
    """A batch as its producer may send it again."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class Aborted(NamedTuple):
    """An entry of the index of aborted transactions."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass
class Known:
    """One producer."""

    epoch: int
    batches: list[Taken] = field(default_factory=list)  # of this epoch, all of them: who looks takes the last five
    coordinator_epoch: int = -1
    transaction: int | None = None  # where its open transaction begins
    last_timestamp: int = -1
    seen_ms: int = -1
    is_of_snapshot: bool = False  # so that the log may have batches before the first one here

    @property
    def last_sequence(self) -> int | None:
        return self.batches[-1].last_sequence if self.batches else None


@dataclass
class ProducerOracle:
    """All producers of one log."""

    known: dict[int, Known] = field(default_factory=dict)
    aborted: list[Aborted] = field(default_factory=list)
    written: list[tuple[int, int, Taken]] = field(
        default_factory=list
    )  # producer id, epoch and batch, in the log's order

    def verdict(
        self, producer_id: int, epoch: int, first_sequence: int, count: int, *, transactional: bool = False
    ) -> str | Taken:
        """`taken`, the name of the error, or the batch that it repeats."""
        producer = self.known.get(producer_id)
        if producer is None:
            return "taken"
        if epoch < producer.epoch:
            return "InvalidProducerEpoch"
        last_sequence = (first_sequence + count - 1) % MODULUS
        if epoch > producer.epoch:
            expected = 0
        else:
            expected = 0 if producer.last_sequence is None else (producer.last_sequence + 1) % MODULUS
        if first_sequence != expected:
            if epoch == producer.epoch:
                for batch in producer.batches[-5:]:
                    if (batch.first_sequence, batch.last_sequence) == (first_sequence, last_sequence):
                        return batch
            return "OutOfOrderSequenceNumber"
        if producer.transaction is not None and not transactional:
            return "InvalidTxnState"
        return "taken"

    def take(self, producer_id: int, epoch: int, batch: Taken, *, transactional: bool, now_ms: int = -1) -> None:
        """A batch was written."""
        producer = self._at_epoch(producer_id, epoch)
        producer.batches.append(batch)
        self.written.append((producer_id, epoch, batch))
        producer.last_timestamp, producer.seen_ms = batch.timestamp, now_ms
        if transactional and producer.transaction is None:
            producer.transaction = batch.first_offset

    def read_back(self, producer_id: int, epoch: int, first_sequence: int) -> bool:
        """Take the batches into account that a snapshot lacked, once, if this sequence is before the first known one."""
        producer = self.known.get(producer_id)
        if producer is None or not producer.is_of_snapshot or producer.epoch != epoch or not producer.batches:
            return False
        if not 0 < (producer.batches[0].first_sequence - first_sequence) % MODULUS <= 1_000_000:
            return False
        producer.is_of_snapshot = False
        first = producer.batches[0].first_offset
        earlier = [
            one for its, at, one in self.written if (its, at) == (producer_id, epoch) and one.first_offset < first
        ]
        for batch in reversed(earlier):
            follows = (batch.last_sequence + 1) % MODULUS == producer.batches[0].first_sequence
            if len(producer.batches) >= 5 or not follows:
                break
            producer.batches.insert(0, batch)
        return True

    def mark(
        self,
        producer_id: int,
        epoch: int,
        *,
        offset: int,
        abort: bool,
        coordinator_epoch: int = 0,
        timestamp: int = -1,
        now_ms: int = -1,
    ) -> None:
        """A marker was written."""
        producer = self._at_epoch(producer_id, epoch)
        producer.coordinator_epoch = max(producer.coordinator_epoch, coordinator_epoch)
        producer.last_timestamp, producer.seen_ms = timestamp, now_ms
        first, producer.transaction = producer.transaction, None
        if first is not None and abort:
            still_open = self.first_open()
            self.aborted.append(Aborted(producer_id, first, offset, offset + 1 if still_open is None else still_open))

    def first_open(self) -> int | None:
        """Where the oldest open transaction begins."""
        return min((known.transaction for known in self.known.values() if known.transaction is not None), default=None)

    def expire(self, now_ms: int, after_ms: int) -> None:
        """Who was silent for so long and has nothing open is forgotten."""
        self.known = {
            producer_id: known
            for producer_id, known in self.known.items()
            if known.transaction is not None or now_ms - max(known.last_timestamp, known.seen_ms) < after_ms
        }

    def restarted(self, now_ms: int) -> None:
        """Through a snapshot: only the last batch of each is kept, and everybody counts as seen now."""
        for known in self.known.values():
            del known.batches[:-1]
            known.seen_ms = now_ms

    def _at_epoch(self, producer_id: int, epoch: int) -> Known:
        producer = self.known.setdefault(producer_id, Known(epoch))
        if producer.epoch != epoch:
            producer.epoch = epoch
            producer.batches.clear()
        return producer
