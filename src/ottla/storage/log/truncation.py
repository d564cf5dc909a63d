"""Truncates the end of a log: what is removed, and which flushes count no more.

`PartitionLog.truncation` has the steps in their order; `truncation_steps.py` runs them, `pending_flush.py` has what
they leave to be synced.
"""

from __future__ import annotations

from ottla.core.errors import StorageError
from ottla.storage.config import LogConfig
from ottla.storage.directory_health import DirectoryHealth
from ottla.storage.log.aborted_transactions import AbortedTransactions
from ottla.storage.log.pending_flush import PendingFlush
from ottla.storage.log.segment_list import SegmentList
from ottla.storage.log.truncation_steps import Truncation


def truncate_active(
    segments: SegmentList, aborted: AbortedTransactions, offset: int, log_start_offset: int, config: LogConfig
) -> bool:
    """Remove every batch of the active segment that reaches `offset` or is after it. Raises OSError.

    Return False, with nothing removed, if no batch would remain: then the log is to begin again, with a new segment.
    """
    segment = segments.active
    segment.resume_after_truncation(interval_bytes=config.index_interval_bytes)
    segments.forget_positions()
    if offset <= max(segment.base_offset, log_start_offset):
        return False
    batch = segment.find(offset)
    if batch is None:  # what was removed began with the next segment
        segments.end_offset = segment.end_offset()
        return True
    if batch.header.base_offset < log_start_offset:  # the first batch goes too: it is fetched again
        return False
    segments.end_offset = min(batch.header.base_offset, offset)
    segment.truncate(batch.position, end_offset=segments.end_offset)
    aborted.truncate_active(segments.end_offset)
    return True


class TruncationState:
    """Counts the truncations of a log: what began before one does not cover what was written after it.

    The steps of `begin` and `end` surround those that change files. The recovery point on the disk is lowered before a
    file is changed, and is written again before anything that follows the truncation counts.
    """

    __slots__ = ("_health", "_limit", "_pending_flush", "count")

    def __init__(self, pending_flush: PendingFlush, health: DirectoryHealth) -> None:
        self._pending_flush = pending_flush
        self._health = health
        self._limit: int | None = None  # while a truncation runs: recovery must not begin after it
        self.count = 0

    @property
    def is_running(self) -> bool:
        """Whether a truncation has begun and not ended."""
        return self._limit is not None

    def recovery_point(self, flushed_offset: int) -> int:
        """Return the offset at which recovery has to begin after a crash."""
        return flushed_offset if self._limit is None else min(flushed_offset, self._limit)

    def begin(self, flushed_offset: int, first_changed: int) -> Truncation:
        """Lower the recovery point, before a file is touched: the next start must scan what a crash leaves."""
        limit, before = self._limit, self.recovery_point(flushed_offset)
        self.count += 1  # now and at the end: what began meanwhile is overtaken, too
        self._limit = min(before, first_changed)
        if before <= first_changed and not self._pending_flush.needs_checkpoint:
            return  # the checkpoint files have nothing above it
        try:
            yield None
        except StorageError:
            self._limit = limit  # nothing has changed
            raise

    def end(self) -> Truncation:
        """Note the lower recovery point on the disk, before anything written after the truncation counts."""
        self.count += 1
        self._limit = None
        self._pending_flush.require_checkpoint()
        try:
            yield None
            self._pending_flush.checkpointed()
        except StorageError:
            if self._health.failure is not None:  # otherwise the next flush begins with it
                raise

    def continue_from(self, other: TruncationState) -> None:
        """Continue the count of another log, which this one replaces."""
        self.count = other.count
