"""Replaces faulty parts of a log by what another replica has: segment by segment, while the log is used.

    faulty_ranges(log)         lists ranges; where the records are committed all replicas have the same
    LogRepair(log, range)       writes them, as they come, into a new segment under a temporary name, in any thread
    repair.swap_in()            puts that in place of the faulty segment, or into the gap, by a few renames

A swap is safe at every step, as that of a compaction (`cleaning/cleaning_pass.py`). Nothing is removed before the new
segment is whole and synced. A range that is larger than a segment becomes several.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ottla.core.clock import SystemClock
from ottla.core.errors import CorruptMessage
from ottla.records.batch import BatchHeader
from ottla.storage.cleaning.cleaned_segment import CleanedSegment, GroupTooLarge, NewSegment
from ottla.storage.cleaning.throttler import Throttler
from ottla.storage.file_names import CLEANED_SUFFIX
from ottla.storage.log.log_faults import FaultyRange
from ottla.storage.log.partition_log import PartitionLog
from ottla.storage.log.segment import RELATIVE_OFFSET_MAX, Segment
from ottla.storage.log.segment_swap import SegmentSwap
from ottla.storage.state.aborted_index import AbortedTransaction
from ottla.storage.state.end_marker import MarkerType, read_marker
from ottla.storage.state.leader_epochs import LeaderEpochs
from ottla.storage.validation.batch_validator import validate_follower_batches

_BUFFER_BYTES = 1 << 20


class LogRepair:
    """One range that is fetched again. `add` and `seal` may run in a thread, one at a time."""

    __slots__ = (
        "_aborted",
        "_epochs",
        "_has_gaps",
        "_log",
        "_old",
        "_open_aborts",
        "_target",
        "_truncation_count",
        "_writer",
        "faulty",
        "next_offset",
    )

    def __init__(self, log: PartitionLog, faulty: FaultyRange, *, token: str) -> None:
        self._log, self.faulty = log, faulty
        self._old = [
            segment for segment in log.segments if faulty.is_segment and segment.base_offset == faulty.first_offset
        ]
        self._truncation_count = log.truncation_count
        self._epochs = LeaderEpochs(log.epochs.entries) if log.epochs.certain else LeaderEpochs()
        self.next_offset = faulty.first_offset
        self._target = NewSegment(
            log.directory,
            faulty.first_offset,
            f".{token}{CLEANED_SUFFIX}",
            is_alone=False,
            index_interval_bytes=log.config.index_interval_bytes,
            io_buffer_bytes=_BUFFER_BYTES,
            segment_bytes=max(log.config.segment_bytes, *(segment.size_bytes for segment in self._old), 0),
            segment_index_bytes=log.config.segment_index_bytes,
        )
        self._writer: CleanedSegment | None = None
        self._has_gaps = False
        self._aborted: list[AbortedTransaction] = []
        self._open_aborts: dict[int, list[int]] = {}  # by producer: where aborted transactions begin, ascending

    def add(self, records: memoryview, aborted: Sequence[tuple[int, int]]) -> bool:
        """Write what came next; return whether the segment is to be sealed. Raises CorruptMessage, OSError.

        `aborted` are the producers and first offsets of the aborted transactions among the records.
        """
        for producer_id, first_offset in aborted:
            begun = self._open_aborts.setdefault(producer_id, [])
            if first_offset not in begun:
                begun.append(first_offset)
                begun.sort()
        faulty, begins = self.faulty, self.next_offset
        if self._writer is None and faulty.first_offset == self._log.log_start_offset:
            begins = 0  # the log start may be within the first batch
        for at, header in validate_follower_batches(records, end_offset=begins, last_epoch=-1):
            if header.last_offset < self.next_offset:
                continue
            if header.last_offset >= faulty.end_offset:
                if header.base_offset < faulty.end_offset:
                    raise CorruptMessage(
                        f"the leader's batch at offset {header.base_offset} crosses {faulty.end_offset}, where a "
                        f"segment of {self._log.topic_partition} begins"
                    )
                self.skip_rest()
                return True
            if not self._add_batch(header, records[at : at + header.size_bytes]):
                return True  # the rest is another segment
        return self.next_offset == faulty.end_offset

    def _check_epoch(self, header: BatchHeader) -> None:
        known = self._epochs.epoch_of(header.base_offset)
        if known >= 0 and known != header.partition_leader_epoch:
            raise CorruptMessage(
                f"the leader has epoch {header.partition_leader_epoch} at offset {header.base_offset} of "
                f"{self._log.topic_partition}, and this replica {known}"
            )

    def _add_batch(self, header: BatchHeader, batch: memoryview) -> bool:
        """Write a batch; return False if it does not fit."""
        self._check_epoch(header)
        writer = self._writer or self._begin(min(header.base_offset, self.faulty.first_offset), header.size_bytes)
        if writer.written and header.last_offset - self._target.base_offset > RELATIVE_OFFSET_MAX:
            return False
        try:
            writer.append(header, bytes(batch))
        except GroupTooLarge:
            return False
        self._skip_to(header.base_offset)
        self.next_offset = header.last_offset + 1
        if header.is_control and header.producer_id >= 0:
            marker, begun = read_marker(batch), self._open_aborts.get(header.producer_id)
            if marker is not None and marker.type is MarkerType.ABORT and begun:
                first = begun.pop(0)
                self._aborted.append(AbortedTransaction(header.producer_id, first, header.last_offset, first))
        return True

    def _begin(self, base_offset: int, size_bytes: int) -> CleanedSegment:
        target = self._target
        self._target = target._replace(base_offset=base_offset, segment_bytes=max(target.segment_bytes, size_bytes))
        throttle = Throttler(float("inf"), clock=SystemClock(), sleep=time.sleep)
        self._writer = CleanedSegment(self._log.files, self._target, throttle)
        return self._writer

    def _skip_to(self, offset: int) -> None:
        self._has_gaps |= offset > self.next_offset
        self.next_offset = max(offset, self.next_offset)

    def skip_rest(self) -> None:
        """Note that the leader has nothing more of the range: compaction has removed it."""
        self._skip_to(self.faulty.end_offset)

    def seal(self) -> None:
        """Write and sync the new segment, which is empty if the leader has compacted all of it. Raises OSError."""
        writer = self._writer or self._begin(self.faulty.first_offset, 0)
        writer.seal(self._aborted)

    def discard(self) -> None:
        """Remove what was written. What cannot be removed now the next start removes."""
        if self._writer is not None:
            self._writer.discard()

    @property
    def is_overtaken(self) -> bool:
        """Whether the log has changed so that the new segment does not fit any more."""
        log, first, end = self._log, self.faulty.first_offset, self.faulty.end_offset
        if (
            log.truncation_count != self._truncation_count
            or log.is_truncating
            or log.directory != self._target.directory
        ):
            return True
        if self._old:
            return self._old[0] not in log.segments
        return any(first <= segment.base_offset < end for segment in log.segments) or all(
            segment.base_offset != end for segment in log.segments
        )

    def swap_in(self) -> bool:
        """Make the new segment part of the log; return False if the log has changed meanwhile. Raises StorageError."""
        log, faulty, writer = self._log, self.faulty, self._writer
        if self.is_overtaken or writer is None:
            self.discard()
            return False
        if self._has_gaps:
            log.note_gaps()
        now_ms = log.clock.wall_ms()
        base = self._target.base_offset
        new = Segment(log.files, log.directory, base, size_bytes=writer.written, created_ms=now_ms)
        swap = SegmentSwap(self._old, new, cleaned_suffix=self._target.suffix, has_transactions=bool(self._aborted))
        log.replace_segments(swap)
        is_whole = self.next_offset >= faulty.end_offset
        log.faults.note_repaired(faulty.first_offset, None if is_whole else self.next_offset)
        return True
