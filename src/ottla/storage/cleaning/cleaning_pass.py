"""Runs one compaction pass over one log on the loop: start, swap in each group, end. The work is in `cleaner.py`.

    cleaning = start_cleaning(...)   the segments, as they are now
    cleaning.swap_in(group)          replaces the old segments of a group with the cleaned one, in a few renames
    cleaning.discard()               removes what was written and not swapped in

A truncation, DeleteRecords, retention, a new policy, the topic's deletion or the failure of the directory may come in
between. If one of them touched the segments of a group, its result is discarded and the log stays as it is.

The swap is safe at every step. The new files are whole and synced before; the renames of one directory reach the disk
in their order, so that a crash shows a log before, within or after it, and `loading/swap_files.py` completes it:

    1. x.token.cleaned -> x.swap, the `.log` last        from here on the new segment counts
    2. each old file   -> its name and .deleted          open readers continue; removed after a delay
    3. x.swap          -> x, the `.log` first
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from ottla.storage.cleaning.cleaner_config import CleanerConfig
from ottla.storage.cleaning.cleaning_plan import ActiveProducer, CleanedGroup, CleaningPlan, SourceSegment
from ottla.storage.cleaning.log_to_clean import LogToClean
from ottla.storage.log.partition_log import PartitionLog
from ottla.storage.log.segment import Segment
from ottla.storage.log.segment_swap import SegmentSwap


class CleaningPass:
    """A pass that has begun."""

    __slots__ = ("_cuts", "_log", "_segments", "plan")

    def __init__(self, log: PartitionLog, segments: Sequence[Segment], plan: CleaningPlan) -> None:
        self._log = log
        self._segments = tuple(segments)
        self._cuts = log.truncation_count
        self.plan = plan

    def overtaken(self, group: CleanedGroup | None = None) -> str:
        """Return the reason why the results of the pass, or of one group, can no longer be used; empty if they can."""
        log = self._log
        if log.health.failure is not None:
            return "its directory is offline"
        if log.directory != self.plan.directory:
            return "it was deleted"
        if log.truncation_count != self._cuts or log.is_truncating:
            return "it was truncated"
        if not log.config.is_compacted:
            return "it is no longer to be compacted"
        if group is not None and self._segments[group.first_source] not in log.segments:
            return "its oldest segments were deleted"  # one after another, the first of all first
        return ""

    def swap_in(self, group: CleanedGroup) -> str:
        """Put a group's segment in place of the old ones. Gives what `overtaken` does; then nothing was changed.

        Raises StorageError: the directory is offline then, and the next start finishes what was begun.
        """
        why = self.overtaken(group)
        if why:
            return why
        old = list(self._segments[group.first_source : group.first_source + group.sources])
        first, last = old[0], old[-1]
        new = Segment(
            first.files, first.directory, first.base_offset, size_bytes=group.size_bytes, created_ms=last.created_ms
        )
        self._log.replace_segments(
            SegmentSwap(old, new, cleaned_suffix=self.plan.suffix, has_transactions=group.has_transactions)
        )
        return ""

    def discard(self) -> None:
        """Remove what was written and is not part of the log. What cannot be removed now the next start removes."""
        directory = self._log.directory
        with contextlib.suppress(OSError):
            for name in self._log.files.names_in(directory):
                if name.endswith(self.plan.suffix):
                    self._log.files.remove(directory / name)


def start_cleaning(chosen: LogToClean, config: CleanerConfig, *, token: str, now_ms: int) -> CleaningPass:
    """Begin a pass over a log. `token` must be of this pass alone; it becomes part of file names. Raises OSError."""
    log, segments = chosen.log, chosen.segments
    threads = max(config.threads, 1)
    for segment in segments:
        segment.write_indexes()  # their sizes are asked for
    bases = [segment.base_offset for segment in log.segments]
    ends = zip(segments, bases[1:], strict=False)
    plan = CleaningPlan(
        topic_partition=str(log.topic_partition),
        directory=log.directory,
        token=token,
        sources=tuple(SourceSegment(segment.base_offset, end, segment.size_bytes) for segment, end in ends),
        later_bases=tuple(bases[len(segments) :]),
        first_dirty_offset=chosen.first_dirty_offset,
        now_ms=now_ms,
        delete_retention_ms=log.config.delete_retention_ms,
        segment_bytes=log.config.segment_bytes,
        segment_index_bytes=log.config.segment_index_bytes,
        index_interval_bytes=log.config.index_interval_bytes,
        producers={
            info.producer_id: ActiveProducer(_last_data_offset(log, info.producer_id), info.producer_epoch)
            for info in log.producers.describe()
        },
        map_bytes=config.dedupe_buffer_bytes // threads,
        load_factor=config.load_factor,
        io_buffer_bytes=config.io_buffer_bytes // threads,
        io_bytes_per_second=config.io_bytes_per_second / threads,
    )
    return CleaningPass(log, segments, plan)


def _last_data_offset(log: PartitionLog, producer_id: int) -> int:
    """Return the last offset of the producer's newest batch that is on the disk.

    A power cut may take those after it, and its sequence must be left.
    """
    producer = log.producers.entry(producer_id)
    if producer is None or not producer.batches:
        return -1
    flushed = (batch for batch in reversed(producer.batches) if batch.last_offset < log.flushed_offset)
    return next(flushed, producer.batches[-1]).last_offset
