"""Keeps with a table the offsets that have no row on purpose, in the table's properties.

A load with `on_loss = "skip"` skips offsets that were deleted from the log before they were loaded. Rows that were
deleted for a privacy request, for instance, are declared. The audit counts both apart from lost records. Each skip and
each declaration is a property of its own: one call sets it, so that two processes never overwrite each other's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ottla.pipeline.lake.lake_table import TableCommitter, TableReader
from ottla.pipeline.offset_range import OffsetRange, parse_offsets

_SKIPPED = "ottla.skipped."
_DELETED = "ottla.deleted."


@dataclass(frozen=True, slots=True)
class Deletion:
    """A declaration of rows that were deleted on purpose."""

    id: str
    reason: str
    declared: str
    """The time of the declaration, in ISO's form."""
    ranges: Sequence[OffsetRange]


@dataclass(frozen=True, slots=True)
class RowlessOffsets:
    """The offsets of one topic without a row, sorted, ranges that touch joined."""

    skipped: Sequence[OffsetRange] = ()
    deletions: Sequence[Deletion] = field(default=())

    @property
    def deleted(self) -> list[OffsetRange]:
        """The ranges of all deletions."""
        return join_ranges(r for deletion in self.deletions for r in deletion.ranges)


def rowless_offsets(table: TableReader, topic: str) -> RowlessOffsets:
    """Read what is kept of a topic. Raises TableMismatch if there is no table."""
    skipped, deletions = [], []
    for name, text in table.properties().items():
        if name.startswith(_SKIPPED):
            of, partition, first = name.removeprefix(_SKIPPED).rsplit(".", 2)
            if of == topic:
                skipped.append(OffsetRange(int(partition), int(first), int(text)))
        elif name.startswith(_DELETED) and text:
            of, number = name.removeprefix(_DELETED).rsplit(".", 1)
            if of == topic:
                deletions.append(_deletion(number, json.loads(text)))
    return RowlessOffsets(
        join_ranges(skipped), sorted(deletions, key=lambda deletion: (deletion.declared, deletion.id))
    )


def keep_skipped(table: TableCommitter, topic: str, ranges: Iterable[OffsetRange]) -> None:
    """Keep the offsets that the next commit skips. They count only once the table's position is beyond them."""
    properties = {f"{_SKIPPED}{topic}.{r.partition}.{r.first_offset}": str(r.end_offset) for r in ranges}
    if properties:
        table.set_properties(properties)


def declare_deleted(table: TableCommitter, topic: str, deletion: Deletion) -> None:
    """Keep a declaration."""
    offsets: dict[str, list[str]] = {}
    for r in join_ranges(deletion.ranges):
        offsets.setdefault(str(r.partition), []).append(_spelled(r))
    document = {"reason": deletion.reason, "declared": deletion.declared}
    document["offsets"] = {partition: ",".join(parts) for partition, parts in offsets.items()}  # type: ignore[assignment]
    table.set_properties({f"{_DELETED}{topic}.{deletion.id}": json.dumps(document)})


def withdraw(table: TableCommitter, topic: str, deletion: Deletion) -> None:
    """Withdraw a declaration: its offsets count as missing again. A property can be emptied, not removed."""
    table.set_properties({f"{_DELETED}{topic}.{deletion.id}": ""})


def join_ranges(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Sort ranges and join those that touch.

    >>> join_ranges([OffsetRange(0, 5, 8), OffsetRange(0, 0, 3), OffsetRange(0, 2, 5)])
    [OffsetRange(partition=0, first_offset=0, end_offset=8)]
    """
    offset_ranges: list[OffsetRange] = []
    for r in sorted(r for r in ranges if r.count > 0):
        if (
            offset_ranges
            and offset_ranges[-1].partition == r.partition
            and offset_ranges[-1].end_offset >= r.first_offset
        ):
            last = offset_ranges.pop()
            offset_ranges.append(OffsetRange(r.partition, last.first_offset, max(last.end_offset, r.end_offset)))
        else:
            offset_ranges.append(r)
    return offset_ranges


def overlap(ranges: Iterable[OffsetRange], wanted: OffsetRange) -> int:
    """Count the offsets of `wanted` that are in ranges, which do not overlap each other."""
    return sum(
        max(0, min(r.end_offset, wanted.end_offset) - max(r.first_offset, wanted.first_offset))
        for r in ranges
        if r.partition == wanted.partition
    )


def _deletion(number: str, document: Mapping[str, object]) -> Deletion:
    offsets = document["offsets"]
    assert isinstance(offsets, dict)
    ranges = [
        OffsetRange(int(partition), *parse_offsets(part))
        for partition, parts in offsets.items()
        for part in parts.split(",")
    ]
    return Deletion(number, str(document["reason"]), str(document["declared"]), join_ranges(ranges))


def _spelled(r: OffsetRange) -> str:
    return str(r.first_offset) if r.count == 1 else f"{r.first_offset}-{r.end_offset - 1}"
