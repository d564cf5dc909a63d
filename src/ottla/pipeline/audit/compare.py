"""Compares the offsets of one partition's log with those of its tables' rows.

Exact, and in bounded memory: offsets are compared a range at a time. A fault names the offsets it concerns; what the
records and rows contain is compared by `content.py`. Four explanations are tried before a difference is one: an offset
without a record (a control record, an aborted transaction, one compaction has taken) is not missing, for the log as its
readers see it does not show it; a row whose record is gone from the log (retention, DeleteRecords, compaction) was
loaded in time; a record after the table's position is waiting; an offset that a load skipped, or whose row was declared
deleted, is counted as that.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ottla.client.audit import ContentRun, ProducedCount
from ottla.core.settings import LONG_MAX
from ottla.pipeline.audit.content import ContentComparison, ContentExtent, LogContent
from ottla.pipeline.audit.model import NO_TIME, AuditCounts, Discrepancy, DiscrepancyKind, PartitionAudit
from ottla.pipeline.lake.content_hash import Words
from ottla.pipeline.lake.recorded_content import SegmentContent
from ottla.pipeline.lake.rowless_offsets import overlap
from ottla.pipeline.offset_range import OffsetRange

COMPARED_OFFSETS_MAX = 1 << 20
"""Offsets that are compared at a time: their columns are in memory."""
DISCREPANCIES_MAX = 100
"""Ranges named per partition and kind; the last one named stands for all that follow."""

Longs = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class OffsetColumns:
    """Offsets and times, ms since 1970 or -1, of some records or rows; `late` only of rows."""

    offsets: Longs
    times_ms: Longs
    late: Flags | None = None
    checksums: Words | None = None
    """The checksums of their content, if it is compared: of records, of a table's rows, of quarantined records."""
    rows: Words | None = None
    """Of records: the checksums of the rows that the load's mapping makes of them; 0 where it makes none."""
    makes_row: Flags | None = None


class OffsetReader(Protocol):
    """One side of the comparison: the log as its readers see it, a table or a quarantine."""

    def read(self, partition: int, first_offset: int, end_offset: int) -> Iterable[OffsetColumns]:
        """Return everything with an offset in the range, in any order, in pieces of any size."""
        ...


@dataclass(frozen=True, slots=True)
class PartitionExtent:
    """The offsets of one partition between which the log and the table are compared."""

    partition: int
    log_start: int
    log_end: int
    first_offset: int
    """The beginning of the first load of the table."""
    position: int
    """The beginning of the next load."""
    skipped: Sequence[OffsetRange] = ()
    """Offsets that loads skipped because the log had them no more."""
    deleted: Sequence[OffsetRange] = ()
    """Offsets whose rows were deleted on purpose, as declared."""
    recorded: Sequence[SegmentContent] | None = None
    """The checksums that loads recorded; None if content is not compared."""
    produced: Sequence[ContentRun] = ()
    """The checksums that producers reported."""


@dataclass(frozen=True, slots=True)
class OffsetReaders:
    """Reads the offsets that the audit compares; each column has a source of its own."""

    log: OffsetReader
    table: OffsetReader
    quarantine: OffsetReader
    compacts: bool
    """The topic's records may go one by one: a row without a record is then no fault."""


def audit_partition(
    extent: PartitionExtent, sides: OffsetReaders, *, bucket_ms: int, discrepancies_max: int = DISCREPANCIES_MAX
) -> PartitionAudit:
    """Audit one partition, except for the producers' reports (`add_produced`)."""
    audit = PartitionAudit(extent.partition, extent.first_offset, extent.position, extent.log_start, extent.log_end)
    audit.skipped = extent.skipped
    faults = Faults(extent.partition, discrepancies_max)
    content = None
    if extent.recorded is not None:
        compared = ContentExtent(extent.partition, extent.log_start, extent.first_offset, extent.position)
        content = ContentComparison(compared, extent.recorded, extent.produced)
    first = min(extent.first_offset, extent.log_start)
    end = max(extent.log_end, extent.position)
    for start in range(first, end, COMPARED_OFFSETS_MAX):
        stop = min(start + COMPARED_OFFSETS_MAX, end)
        _RangeComparison(extent, start, stop, bucket_ms, content).compare(sides, audit, faults)
    for outside in ((0, first), (end, LONG_MAX)):  # a column of longs cannot be compared with `NO_END_OFFSET`
        _count_outside(sides, audit, faults, *outside, bucket_ms=bucket_ms)
    if extent.position < extent.log_start:  # never to be loaded, and no record is left to count
        unread = extent.log_start - extent.position
        faults.note(DiscrepancyKind.UNREAD, extent.position, extent.log_start, unread, None)
    if content is not None:
        audit.content = content.finish(faults.note)
    audit.faults = faults.found
    return audit


