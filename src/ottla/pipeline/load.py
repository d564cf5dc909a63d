"""Load: from a topic to its table and its quarantine, each offset exactly once, whatever dies when.

The protocol, in this order:

1. *plan*: from each partition's position in the table to its end in the log, cut into pieces;
2. *land*: tasks read the pieces and write Parquet files that no reader sees;
3. *commit the quarantine*, then 4. *commit the table*: files and positions in one atomic step each.

A death in 1 or 2 leaves stray files. Between 3 and 4 it leaves the quarantine ahead of the table: the next load reads
those offsets again for the table, and `Piece.quarantine_from` keeps them out of the quarantine. Each table thus holds
every offset below its own position exactly once, at all times; `tests/pipeline/test_load_protocol.py` holds it to that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ottla.pipeline.lake import LandedFile, Load, OffsetRange, Table

PIECE_OFFSETS = 500_000
"""One task's work: enough to fill good-sized files, little enough that a lost task costs seconds."""


class LoadError(Exception):
    """The log and the table do not fit together: offsets the table needs are gone, or it is ahead of the log."""


@dataclass(frozen=True, slots=True)
class LogSpan:
    """What a partition's log holds: offsets from `start_offset` up to, not including, `end_offset`."""

    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Piece:
    """One task: a range to land, of which the quarantine already has everything below `quarantine_from`."""

    offsets: OffsetRange
    quarantine_from: int


@dataclass(frozen=True, slots=True)
class LandedPiece:
    """What a task wrote."""

    offsets: OffsetRange
    rows: Sequence[LandedFile]
    quarantined: Sequence[LandedFile]


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What a load did."""

    ranges: Sequence[OffsetRange]
    rows: int
    quarantined: int
    size_bytes: int

    @property
    def did_nothing(self) -> bool:
        """There was nothing new in the log."""
        return not self.ranges


Land = Callable[[Sequence[Piece]], Iterable[LandedPiece]]


def load(spans: Mapping[int, LogSpan], *, table: Table, quarantine: Table, land: Land) -> LoadResult:
    """Bring the table and its quarantine to the ends in `spans`.

    Raises LoadError if that is impossible, and what `land` and the tables raise; after any of them, and after a kill
    at any moment, calling it again is right.
    """
    loaded, set_aside = table.positions(spans), quarantine.positions(spans)
    ranges = plan(spans, loaded)
    if not ranges:
        return LoadResult((), 0, 0, 0)
    landed = list(land(pieces(ranges, set_aside)))
    _check_complete(ranges, landed)
    aside_files = [file for piece in landed for file in piece.quarantined]
    row_files = [file for piece in landed for file in piece.rows]
    if behind := after(ranges, set_aside):
        quarantine.commit(Load(behind, aside_files))
    table.commit(Load(ranges, row_files))
    files = [*aside_files, *row_files]
    return LoadResult(
        ranges,
        rows=sum(file.rows for file in row_files),
        quarantined=sum(file.rows for file in aside_files),
        size_bytes=sum(file.size_bytes for file in files),
    )


def plan(spans: Mapping[int, LogSpan], positions: Mapping[int, int]) -> list[OffsetRange]:
    """What is new in each partition. Raises LoadError for a gap, because a gap would never be noticed again."""
    ranges = []
    for partition, span in sorted(spans.items()):
        first = positions.get(partition, span.start_offset)
        if first < span.start_offset:
            raise LoadError(
                f"partition {partition}: offsets {first} to {span.start_offset} were deleted from the log before "
                "they were loaded"
            )
        if first > span.end_offset:
            raise LoadError(
                f"partition {partition}: the table is loaded up to {first}, and the log ends at {span.end_offset}"
            )
        if first < span.end_offset:
            ranges.append(OffsetRange(partition, first, span.end_offset))
    return ranges


def pieces(ranges: Iterable[OffsetRange], set_aside: Mapping[int, int]) -> list[Piece]:
    """The ranges cut into tasks, the partitions taking turns so that one slow partition does not end alone."""
    cut = [
        Piece(
            OffsetRange(r.partition, first, min(first + PIECE_OFFSETS, r.end_offset)),
            quarantine_from=set_aside.get(r.partition, r.first_offset),
        )
        for r in ranges
        for first in range(r.first_offset, r.end_offset, PIECE_OFFSETS)
    ]
    return sorted(cut, key=lambda piece: (piece.offsets.first_offset, piece.offsets.partition))


def after(ranges: Iterable[OffsetRange], positions: Mapping[int, int]) -> list[OffsetRange]:
    """The parts of the ranges that lie behind the positions."""
    rest = []
    for r in ranges:
        first = max(r.first_offset, positions.get(r.partition, r.first_offset))
        if first < r.end_offset:
            rest.append(OffsetRange(r.partition, first, r.end_offset))
    return rest


def _check_complete(ranges: Iterable[OffsetRange], landed: Iterable[LandedPiece]) -> None:
    """The pieces that came back must make up the ranges, or a lost task would become a gap."""
    ends: dict[int, int] = {}
    starts: dict[int, int] = {}
    for piece in sorted(landed, key=lambda p: p.offsets):
        at = piece.offsets
        starts.setdefault(at.partition, at.first_offset)
        if ends.get(at.partition, at.first_offset) != at.first_offset:
            raise LoadError(f"partition {at.partition}: the tasks left offsets {ends[at.partition]} and on undone")
        ends[at.partition] = at.end_offset
    wanted = {r.partition: (r.first_offset, r.end_offset) for r in ranges}
    if {p: (starts[p], ends[p]) for p in ends} != wanted:
        raise LoadError("the tasks did not bring back what was asked of them")
