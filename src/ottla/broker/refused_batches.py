"""Remembers the batches of idempotent producers that were refused for a reason that passes, for those that follow them.

A producer has up to five requests in flight. If the first is refused because this broker does not lead the partition
yet, or too few replicas are in sync, and that is over when the second arrives, the second has a gap before it. Apache
Kafka responds OUT_OF_ORDER_SEQUENCE_NUMBER then, or appends it if it has nothing of that producer. librdkafka begins a
new producer epoch after the first, and sends records again that are in the log though it got no response for them
(confluentinc/librdkafka#4953); after the second, the first batch is out of order for ever.

So a batch that follows a refused one is refused as well, with an error after which clients send all of them again.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.core.clock import Clock
from ottla.core.ids import TopicPartition
from ottla.records.batch import HEADER_BYTES, NO_SEQUENCE, SEQUENCE_MAX, BatchHeader
from ottla.replication.partition import Partition

BATCHES_MAX: Final = 10_000
REMEMBERED_S: Final = 5.0
"""A producer that has not sent a refused batch again by then has given it up: what it sends has a real gap."""

GAP_MAX: Final = 1_000_000
"""Sequence numbers that the requests in flight of one producer do not exceed."""


class RefusedBatch(NamedTuple):
    """The last batch of a producer that a partition refused."""

    epoch: int
    first_sequence: int
    until_s: float  # since the first of the refused ones, on the monotonic clock


class RefusedBatches:
    """Knows the last refused batch of each producer and partition, of so many at most."""

    __slots__ = ("_clock", "batches")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.batches: dict[tuple[TopicPartition, int], RefusedBatch] = {}  # empty but for some seconds: look here first

    def note(self, partition: Partition, records: memoryview) -> None:
        """Remember a batch that was refused, if its producer is idempotent."""
        if records.nbytes >= HEADER_BYTES:
            header = BatchHeader(records, 0)
            if header.producer_id >= 0:
                until_s = self._clock.monotonic() + REMEMBERED_S
                self._put((partition.topic_partition, header.producer_id), header, until_s)

    def _put(self, key: tuple[TopicPartition, int], header: BatchHeader, until_s: float) -> None:
        self.batches.pop(key, None)
        if len(self.batches) >= BATCHES_MAX:
            del self.batches[next(iter(self.batches))]
        self.batches[key] = RefusedBatch(header.producer_epoch, header.base_sequence, until_s)

    def refuses(self, partition: Partition, records: memoryview) -> bool:
        """Return whether a batch is to be refused: it follows one that was, and that has not been appended since."""
        self._forget_old()
        if not self.batches or records.nbytes < HEADER_BYTES:
            return False
        header = BatchHeader(records, 0)
        key = (partition.topic_partition, header.producer_id)
        refused = self.batches.get(key)
        if refused is None:
            return False
        entry = partition.log.producers.entry(header.producer_id)
        last = NO_SEQUENCE
        if entry is not None and entry.epoch == refused.epoch:
            last = entry.last_sequence
        missing = (refused.first_sequence - last - 1) & SEQUENCE_MAX
        if missing > GAP_MAX or header.producer_epoch != refused.epoch:
            del self.batches[key]  # it was appended, or another epoch has begun
            return False
        if not missing < (header.base_sequence - last - 1) & SEQUENCE_MAX <= GAP_MAX:
            return False
        self._put(key, header, refused.until_s)
        return True

    def _forget_old(self) -> None:
        """Forget the first ones that are too old; one that is refused again moves to the end with its time."""
        now_s = self._clock.monotonic()
        while self.batches:
            key = next(iter(self.batches))
            if self.batches[key].until_s > now_s:
                return
            del self.batches[key]
