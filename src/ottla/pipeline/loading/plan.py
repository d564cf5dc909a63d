"""Plans a load: from the offsets of log and table to ranges, and from ranges to the work of each task. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ottla.client.offsets import OffsetBounds
from ottla.pipeline.loading.on_loss import OnLoss
from ottla.pipeline.offset_range import OffsetRange, deleted_text

TASK_OFFSETS_MAX = 4_000_000
"""A task's work at most: a lost task costs seconds, not the whole load."""
TASK_OFFSETS_MIN = 50_000
"""Below this a range is not cut in two: more tasks would only make more files."""


class CannotLoad(Exception):
    """The log and the table do not fit together: offsets the table needs are gone, or it is ahead of the log."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Holds the offsets that a load will read."""

    ranges: Sequence[OffsetRange]
    lost: Sequence[OffsetRange]
    """Offsets in those ranges that the log no longer has."""

    @property
    def readable(self) -> list[OffsetRange]:
        """The ranges without what is lost."""
        ends = {r.partition: r.end_offset for r in self.lost}
        left = [OffsetRange(r.partition, ends.get(r.partition, r.first_offset), r.end_offset) for r in self.ranges]
        return [r for r in left if r.count]


def plan(
    topic: str,
    bounds: Mapping[int, OffsetBounds],
    held: Mapping[int, OffsetRange],
    *,
    first: Mapping[int, int] | None = None,
    end: Mapping[int, int] | None = None,
    most: int | None = None,
    on_loss: OnLoss = OnLoss.FAIL,
) -> LoadPlan:
    """Plan the new offsets of each partition, up to `end` and at most `most` offsets of each.

    `first` is the start of partitions that were never loaded; the default is the log start offset. Raises CannotLoad
    for a gap, because no later load would detect it, unless `on_loss` is SKIP: then the gap is part of `LoadPlan.lost`.
    """
    ranges, lost = [], []
    for partition, span in sorted(bounds.items()):
        begin = held[partition].end_offset if partition in held else (first or {}).get(partition, span.start_offset)
        until = min(span.end_offset, (end or {}).get(partition, span.end_offset))
        if begin < span.start_offset:
            gone = OffsetRange(partition, begin, min(span.start_offset, until))
            if on_loss is OnLoss.FAIL:
                raise CannotLoad(
                    f"{topic}-{partition}: {deleted_text(begin, span.start_offset)}. "
                    '--on-loss skip, or on_loss = "skip" in the [[load]] section, continues without them; the audit '
                    "counts them as skipped."
                )
            if gone.count > 0:
                lost.append(gone)
        if begin > span.end_offset:
            raise CannotLoad(
                f"{topic}-{partition}: the table is loaded up to {begin}, and the log ends at {span.end_offset}"
            )
        if most is not None:
            until = min(until, max(begin, span.start_offset) + most)
        if begin < until:
            ranges.append(OffsetRange(partition, begin, until))
    return LoadPlan(ranges, lost)


def split_among_tasks(ranges: Iterable[OffsetRange], cores: int) -> list[list[OffsetRange]]:
    """Split the ranges into equal parts, one per task: the partitions in a row, cut where a part is full.

    One task per core where that is not too much for one, so that a load makes few and large files; a part of several
    small partitions writes their rows into the same files.

    >>> split_among_tasks([OffsetRange(0, 0, 150_000), OffsetRange(1, 0, 50_000)], 2)[0]
    [OffsetRange(partition=0, first_offset=0, end_offset=100000)]
    """
    todo = list(ranges)
    total = sum(r.count for r in todo)
    tasks = max(1, min(cores, total // TASK_OFFSETS_MIN), -(-total // TASK_OFFSETS_MAX))
    size = -(-total // tasks)
    parts: list[list[OffsetRange]] = [[]]
    left = size
    for r in todo:
        first = r.first_offset
        while first < r.end_offset:
            if left == 0:
                parts.append([])
                left = size
            end = min(first + left, r.end_offset)
            parts[-1].append(OffsetRange(r.partition, first, end))
            left -= end - first
            first = end
    return [part for part in parts if part]


def check_complete(ranges: Iterable[OffsetRange], staged: Iterable[OffsetRange]) -> None:
    """Raise CannotLoad unless the tasks' ranges make up the requested ones: a lost task would become a gap."""
    spans: dict[int, tuple[int, int]] = {}
    for at in sorted(staged):
        first, end = spans.get(at.partition, (at.first_offset, at.first_offset))
        if end != at.first_offset:
            raise CannotLoad(f"partition {at.partition}: the tasks left offsets {end} and on undone")
        spans[at.partition] = (first, at.end_offset)
    if spans != {r.partition: (r.first_offset, r.end_offset) for r in ranges}:
        raise CannotLoad("the offset ranges that the tasks staged differ from those planned; load again")