def add_produced(
    audit: PartitionAudit, reports: Iterable[ProducedCount], *, bucket_ms: int, deleted: Sequence[OffsetRange] = ()
) -> None:
    """Add the producers' reports, and note where the log has fewer records than were acknowledged.

    More in the log is no fault: not every producer reports. A bucket of whose records some may have left the log before
    they were loaded cannot be judged and is not. Skipped records are explained, and so are deleted rows whose records
    have left the log since.
    """
    spans: dict[int, tuple[int, int]] = {}
    for report in reports:
        bucket = report.bucket_ms - report.bucket_ms % bucket_ms if report.bucket_ms >= 0 else NO_TIME
        audit.line(bucket).produced += report.count
        first, end = spans.get(bucket, (report.first_offset, 0))
        spans[bucket] = min(first, report.first_offset), max(end, report.last_offset + 1)
    known_from = min(audit.log_start, audit.first_offset)
    for bucket, (first, end) in sorted(spans.items()):
        line = audit.line(bucket)
        left = OffsetRange(audit.partition, first, min(end, audit.log_start))
        explained = overlap(audit.skipped, OffsetRange(audit.partition, first, end)) + overlap(deleted, left)
        short = line.produced - (line.in_log + line.expired + explained)
        if short > 0 and first >= known_from:
            audit.faults.append(Discrepancy(DiscrepancyKind.LOST, audit.partition, first, end, short, bucket))


def _count_outside(
    sides: OffsetReaders, audit: PartitionAudit, faults: Faults, first: int, end: int, *, bucket_ms: int
) -> None:
    """Count rows with offsets that neither the log nor the table's own position knows of."""
    if first >= end:
        return
    found: list[Longs] = []
    for side, column in ((sides.table, "loaded"), (sides.quarantine, "quarantined")):
        for some in side.read(audit.partition, first, end):
            buckets = buckets_of(some.times_ms, bucket_ms)
            enter(audit, column, buckets)
            if some.late is not None:
                enter(audit, "late", buckets[some.late])
            found.append(np.unique(some.offsets))
    if found:
        at = np.unique(np.concatenate(found))
        for run in np.split(at, np.flatnonzero(np.diff(at) > 1) + 1):
            faults.note(DiscrepancyKind.FOREIGN, int(run[0]), int(run[-1]) + 1, len(run), None)


class Faults:
    """Ranges of offsets, neighbours joined, at most so many of a kind."""

    def __init__(self, partition: int, most: int) -> None:
        self._most = most
        self.found: list[Discrepancy] = []
        self._partition = partition
        self._last: dict[DiscrepancyKind, int] = {}
        self._count: dict[DiscrepancyKind, int] = {}

    def note(self, kind: DiscrepancyKind, first: int, end: int, count: int, bucket_ms: int | None) -> None:
        """Add a range of offsets: to the one before if it goes on there, or if there are enough."""
        at = self._last.get(kind)
        if at is not None:
            before = self.found[at]
            full = self._count[kind] >= self._most
            if full or (before.end_offset == first and before.bucket_ms == bucket_ms):
                earliest = bucket_ms if before.bucket_ms is None else before.bucket_ms
                if full and bucket_ms is not None and earliest is not None:
                    earliest = min(earliest, bucket_ms)
                self.found[at] = Discrepancy(
                    kind, self._partition, before.first_offset, end, before.count + count, earliest
                )
                return
        self._last[kind] = len(self.found)
        self._count[kind] = self._count.get(kind, 0) + 1
        self.found.append(Discrepancy(kind, self._partition, first, end, count, bucket_ms))


