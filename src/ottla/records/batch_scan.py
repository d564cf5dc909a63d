"""Checks long runs of batches at once: what a recovery does with every byte that may not have reached the disk.

The loop is `records/_batch_scan.py`, or its compiled twin where the machine that built the package could make one
(`hatch_build.py`); `COMPILED` is True then. `BatchScan` is the loop's state from one chunk of a file to the next.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import NamedTuple

from ottla.compiled import fastest
from ottla.core.checksums import crc32c
from ottla.records import _batch_scan

LOOP = fastest(_batch_scan)
COMPILED = LOOP is not _batch_scan
"""Whether the loop over headers runs as machine code here."""


BATCHES_KEPT = 5
"""Of each producer (Kafka's ProducerStateEntry.NUM_BATCHES_TO_RETAIN): as many as an idempotent one has in flight."""


class IndexEntry(NamedTuple):
    """An entry for both indexes of a segment."""

    last_offset: int
    position: int
    greatest_timestamp: int
    greatest_offset: int  # the last one of the first batch that has it


class ProducerBatches:
    """Collects the positions of the batches that producer state needs: of each producer the first and the last few.

    Of records outside transactions only the last batches are remembered (KIP-98); the first one keeps its producer's
    place among the others. All of a transaction's batches and markers are kept.
    """

    __slots__ = ("_firsts", "_lasts", "_others")

    def __init__(self) -> None:
        self._firsts: dict[int, int] = {}
        self._lasts: dict[int, deque[int]] = {}
        self._others = array("q")

    def note(self, producer_id: int, position: int, transactional: bool) -> None:
        """Note one more batch, after all noted before."""
        if transactional:
            self._others.append(position)
            return
        lasts = self._lasts.get(producer_id)
        if lasts is None:
            self._firsts[producer_id] = position
            lasts = self._lasts[producer_id] = deque(maxlen=BATCHES_KEPT)
        lasts.append(position)

    def positions(self) -> list[int]:
        """Return all positions, ascending."""
        lasts = (position for last in self._lasts.values() for position in last)
        return sorted({*self._others, *self._firsts.values(), *lasts})


class BatchScan:
    """A walk through one segment's file, chunk by chunk, and what came up on the way."""

    __slots__ = (
        "_gaps",
        "_interval_bytes",
        "_offset_max",
        "bytes_since_index",
        "ended",
        "entries",
        "epoch",
        "epochs",
        "greatest_offset",
        "greatest_timestamp",
        "next_offset",
        "position",
        "producers",
    )

    def __init__(self, base_offset: int, *, epoch: int, gaps: bool, offset_max: int, interval_bytes: int) -> None:
        self._gaps, self._offset_max, self._interval_bytes = gaps, offset_max, interval_bytes
        self.position = 0  # after the last good batch
        self.next_offset = base_offset
        self.epoch = epoch
        self.bytes_since_index = 0
        self.greatest_timestamp, self.greatest_offset = -1, base_offset
        self.ended = False  # what is at `position` is no good batch
        self.entries: list[IndexEntry] = []
        self.epochs: list[tuple[int, int]] = []  # where each epoch begins
        self.producers = ProducerBatches()

    def take(self, chunk: memoryview, end: int) -> int:
        """Check the batches in `chunk`, which begins at `position` of a file of `end` bytes; how many bytes were good.

        A batch that goes on after the chunk is left for the next one.
        """
        entries: list[tuple[int, int, int, int]] = []
        producers: list[tuple[int, int, bool]] = []
        start = self.position
        (
            taken,
            self.next_offset,
            self.epoch,
            self.bytes_since_index,
            self.greatest_timestamp,
            self.greatest_offset,
            self.ended,
        ) = LOOP.check_into(
            chunk,
            0,
            end - start,
            self.next_offset,
            self.epoch,
            self._gaps,
            self._offset_max,
            self._interval_bytes,
            self.bytes_since_index,
            self.greatest_timestamp,
            self.greatest_offset,
            crc32c,
            entries,
            self.epochs,
            producers,
        )
        self.entries.extend(IndexEntry(last, start + at, *greatest) for last, at, *greatest in entries)
        note = self.producers.note
        for producer_id, at, transactional in producers:
            note(producer_id, start + at, transactional)
        self.position = start + taken
        return int(taken)
