"""Keeps with a table the checksums of what was loaded, in the commits that bring the rows and move the position.

They are application transactions of the commit, as the fence of a load is, so they need no support of a table format
and are as durable as the position. Offsets are summed up in segments, for each partition:

    source       the records, as the load read them from the log
    rows         the rows that the load made of them
    quarantined  the records that the load quarantined

A change that brings other rows for offsets that were loaded before (a backfill, a replay) makes the sums of their
segments unknown: only the log can prove these then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ottla.client.content import ContentSum
from ottla.pipeline.lake.content_hash import Words, sum_of
from ottla.pipeline.lake.lake_table import AppTransaction, LoadPositions, StagedFile
from ottla.pipeline.offset_range import OffsetRange

SEGMENT_BITS = 24
"""Of the offsets of a segment: few enough segments for a table's metadata, few enough offsets to name one."""
SOURCE, ROWS, QUARANTINED = KINDS = ("source", "rows", "quarantined")
_FIELDS = ("count", "total", "weighted")
_UNKNOWN = 1 << 62
"""A count from which on a segment's sums say nothing."""


@dataclass(frozen=True, slots=True)
class SegmentContent:
    """The sums of one segment of a partition's offsets; a kind without records has sums of 0."""

    partition: int
    segment: int
    sums: Mapping[str, ContentSum]


@dataclass(slots=True)
class ContentSums:
    """Adds up checksums by partition, segment and kind."""

    sums: dict[tuple[int, int, str], ContentSum] = field(default_factory=dict)

    def add(self, kind: str, partition: int, at: NDArray[np.int64], checksums: Words) -> None:
        """Add the checksums of some records or rows of one partition."""
        if not len(at):
            return
        segments = at >> SEGMENT_BITS
        for segment in range(int(segments.min()), int(segments.max()) + 1):
            here = segments == segment
            self._add(partition, segment, kind, sum_of(at[here], checksums[here]))

    def add_all(self, entries: Iterable[Sequence[int | str]]) -> None:
        """Add what `entries` of another returned."""
        for partition, segment, kind, *sums in entries:
            self._add(int(partition), int(segment), str(kind), ContentSum(*map(int, sums)))

    def entries(self) -> list[tuple[int | str, ...]]:
        """Return the sums as lists of numbers, for JSON."""
        return [(*key, *content_sum) for key, content_sum in sorted(self.sums.items())]

    def _add(self, partition: int, segment: int, kind: str, more: ContentSum) -> None:
        key = (partition, segment, kind)
        self.sums[key] = self.sums.get(key, ContentSum()).plus(more)


def transactions_of_load(table: LoadPositions, topic: str, sums: ContentSums) -> list[AppTransaction]:
    """Return the transactions that add the sums of a load to those of the table."""
    transactions = []
    for (partition, segment, kind), more in sorted(sums.sums.items()):
        names = _names(topic, partition, segment, kind)
        held = ContentSum(*(table.transaction_version(name) for name in names))
        after = held.plus(more)
        transactions += [AppTransaction(*moved) for moved in zip(names, held, after, strict=True)]
    return transactions


def transactions_of_replacement(
    table: LoadPositions, topic: str, replaced: Iterable[OffsetRange], files: Iterable[StagedFile]
) -> list[AppTransaction]:
    """Return the transactions that make unknown what is recorded of the replaced offsets and of those in the files."""
    touched = {(r.partition, s) for r in replaced for s in segments_of(r.first_offset, r.end_offset)}
    for file in files:
        if "partition" in file.lows and "offset" in file.lows:
            partitions = range(file.lows["partition"], file.highs["partition"] + 1)
            segments = segments_of(file.lows["offset"], file.highs["offset"] + 1)
            touched |= {(p, s) for p in partitions for s in segments}
    names = [_names(topic, p, s, kind)[0] for p, s in sorted(touched) for kind in KINDS]
    held = [table.transaction_version(name) for name in names]
    return [AppTransaction(n, count, _UNKNOWN) for n, count in zip(names, held, strict=True) if count < _UNKNOWN]


def recorded_content(
    table: LoadPositions, topic: str, partition: int, first_offset: int, end_offset: int
) -> list[SegmentContent]:
    """Read what loads recorded of the segments of a range; without those of which something is unknown."""
    segments = []
    for segment in segments_of(first_offset, end_offset):
        sums = {
            kind: ContentSum(*map(table.transaction_version, _names(topic, partition, segment, kind))) for kind in KINDS
        }
        if sums[SOURCE].records and not any(kept.records >= _UNKNOWN for kept in sums.values()):
            segments.append(SegmentContent(partition, segment, sums))
    return segments


def segments_of(first_offset: int, end_offset: int) -> range:
    """Return the numbers of the segments of a range.

    >>> segments_of(0, 1), segments_of(5, (1 << 24) + 1), segments_of(7, 7)
    (range(0, 1), range(0, 2), range(0, 0))
    """
    return (
        range(first_offset >> SEGMENT_BITS, ((end_offset - 1) >> SEGMENT_BITS) + 1)
        if end_offset > first_offset
        else range(0)
    )


def _names(topic: str, partition: int, segment: int, kind: str) -> list[str]:
    return [f"content/{topic}/{partition}/{segment}/{kind}/{name}" for name in _FIELDS]