class _RangeComparison:
    """One range of offsets, all of it in memory."""

    def __init__(
        self, extent: PartitionExtent, first: int, end: int, bucket_ms: int, content: ContentComparison | None
    ) -> None:
        self._content = content
        self._log = LogContent.empty(first, end if content is not None else first)
        self._extent, self._first, self._end, self._bucket_ms = extent, first, end, bucket_ms
        size = end - first
        self._in_log = np.zeros(size, dtype=np.bool_)
        self._rows = np.zeros(size, dtype=np.int32)
        self._times = np.full(size, NO_TIME, dtype=np.int64)

    def compare(self, sides: OffsetReaders, audit: PartitionAudit, faults: Faults) -> None:
        extent = self._extent
        log_from, log_to = max(self._first, extent.log_start), min(self._end, extent.log_end)
        if log_from < log_to:
            for some in sides.log.read(extent.partition, log_from, log_to):
                self._in_log[some.offsets - self._first] = True
                self._times[some.offsets - self._first] = some.times_ms
                audit.newest_ms = max(audit.newest_ms, int(some.times_ms.max(initial=NO_TIME)))
                self._keep_content(some)
        if self._content is not None:
            self._log.present = self._in_log
            self._content.add_log(self._log)
        self._add_rows(sides.table, audit, "loaded")
        self._add_rows(sides.quarantine, audit, "quarantined")
        offsets = np.arange(self._first, self._end, dtype=np.int64)
        accounted = (offsets >= extent.first_offset) & (offsets < extent.position)
        self._count(audit, "in_log", self._in_log & (offsets >= extent.first_offset))
        waiting = self._in_log & (offsets >= extent.position)
        self._count(audit, "waiting", waiting)
        if waiting.any():
            oldest = int(self._times[waiting].min())
            known = audit.waiting_from_ms
            audit.waiting_from_ms = oldest if known is None else min(known, oldest)
        rowless = accounted & (self._rows == 0)
        skipped = rowless & ~self._in_log & self._within(extent.skipped)
        self._count(audit, "skipped", skipped)
        deleted = rowless & ~skipped & self._within(extent.deleted)
        self._count(audit, "deleted", deleted)
        missing = rowless & self._in_log & ~deleted
        self._count(audit, "missing", missing)
        self._note(faults, DiscrepancyKind.MISSING, missing, missing)
        repeated = np.maximum(self._rows - 1, 0)
        self._count(audit, "duplicated", repeated)
        self._note(faults, DiscrepancyKind.DUPLICATED, repeated > 0, repeated)
        gone = (self._rows > 0) & ~self._in_log
        explained = gone & ((offsets < extent.log_start) | sides.compacts) & accounted
        self._count(audit, "expired", explained)
        self._note(faults, DiscrepancyKind.FOREIGN, gone & ~explained, gone)

    def _keep_content(self, some: OffsetColumns) -> None:
        if some.checksums is None:
            return
        at = some.offsets - self._first
        self._log.records[at] = some.checksums
        assert some.rows is not None
        assert some.makes_row is not None
        self._log.rows[at] = some.rows
        self._log.makes_row[at] = some.makes_row

    def _within(self, ranges: Sequence[OffsetRange]) -> Flags:
        found = np.zeros(self._end - self._first, dtype=np.bool_)
        for r in ranges:
            if r.first_offset < self._end and r.end_offset > self._first:
                found[max(0, r.first_offset - self._first) : r.end_offset - self._first] = True
        return found

    def _add_rows(self, side: OffsetReader, audit: PartitionAudit, column: str) -> None:
        for some in side.read(self._extent.partition, self._first, self._end):
            at = some.offsets - self._first
            np.add.at(self._rows, at, 1)
            unknown = ~self._in_log[at]
            self._times[at[unknown]] = some.times_ms[unknown]
            buckets = buckets_of(self._times[at], self._bucket_ms)
            enter(audit, column, buckets)
            if some.late is not None:
                enter(audit, "late", buckets[some.late])
            if self._content is not None and some.checksums is not None:
                quarantined = column == "quarantined"
                self._content.add_rows(some.offsets, some.checksums, self._log, quarantined=quarantined)

    def _count(self, audit: PartitionAudit, column: str, weights: NDArray[Any]) -> None:
        at = np.flatnonzero(weights)
        enter(audit, column, buckets_of(self._times[at], self._bucket_ms), weights[at])

    def _note(self, faults: Faults, kind: DiscrepancyKind, where: Flags, weights: NDArray[Any]) -> None:
        for start, end in _runs(where):
            for first, stop, bucket_ms in self._by_bucket(start, end):
                count = int(weights[first:stop].sum())
                faults.note(kind, self._first + first, self._first + stop, count, bucket_ms)

    def _by_bucket(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield the parts of a run, cut where its bucket changes."""
        buckets = buckets_of(self._times[start:end], self._bucket_ms)
        cuts = [0, *(np.flatnonzero(np.diff(buckets)) + 1).tolist(), end - start]
        for first, stop in itertools.pairwise(cuts):
            yield start + first, start + stop, int(buckets[first])


def buckets_of(times_ms: Longs, bucket_ms: int) -> Longs:
    """Return the beginning of the bucket of each time."""
    return np.where(times_ms >= 0, times_ms - times_ms % bucket_ms, NO_TIME)


def enter(audit: PartitionAudit, column: str, buckets: Longs, weights: NDArray[Any] | None = None) -> None:
    """Add to a column, one for each entry or its weight, in the lines of their buckets."""
    values, inverse = np.unique(buckets, return_inverse=True)
    for value, count in zip(values, np.bincount(inverse, weights=weights, minlength=len(values)), strict=True):
        line: AuditCounts = audit.line(int(value))
        setattr(line, column, getattr(line, column) + int(count))


def _runs(where: Flags) -> Iterator[tuple[int, int]]:
    """Yield the runs of True: first and end."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], where, [False])).astype(np.int8)))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
