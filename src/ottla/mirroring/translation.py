"""Maps offsets of a source partition to offsets of its copy.

Offsets of a record differ: the copy has a marker after each transaction, and the source may have markers, aborted
records and gaps of compaction. A run is a range of records with consecutive offsets on both sides.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

RUNS_MAX = 100_000
"""Runs kept for a partition. Older offsets are translated to the first one that is kept in the copy."""


class OffsetRun(NamedTuple):
    """Records with consecutive offsets in the source and in the copy."""

    source_offset: int
    target_offset: int
    record_count: int


def runs_of(source_offsets: Sequence[int], target_offset: int) -> Iterator[OffsetRun]:
    """Yield the runs of records that were written one after the other from `target_offset` on.

    >>> [tuple(run) for run in runs_of([4, 5, 9], 20)]
    [(4, 20, 2), (9, 22, 1)]
    """
    start = 0
    for index in range(1, len(source_offsets) + 1):
        if index == len(source_offsets) or source_offsets[index] != source_offsets[index - 1] + 1:
            yield OffsetRun(source_offsets[start], target_offset + start, index - start)
            start = index


class OffsetTranslation:
    """Translates the offsets of one partition, for what was mirrored so far."""

    def __init__(self) -> None:
        self._runs: list[OffsetRun] = []

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, run: OffsetRun) -> None:
        """Add a run that follows all others. One that begins before their end replaces what it overlaps."""
        while self._runs and self._runs[-1].source_offset >= run.source_offset:
            self._runs.pop()
        if self._runs:
            last = self._runs[-1]
            if run.source_offset - last.source_offset == run.target_offset - last.target_offset == last.record_count:
                self._runs[-1] = last._replace(record_count=last.record_count + run.record_count)
                return
        self._runs.append(run)
        if len(self._runs) > RUNS_MAX:
            del self._runs[: RUNS_MAX // 10]

    def clear(self) -> None:
        """Forget all runs: the source topic or its copy was created again."""
        self._runs.clear()

    def to_target(self, offset: int) -> int | None:
        """Return the offset in the copy from which a reader gets all records from `offset` on, and no earlier ones.

        None if that is not known: the offset is before the first run, and a reader has to begin at the copy's start.
        An offset after the last run is translated to the run's end.

        >>> translation = OffsetTranslation()
        >>> translation.add(OffsetRun(10, 0, 5)); translation.add(OffsetRun(20, 6, 5))
        >>> [translation.to_target(offset) for offset in (9, 10, 14, 15, 19, 22, 99)]
        [None, 0, 4, 6, 6, 8, 11]
        """
        index = bisect_right(self._runs, offset, key=_source_offset) - 1
        if index < 0:
            return None
        run = self._runs[index]
        if offset < run.source_offset + run.record_count:
            return run.target_offset + offset - run.source_offset
        if index + 1 < len(self._runs):  # the offset of a marker, or of a record that is gone: the next one is read
            return self._runs[index + 1].target_offset
        return run.target_offset + run.record_count


def _source_offset(run: OffsetRun) -> int:
    return run.source_offset
