"""Compares the content of one partition's records and rows: with each other, and with the checksums that were recorded.

While the log has a record, its row is compared with the one that the load's mapping makes of it, so every row that
differs is named by its offset. Rows whose records are gone are compared with the sums that their loads recorded, and
records with the sums that their producers reported. A sum names the offset of a change if it is one alone, and
otherwise the range. Sums are compared only where they count as many records as there are.

A job file may make other rows today than it made when they were loaded. So rows that differ from today's are no fault
where the table's sums are those that were recorded, of the same records: they are counted as `remade`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ottla.client.audit import ContentRun
from ottla.client.content import SUM_MASK, ContentSum
from ottla.pipeline.audit.model import ContentCounts, DiscrepancyKind
from ottla.pipeline.lake.content_hash import Words
from ottla.pipeline.lake.recorded_content import (
    QUARANTINED,
    ROWS,
    SEGMENT_BITS,
    SOURCE,
    ContentSums,
    SegmentContent,
    segments_of,
)

Longs = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Note(Protocol):
    """Notes a fault in offsets from `first` to `end`."""

    def __call__(self, kind: DiscrepancyKind, first: int, end: int, count: int, bucket_ms: int | None) -> None:
        """Note it."""


@dataclass(frozen=True, slots=True)
class ContentExtent:
    """The offsets of a partition whose content is compared."""

    partition: int
    log_start: int
    first_offset: int
    position: int


@dataclass(slots=True)
class LogContent:
    """The content of a range of the log: checksums by offset, from `first_offset` on."""

    first_offset: int
    present: Flags
    records: Words
    rows: Words
    """The checksums of the rows that the mapping makes of the records."""
    makes_row: Flags

    @staticmethod
    def empty(first_offset: int, end_offset: int) -> LogContent:
        """Return the content of a range without records."""
        size = end_offset - first_offset
        words = (np.zeros(size, np.uint64) for _ in range(2))
        flags = (np.zeros(size, np.bool_) for _ in range(2))
        return LogContent(first_offset, next(flags), next(words), next(words), next(flags))


class ContentComparison:
    """Compares one partition, range by range; `finish` notes the faults."""

    def __init__(
        self, extent: ContentExtent, recorded: Sequence[SegmentContent], runs: Iterable[ContentRun] = ()
    ) -> None:
        self._extent = extent
        self._recorded = {content.segment: content.sums for content in recorded}
        self._sums = ContentSums()
        self._differing: list[Longs] = []
        self._compared: list[Longs] = []
        self._runs = join_runs(runs)
        self._firsts = np.array([run.first_offset for run in self._runs], np.int64)
        self._ends = np.array([run.end_offset for run in self._runs], np.int64)
        self._in_runs = np.zeros((3, len(self._runs)), np.uint64)

    def add_log(self, log: LogContent) -> None:
        """Add what the log has of a range."""
        offsets = log.first_offset + np.flatnonzero(log.present)
        loaded = self._loaded(offsets)
        self._add(SOURCE, offsets[loaded], log.records[log.present][loaded])
        size = len(log.present)
        at = np.arange(log.first_offset, log.first_offset + size).astype(np.uint64)
        words = np.where(log.present, log.records, np.uint64(0))
        first, end = (np.clip(edges - log.first_offset, 0, size) for edges in (self._firsts, self._ends))
        for n, values in enumerate((log.present.astype(np.uint64), words, words * at)):
            sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(values, dtype=np.uint64)))
            self._in_runs[n] += sums[end] - sums[first]

    def add_rows(self, offsets: Longs, checksums: Words, log: LogContent, *, quarantined: bool) -> None:
        """Add rows of the table or the quarantine, with what the log has of the same range."""
        loaded = self._loaded(offsets)
        offsets, checksums = offsets[loaded], checksums[loaded]
        self._add(QUARANTINED if quarantined else ROWS, offsets, checksums)
        at = offsets - log.first_offset
        known = log.present[at]
        same = checksums == (log.records if quarantined else log.rows)[at]
        if not quarantined:
            same &= log.makes_row[at]
        self._compared.append(offsets[known])
        self._differing.append(offsets[known & ~same])

    def finish(self, note: Note) -> ContentCounts:
        """Note what differs, and return how many rows and records were compared."""
        counts = ContentCounts()
        differing, compared = (
            np.unique(np.concatenate((np.zeros(0, np.int64), *offsets)))
            for offsets in (self._differing, self._compared)
        )
        extent = self._extent
        for segment in segments_of(extent.first_offset, extent.position):
            first, end = (np.searchsorted(differing, edge << SEGMENT_BITS) for edge in (segment, segment + 1))
            rows = self._segment(segment, ROWS).records + self._segment(segment, QUARANTINED).records
            with_record = int((compared >> SEGMENT_BITS == segment).sum())
            counts.rows += self._finish_segment(segment, differing[first:end], rows, with_record, note, counts)
            counts.unproven_rows += rows
        counts.unproven_rows -= counts.rows
        self._finish_runs(note, counts)
        return counts

    def _finish_segment(
        self, segment: int, differing: Longs, rows: int, with_record: int, note: Note, counts: ContentCounts
    ) -> int:
        """Note the faults of a segment; return how many of its rows are proven or refuted."""
        recorded = self._recorded.get(segment)
        source_known = recorded is not None and recorded[SOURCE].records == self._segment(segment, SOURCE).records
        log_changed = recorded is not None and source_known and recorded[SOURCE] != self._segment(segment, SOURCE)
        as_loaded = recorded is not None and all(recorded[k] == self._segment(segment, k) for k in (ROWS, QUARANTINED))
        if len(differing):
            if as_loaded and not log_changed:
                counts.remade += len(differing)
                return rows
            for first, end in runs_of(differing):
                note(DiscrepancyKind.CHANGED, first, end, end - first, None)
            return with_record
        if recorded is None:
            return with_record
        if log_changed:
            self._note_sum(DiscrepancyKind.LOG_CHANGED, segment, SOURCE, recorded[SOURCE], note)
        if as_loaded:
            return rows
        known = True
        for kind in (ROWS, QUARANTINED):
            if recorded[kind].records != self._segment(segment, kind).records:
                known = False
            elif recorded[kind] != self._segment(segment, kind):
                self._note_sum(DiscrepancyKind.NOT_AS_LOADED, segment, kind, recorded[kind], note)
        return rows if known else with_record

    def _note_sum(self, kind: DiscrepancyKind, segment: int, of: str, recorded: ContentSum, note: Note) -> None:
        extent = self._extent
        first = max(segment << SEGMENT_BITS, extent.first_offset)
        end = min(segment + 1 << SEGMENT_BITS, extent.position)
        offset = recorded.changed_offset(self._segment(segment, of), first, end)
        if offset is None:
            note(kind, first, end, recorded.records, None)
        else:
            note(kind, offset, offset + 1, 1, None)

    def _finish_runs(self, note: Note, counts: ContentCounts) -> None:
        for run, totals in zip(self._runs, self._in_runs.T.tolist(), strict=True):
            have = ContentSum(totals[0], totals[1] & SUM_MASK, totals[2] & SUM_MASK)
            if run.first_offset < self._extent.log_start or have.records != run.sums.records:
                counts.unproven_records += have.records
                continue
            counts.records += have.records
            if have == run.sums:
                continue
            offset = run.sums.changed_offset(have, run.first_offset, run.end_offset)
            if offset is None:
                note(DiscrepancyKind.NOT_AS_PRODUCED, run.first_offset, run.end_offset, have.records, None)
            else:
                note(DiscrepancyKind.NOT_AS_PRODUCED, offset, offset + 1, 1, None)

    def _loaded(self, offsets: Longs) -> Flags:
        return (offsets >= self._extent.first_offset) & (offsets < self._extent.position)

    def _add(self, kind: str, offsets: Longs, checksums: Words) -> None:
        self._sums.add(kind, self._extent.partition, offsets, checksums)

    def _segment(self, segment: int, kind: str) -> ContentSum:
        return self._sums.sums.get((self._extent.partition, segment, kind), ContentSum())


def join_runs(runs: Iterable[ContentRun]) -> list[ContentRun]:
    """Sort runs, and join those of several producers whose records are among each other.

    >>> [run.end_offset for run in join_runs([ContentRun(5, 9, ContentSum(2)), ContentRun(0, 6, ContentSum(3))])]
    [9]
    """
    joined: list[ContentRun] = []
    for run in sorted(runs):
        if joined and run.first_offset < joined[-1].end_offset:
            last = joined.pop()
            end = max(last.end_offset, run.end_offset)
            joined.append(ContentRun(last.first_offset, end, last.sums.plus(run.sums)))
        else:
            joined.append(run)
    return joined


def runs_of(offsets: Longs) -> Iterable[tuple[int, int]]:
    """Yield the runs of consecutive offsets: first and end.

    >>> list(runs_of(np.array([1, 2, 7])))
    [(1, 3), (7, 8)]
    """
    for run in np.split(offsets, np.flatnonzero(np.diff(offsets) > 1) + 1):
        yield int(run[0]), int(run[-1]) + 1
