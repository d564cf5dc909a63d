"""Chooses the log that is compacted next, and the offset up to which: decisions only.

Never cleaned: the active segment, what is at or after the first unstable offset or the high watermark, and segments
with a record younger than `min.compaction.lag.ms`. A log's dirty ratio is the share of bytes after the last cleaning;
of those above `min.cleanable.dirty.ratio`, or with something older than `max.compaction.lag.ms`, the dirtiest is next.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ottla.core.settings import LONG_MAX
from ottla.storage.log.partition_log import PartitionLog
from ottla.storage.log.segment import Segment


class LogToClean(NamedTuple):
    """A log and what a cleaning of it would do."""

    log: PartitionLog
    first_dirty_offset: int
    first_uncleanable_offset: int  # where a cleaning must end
    segments: tuple[Segment, ...]  # all that may be cleaned, those already clean first
    clean_bytes: int
    dirty_bytes: int
    is_due: bool  # something has waited for longer than it may

    @property
    def dirty_ratio(self) -> float:
        """The dirty share of what can be cleaned."""
        return self.dirty_bytes / (self.clean_bytes + self.dirty_bytes)


def log_to_clean(log: PartitionLog, *, now_ms: int) -> LogToClean | None:
    """Return the part of a log to clean, after what the last pass has cleaned; None if there is none."""
    if log.is_truncating:
        return None
    first_dirty = log.log_start_offset if log.cleaner_line.cleaned_offset is None else log.cleaner_line.cleaned_offset
    if not log.log_start_offset <= first_dirty <= log.end_offset:
        first_dirty = log.log_start_offset  # a checkpoint from before a deletion or a truncation
    # What only the system's memory holds (durability=page-cache) must not take the place of what is on the disk.
    end_offset = min(log.last_stable_offset, log.high_watermark, log.flushed_offset, log.active.base_offset)
    segments: list[Segment] = []
    clean_bytes = dirty_bytes = 0
    for segment, after in zip(log.segments, log.segments[1:], strict=False):
        is_dirty = after.base_offset > first_dirty
        if after.base_offset > end_offset or (
            is_dirty and _is_young(segment, log.config.min_compaction_lag_ms, now_ms)
        ):
            break
        segments.append(segment)
        if is_dirty:
            dirty_bytes += segment.size_bytes
        else:
            clean_bytes += segment.size_bytes
    if not dirty_bytes:
        return None
    first_uncleanable = log.segments[len(segments)].base_offset
    is_due = _is_due(log, first_dirty, now_ms)
    return LogToClean(log, first_dirty, first_uncleanable, tuple(segments), clean_bytes, dirty_bytes, is_due)


def dirtiest_log(candidates: Iterable[LogToClean]) -> LogToClean | None:
    """Return the log to clean now; None if none is dirty enough."""
    ready = [
        candidate
        for candidate in candidates
        if candidate.is_due or candidate.dirty_ratio > candidate.log.config.min_cleanable_dirty_ratio
    ]
    return max(ready, key=lambda each: each.dirty_ratio, default=None)


def _is_young(segment: Segment, lag_ms: int, now_ms: int) -> bool:
    return lag_ms > 0 and segment.greatest_timestamp(active=False).timestamp > now_ms - lag_ms


def _is_due(log: PartitionLog, first_dirty: int, now_ms: int) -> bool:
    """Return whether the oldest dirty segment's first batch is older than `max.compaction.lag.ms`."""
    lag_ms = log.config.max_compaction_lag_ms
    if lag_ms == LONG_MAX:
        return False
    times = (
        segment.first_timestamp()
        for segment, after in zip(log.segments, log.segments[1:], strict=False)
        if after.base_offset > first_dirty
    )
    return any(0 < at < now_ms - lag_ms for at in times)
