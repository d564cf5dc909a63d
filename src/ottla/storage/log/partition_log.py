"""Stores the log of one partition: batches in segments, each at its offset. One writer; readers get regions of files.

A batch comes from `replication/partition.py` without an offset and leaves as a `FileRegion` to
`broker/handlers/fetch.py`. In between, `append` validates its header, stamps its offsets in place in the caller's
buffer, writes it at the end of the active segment, and then updates indexes, producer state and leader epochs.

Holds after every public call:

    log_start_offset <= end_offset,  flushed_offset <= end_offset

Nothing here waits and nothing is locked: all of it runs on the loop's thread, except `FlushJob.run` and
`TruncationSync.run`.

Step 6 of 9 on the path of a batch (ARCHITECTURE.md). Before: replication/partition.py. Next: storage/log/segment.py.
"""

from __future__ import annotations

import contextlib
import errno
import uuid
from collections.abc import Iterable
from pathlib import PurePath
from typing import TYPE_CHECKING

from ottla.core.errors import CorruptMessage, KafkaError, NotLeaderOrFollower, OffsetOutOfRange, StorageError
from ottla.core.files import FileRegion
from ottla.core.ids import TopicPartition
from ottla.records.batch import HEADER_BYTES, BatchHeader, stamp, stamp_log_append_time
from ottla.storage.config import LogConfig
from ottla.storage.log.aborted_transactions import AbortedTransactions
from ottla.storage.log.append_info import CLIENT, AppendInfo, AppendOrigin, duplicate_of
from ottla.storage.log.cleaner_line import CleanerLine
from ottla.storage.log.flush import FlushJob, sync_before_gap
from ottla.storage.log.log_faults import LogFaults
from ottla.storage.log.log_parts import LoadedState, LogLocation
from ottla.storage.log.pending_flush import PendingFlush
from ottla.storage.log.producer_replay import check_data_batch, replay_producers
from ottla.storage.log.retention import LogEnds, deletable, roll_is_due, roll_limits
from ottla.storage.log.segment import RELATIVE_OFFSET_MAX, Segment
from ottla.storage.log.segment_list import SegmentList
from ottla.storage.log.timestamp_lookup import TimedOffset, TimestampLookup
from ottla.storage.log.truncation import TruncationState, truncate_active
from ottla.storage.log.truncation_steps import Truncation, TruncationSync, run_truncation
from ottla.storage.state.aborted_index import AbortedTransaction
from ottla.storage.state.end_marker import Marker, read_marker
from ottla.storage.state.leader_epochs import EpochEnd
from ottla.storage.state.producer_state_manager import NOT_REQUIRED, VerificationGuard
from ottla.storage.validation.batch_validator import (
    NO_EPOCH_LIMIT,
    read_header,
    validate_follower_batches,
    validate_for_append,
)
from ottla.storage.validation.follower_batches import FollowerBatches

if TYPE_CHECKING:  # for compaction, which most brokers never run
    from ottla.storage.log.segment_swap import SegmentSwap

__all__ = ["AppendInfo", "AppendOrigin", "PartitionLog"]


class PartitionLog:
    """One partition's log. Made by `LogDirectory` (`loading/log_loader.py`)."""

    __slots__ = (
        "_aborted",
        "_checkpoints",
        "_clean_end_offset",
        "checkpointed_start",
        "cleaner_line",
        "clock",
        "config",
        "deleted_files",
        "directory",
        "epochs",
        "faults",
        "files",
        "flushed_offset",
        "health",
        "high_watermark",
        "log_start_offset",
        "pending_flush",
        "producers",
        "segment_list",
        "snapshots",
        "topic_id",
        "topic_partition",
        "truncations",
    )

    def __init__(
        self, location: LogLocation, topic_partition: TopicPartition, config: LogConfig, loaded: LoadedState
    ) -> None:
        self.files = location.files
        self.clock = location.clock
        self.deleted_files = location.deleted_files
        self.directory = location.directory
        self.topic_partition = topic_partition
        self.topic_id: uuid.UUID = loaded.topic_id
        self.config = config
        self.health = location.health
        self._checkpoints = location.checkpoints
        self._clean_end_offset = loaded.end_offset if loaded.is_as_stopped else None  # where a clean shutdown ended it
        self.cleaner_line = CleanerLine(loaded.cleaned_offset)
        self.epochs = loaded.epochs
        self.producers = loaded.producers
        self.snapshots = loaded.snapshots
        self.log_start_offset = loaded.log_start_offset
        self.flushed_offset = loaded.end_offset
        self.high_watermark = loaded.log_start_offset  # set by replication; limits retention; is in the checkpoint
        self.checkpointed_start = loaded.checkpointed_start  # in the checkpoint files, durably; None: unknown
        self.faults = LogFaults(
            topic_partition, lost_start=loaded.lost_start, is_start_uncertain=loaded.is_start_uncertain
        )
        self.pending_flush = PendingFlush(self.files)
        self.truncations = TruncationState(self.pending_flush, self.health)
        self.segment_list = SegmentList(
            loaded.segments,
            end_offset=loaded.end_offset,
            epochs=loaded.epochs,
            faults=self.faults,
            cleaner_line=self.cleaner_line,
            is_compacted=config.is_compacted,
        )
        self._aborted = AbortedTransactions(self.segment_list, self.snapshots, self.pending_flush)
        self._set_roll_limits(self.active)

    @property
    def segments(self) -> list[Segment]:
        """Return the segments, oldest first."""
        return self.segment_list.items

    @property
    def active(self) -> Segment:
        """The segment that is written."""
        return self.segment_list.active

    @property
    def end_offset(self) -> int:
        """The offset after the last record: the next one gets it."""
        return self.segment_list.end_offset

    @property
    def size_bytes(self) -> int:
        """The bytes of all segments."""
        return self.segment_list.size_bytes

    @property
    def may_have_gaps(self) -> bool:
        """Whether compaction, here or where this log was copied from, may have removed batches between others."""
        return self.segment_list.may_have_gaps

    @property
    def is_dirty(self) -> bool:
        """Whether a flush has something to do."""
        return self.active.is_dirty or bool(self.pending_flush)

    @property
    def last_stable_offset(self) -> int:
        """Below this every transaction is decided; the caller takes the lesser of this and the high watermark."""
        if self.producers.is_stable:
            return self.segment_list.end_offset
        first = self.producers.first_unstable_offset()
        return self.end_offset if first is None else max(first, self.log_start_offset)

    # ---- Appending

    def append(
        self,
        records: memoryview,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        header: BatchHeader | None = None,
        validated_for: LogConfig | None = None,
        guard: VerificationGuard | None = NOT_REQUIRED,
    ) -> AppendInfo:
        """Append one batch as the leader: validate it, stamp it, write it. A duplicate is answered, not written again.

        `records` must be writable and hold exactly one batch; `header` is its header, if the caller has read it, and
        `validated_for` the config for which the whole batch was validated, if it was (`storage/validation/`); `guard`
        is that of its transaction's verification. Raises a KafkaError and leaves the log unchanged; StorageError if the
        disk refuses.
        """
        if self.health.failure is not None or self.health.is_full:
            self.health.check_append()
        if header is None:
            header = read_header(records)
        config = self.config
        marker, from_client = None, origin is CLIENT
        if validated_for is not config:
            records, header = validate_for_append(header, records, config, now_ms=now_ms, from_client=from_client)
        if header.producer_id >= 0:
            if from_client:
                written = check_data_batch(self.producers, self.segment_list, header, guard)
                if written is not None:
                    return duplicate_of(written, self.log_start_offset, config)
            else:
                marker = self.producers.check_coordinator_batch(header, records, guard)
        segments = self.segment_list
        first_offset = segments.end_offset
        last_offset = first_offset + header.last_offset_delta
        max_timestamp, append_time_ms = header.max_timestamp, -1
        if config.uses_log_append_time:
            max_timestamp = append_time_ms = now_ms
            stamp_log_append_time(records, 0, now_ms)
        stamp(records, 0, base_offset=first_offset, leader_epoch=leader_epoch)
        size_bytes = records.nbytes
        try:
            self._roll_if_due(size_bytes, first_offset, last_offset, max_timestamp)
            position = self._write(records)
            segment = segments.active
            segment.note_batch(last_offset, position, size_bytes, max_timestamp, config.index_interval_bytes)
            if not position:
                self._set_roll_limits(segment)
            if leader_epoch > self.epochs.latest:
                self.assign_epoch(leader_epoch, first_offset)
            segments.end_offset = last_offset + 1
            if header.producer_id >= 0:
                self._update_producer(header, marker, first_offset, last_offset, max_timestamp, now_ms)
        except KafkaError:
            raise
        except Exception as error:
            self._undo_append(first_offset, last_offset, error)
            raise NotLeaderOrFollower(f"appending to {self.topic_partition} failed; try again") from error
        return AppendInfo(first_offset, last_offset, append_time_ms, self.log_start_offset, begins_segment=not position)

    def append_as_follower(
        self, records: memoryview, *, now_ms: int, leader_epoch: int = NO_EPOCH_LIMIT
    ) -> AppendInfo | None:
        """Append batches as a follower: they have the leader's offsets and epochs. None if none of them is whole.

        A partial last batch is left out, as in any fetch response. Raises CorruptMessage for an invalid batch, an
        offset below the log's end, or an epoch below the last one here or above `leader_epoch`, that of the fetch;
        nothing is written then. An empty log begins where the first batch does: the leader's log start, where this one
        began, may be within it.
        """
        if self.health.failure is not None or self.health.is_full:
            self.health.check_append()
        if self.log_start_offset == self.end_offset and records.nbytes >= HEADER_BYTES:
            first_offset = int.from_bytes(records[:8], "big")
            if first_offset < self.end_offset:
                self.truncate_fully_and_start_at(first_offset)
        batches = self._check_batches(records, leader_epoch)
        if not batches.size_bytes:
            return None
        first_offset, last_offset = int.from_bytes(records[:8], "big"), batches.end_offset - 1
        try:
            if self._roll_if_due(batches.size_bytes, first_offset, last_offset, batches.max_timestamp):
                batches = self._check_batches(records, leader_epoch)  # the indexes of the new segment begin with them
            position = self._write(records[: batches.size_bytes])
            self._note_batches(records, batches, position, now_ms)
        except KafkaError:
            raise
        except Exception as error:
            self._undo_append(first_offset, last_offset, error)
            raise StorageError(f"appending to {self.topic_partition} failed; it is fetched again") from error
        return AppendInfo(first_offset, last_offset, -1, self.log_start_offset, begins_segment=not position)

    def _check_batches(self, records: memoryview, leader_epoch: int) -> FollowerBatches:
        """Check what the leader sent, and note if batches are missing in it. Raises CorruptMessage or StorageError."""
        may_have_gaps, end, last_epoch = self.cleaner_line.is_written, self.end_offset, self.epochs.latest
        interval, segment = self.config.index_interval_bytes, self.segment_list.active
        batches = segment.check_batches(records, end, last_epoch, interval, may_have_gaps=may_have_gaps)
        if batches.is_stopped or batches.epoch > leader_epoch:
            validate_follower_batches(records, end_offset=end, last_epoch=last_epoch, leader_epoch=leader_epoch)
            batches = segment.check_batches(records, end, last_epoch, interval, may_have_gaps=True)
            if batches.is_stopped:
                raise CorruptMessage(f"What the leader sent after offset {batches.end_offset} has no valid offset")
            if not may_have_gaps:
                self.note_gaps()
        return batches

    def _undo_append(self, first_offset: int, last_offset: int, error: Exception) -> None:
        """Remove what an append wrote before it failed unexpectedly: the next one would write its offsets again.

        Raises StorageError, and the directory is offline, where that fails too.
        """
        self.health.note_failed_append(f"{self.topic_partition} at offset {first_offset}", error)
        self.segment_list.end_offset = max(self.end_offset, last_offset + 1)
        try:
            self.truncate_to(first_offset)
        except StorageError:
            raise
        except Exception as broken:
            what = f"removing what a failed append wrote to {self.topic_partition}"
            raise self.health.fail(what, OSError(errno.EIO, repr(broken))) from broken

    def _note_batches(self, records: memoryview, batches: FollowerBatches, position: int, now_ms: int) -> None:
        """Update the state of the log after a follower's batches were written."""
        segment = self.segment_list.active
        segment.note_batches(records, batches, position)
        for epoch, first_offset in batches.epochs:
            self.assign_epoch(epoch, first_offset)
        self.segment_list.end_offset = batches.end_offset
        for _, at, _ in batches.producers:
            header = BatchHeader(records, at)
            marker = read_marker(records[at : at + header.size_bytes]) if header.is_control else None
            self._update_producer(header, marker, header.base_offset, header.last_offset, header.max_timestamp, now_ms)
        if not position:
            self._set_roll_limits(segment)

    def _write(self, records: memoryview) -> int:
        """Write at the end of the active segment; returns the position."""
        segment = self.segment_list.active
        position = segment.size_bytes
        try:
            segment.append(records)
        except OSError as error:
            what = f"append of {self.topic_partition}"
            if not segment.is_whole:  # the file could not be truncated to its last whole batch either
                raise self.health.fail(what, error) from error
            raise self.refused(what, error) from error
        return position

    def _update_producer(
        self, header: BatchHeader, marker: Marker | None, first: int, last: int, max_timestamp: int, now_ms: int
    ) -> None:
        """Update the state of a written batch's producer. `header` may not have its offsets yet."""
        aborted = self.producers.update(header, marker, first, last, max_timestamp, now_ms)
        if aborted is not None:
            self._aborted.add(aborted)

    def _roll_if_due(self, size_bytes: int, first_offset: int, last_offset: int, max_timestamp: int) -> bool:
        """Roll if what is to be written does not belong into the active segment by size, index size, age or offset.

        Return whether it did.
        """
        segment = self.segment_list.active
        if last_offset - segment.base_offset > RELATIVE_OFFSET_MAX:
            self.roll(first_offset)  # the offsets of a compacted leader may jump further than an index entry reaches
        elif (
            segment.size_bytes + size_bytes > segment.roll_at_bytes or max_timestamp > segment.roll_at_ms
        ) and roll_is_due(self.topic_partition, segment, self.config, size_bytes, max_timestamp, clock=self.clock):
            self.roll()
        return self.segment_list.active is not segment

    def _set_roll_limits(self, segment: Segment) -> None:
        """Set how large and how old the active segment may become before an append must ask `_roll_if_due`."""
        size_bytes, deadline_ms = roll_limits(self.topic_partition, segment, self.config)
        segment.set_roll_limits(size_bytes, deadline_ms, self.config)

    def roll(self, base_offset: int | None = None) -> None:
        """Seal the active segment; begin one at the end, or `base_offset`. Raises StorageError: nothing has changed."""
        old, base_offset = self.active, self.end_offset if base_offset is None else base_offset
        if base_offset == old.base_offset:
            return
        self.health.check()
        if self.cleaner_line.is_written and self.config.durability == "fsync":
            sync_before_gap(old, self.health)
        try:
            old.trim()
            snapshot = self.snapshots.write(base_offset, self.producers)
            new = Segment.create(self.files, self.directory, base_offset, now_ms=self.clock.wall_ms())
        except OSError as error:
            raise self.refused(f"new segment of {self.topic_partition}", error) from error
        self._clean_end_offset = None
        old.seal()
        old.release_indexes()
        self.pending_flush.add_sealed([old])
        self.pending_flush.add_files(snapshot)
        self.segment_list.add(new)

    def begin_epoch(self, epoch: int) -> None:
        """Begin a leader's term here, before its first record (KIP-279). An epoch already known changes nothing."""
        if epoch > self.epochs.latest:
            self.assign_epoch(epoch, self.end_offset)

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """Record that the batches of this epoch begin at `start_offset`."""
        if self.epochs.assign(epoch, start_offset):
            self.pending_flush.epoch_begun()

    # ---- Reading

    def read(
        self, offset: int, *, max_bytes: int, end_offset: int, at_least_one: bool = True, may_check: bool = True
    ) -> FileRegion | None:
        """Read whole batches from the one that holds `offset`, up to `max_bytes` and not past `end_offset`.

        With `at_least_one` a first batch larger than `max_bytes` is returned whole all the same (KIP-74). None if there
        is nothing, or, without `may_check`, if it would have to be verified first (`verified_ranges.py`). Raises
        OffsetOutOfRange below the log's start and beyond its end, CorruptMessage where the file is corrupt.
        """
        if not self.log_start_offset <= offset <= self.segment_list.end_offset:
            raise OffsetOutOfRange(
                f"offset {offset} of {self.topic_partition} is not within {self.log_start_offset} to {self.end_offset}"
            )
        if offset >= end_offset:
            return None
        return self.segment_list.region(
            offset,
            max_bytes=max_bytes,
            log_start_offset=self.log_start_offset,
            end_offset=end_offset,
            at_least_one=at_least_one,
            may_check=may_check,
        )

    def offset_for_timestamp(self, timestamp: int, *, end_offset: int) -> TimedOffset | None:
        """Return the first record below `end_offset` at or after a time."""
        lookup = TimestampLookup(self.segment_list, log_start_offset=self.log_start_offset, end_offset=end_offset)
        return lookup.first_at_or_after(timestamp)

    def offset_of_max_timestamp(self, end_offset: int) -> TimedOffset | None:
        """Return the first record below `end_offset` that has the greatest timestamp."""
        lookup = TimestampLookup(self.segment_list, log_start_offset=self.log_start_offset, end_offset=end_offset)
        return lookup.of_max_timestamp()

    def epoch_end_offset(self, epoch: int) -> EpochEnd:
        """Return the largest known epoch at or below `epoch` and where it ends; (-1, -1) if unknown (KIP-320)."""
        return self.epochs.end_offset(epoch, log_end_offset=self.end_offset)

    def may_have_aborted_transactions(self) -> bool:
        """Return whether there may be an index of aborted transactions: most logs have none, each fetch asks."""
        return self._aborted.may_exist()

    def aborted_transactions(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return aborted transactions within a range of offsets, whose records a read_committed consumer must skip."""
        return self._aborted.within(first_offset, end_offset)

    # ---- Durability

    def begin_flush(self) -> FlushJob:
        """Start a flush: returns the job that syncs what is pending, for a worker thread (`flush.py`).

        Raises StorageError.
        """
        if self.health.failure is not None:
            self.health.check()
        if self.pending_flush.needs_checkpoint:
            self._checkpoints.checkpoint()
            self.pending_flush.checkpointed()
        try:
            return self.pending_flush.start_flush(
                self.directory,
                self.segment_list.active,
                self.epochs,
                end_offset=self.segment_list.end_offset,
                truncation_count=self.truncations.count,
            )
        except OSError as error:
            raise self.refused(f"flush of {self.topic_partition}", error) from error

    def complete_flush(self, job: FlushJob) -> None:
        """Count what a finished job has synced. Raises StorageError if it failed; `health` has how badly."""
        assert job.is_done, "complete_flush before run"
        if job.error is not None:
            raise self.health.fail(f"fsync of {self.topic_partition}", job.error) from job.error
        if job.refusal is not None:
            self.pending_flush.restore(job, self.segments)
            raise self.health.refused(f"flush of {self.topic_partition}", job.refusal) from job.refusal
        is_current = job.truncation_count == self.truncations.count
        if job.vanished is not None and is_current and job.active in self.segments:  # not removed by this program
            raise self.health.missing(f"fsync of {self.topic_partition}", str(job.vanished))
        if is_current and job.end_offset > self.flushed_offset:
            self.flushed_offset = job.end_offset
            self.segment_list.set_tail(job.end_offset, job.active, job.active_bytes)

    def refused(self, what: str, error: OSError) -> StorageError:
        """Handle an operation that failed; returns the error to raise. A missing file costs this log alone."""
        if isinstance(error, FileNotFoundError) and self.files.exists(self.directory.parent):
            with contextlib.suppress(OSError):
                self.segment_list.note_missing_files()
            return self.health.missing(what, str(error.filename or self.directory))
        return self.health.refused(what, error)

    def flush(self) -> None:
        """Run all three steps of a flush at once, here. Raises StorageError."""
        job = self.begin_flush()
        try:
            job.run()
        finally:
            self.complete_flush(job)

    # ---- Truncation and retention

    def checkpoint(self) -> None:
        """Write the checkpoint files of the directory, here and now. Raises StorageError."""
        self._checkpoints.checkpoint()

    def truncate_to(self, offset: int) -> None:
        """Remove every batch that reaches `offset` or is after it (a follower that diverged from its leader).

        Raises StorageError. An offset at or beyond the end removes only epochs that begin there: those of leaders that
        have not written, which the leader may not know.
        """
        run_truncation(self.truncation(offset), self.checkpoint)

    def truncation(self, offset: int) -> Truncation:
        """Return the steps of `truncate_to`: its syncs may run in another thread, and other logs between them.

        Until the last step nothing else may read, append to or flush this log (`is_truncating`). Raises StorageError.
        """
        self.health.check()
        if offset >= self.end_offset:
            if self.epochs.truncate_from_end(offset):
                self.pending_flush.write_epochs(self.directory, self.epochs)
            return
        yield from self.truncations.begin(self.flushed_offset, self.segment_list.from_offset(offset)[0].base_offset)
        try:
            removed = self.segment_list.beginning_at_or_after(offset)
            self._delete_segment_files(reversed(removed))
            self.segment_list.drop_last(len(removed))
            # If a crash undid the renames, a compacted log could accept the old segments as valid.
            yield TruncationSync(self.files, None, self.directory if removed else None)
            self._truncate_suffix(offset)
            yield TruncationSync(self.files, self.active.file, self.directory)
        except OSError as error:
            raise self.health.fail(f"truncation of {self.topic_partition}", error) from error
        yield from self.truncations.end()

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove everything; the log is empty and begins at `offset` (a follower that ends below its leader's start).

        Raises StorageError.
        """
        run_truncation(self.full_truncation(offset), self.checkpoint)

    def full_truncation(self, offset: int) -> Truncation:
        """Return the steps of `truncate_fully_and_start_at`, as `truncation` does. Raises StorageError."""
        self.health.check()
        yield from self.truncations.begin(self.flushed_offset, self.segment_list.first_base_offset)
        try:
            self._restart_at(offset)
            yield TruncationSync(self.files, None, self.directory)
        except OSError as error:
            raise self.health.fail(f"truncation of all of {self.topic_partition}", error) from error
        yield from self.truncations.end()

    @property
    def is_truncating(self) -> bool:
        """Whether a truncation has begun and not ended: its files and offsets may not fit together."""
        return self.truncations.is_running

    @property
    def truncation_count(self) -> int:
        """The number of truncations that have begun, and that have ended."""
        return self.truncations.count

    @property
    def recovery_point(self) -> int:
        """Return the offset at which recovery has to begin after a crash."""
        return self.truncations.recovery_point(self.flushed_offset)

    def delete_records(self, before_offset: int) -> int:
        """Begin the log at `before_offset` (DeleteRecords); return the new start. Retention deletes the files later.

        Raises OffsetOutOfRange above the high watermark. An offset below the start changes nothing.
        """
        if before_offset > self.high_watermark:
            raise OffsetOutOfRange(
                f"cannot delete records of {self.topic_partition} up to {before_offset}: "
                f"the high watermark is {self.high_watermark}"
            )
        if before_offset > self.log_start_offset:
            self._advance_start(before_offset)
            self.health.retention_requests += 1
        return self.log_start_offset

    def advance_start_by_retention(self, now_ms: int) -> int:
        """Begin the log after the segments that may go now; return how many they are. Raises StorageError."""
        if self.is_truncating:
            return 0
        ends = LogEnds(self.log_start_offset, high_watermark=self.high_watermark, end_offset=self.end_offset)
        count = deletable(self.segments, self.config, ends, now_ms=now_ms)
        if count and count == len(self.segments):
            self.health.run_with_reserve(self.roll)  # the log always has a segment to write
        if count and (start := self.segments[count].base_offset) > self.log_start_offset:
            self._advance_start(start)
        return count

    def delete_old_segments(self, now_ms: int) -> int:
        """Delete the segments that may go now by retention; return how many went. Raises StorageError.

        The log start is in the checkpoint before a file is deleted, so that files which are missing above it were lost.
        """
        count = self.advance_start_by_retention(now_ms)
        if not count:
            return 0
        if self.checkpointed_start is None or self.checkpointed_start < self.segments[count].base_offset:
            try:
                self._checkpoints.checkpoint()
            except StorageError:
                if self.health.failure is not None:
                    raise  # otherwise the deletion makes space
        try:
            for segment in self.segments[:count]:
                self._delete_segment_files([segment])
                self.segment_list.drop_first(1)
            self.snapshots.drop_below(self.segment_list.first_base_offset)
        except OSError as error:
            raise self.refused(f"retention of {self.topic_partition}", error) from error
        return count

    def replace_segments(self, swap: SegmentSwap) -> None:
        """Put a segment that compaction has written in place of some neighbours (`cleaning/cleaning_pass.py`).

        Raises StorageError: the directory is offline then, and the next start completes the swap.
        """
        try:
            swap.begin()
            self._delete_segment_files(swap.old)
            swap.finish()
            for merged in swap.old[1:]:
                self.snapshots.drop(merged.base_offset)
        except OSError as error:
            raise self.health.fail(f"compaction of {self.topic_partition}", error) from error
        self.segment_list.replace(swap.old, swap.new)

    def _truncate_suffix(self, offset: int) -> None:
        """Remove every batch of the active segment that reaches `offset` or is after it. Raises OSError."""
        flushed_offset = self.flushed_offset
        if not truncate_active(self.segment_list, self._aborted, offset, self.log_start_offset, self.config):
            self._restart_at(min(offset, self.log_start_offset))
        self.pending_flush.forget_aborted(self.end_offset)
        if self.epochs.truncate_from_end(self.end_offset):
            self.pending_flush.write_epochs(self.directory, self.epochs)
        rewritten = replay_producers(
            self.segments, self.producers, self.snapshots, end_offset=self.end_offset, now_ms=self.clock.wall_ms()
        )
        self.pending_flush.add_files(*rewritten)
        self.flushed_offset = min(flushed_offset, self.end_offset)
        self.high_watermark = min(self.high_watermark, self.end_offset)
        self._set_roll_limits(self.active)

    def _restart_at(self, offset: int) -> None:
        """Replace everything by one empty segment. Raises OSError."""
        self._delete_segment_files(reversed(self.segments))
        self.snapshots.drop_all()
        segment = Segment.create(self.files, self.directory, offset, now_ms=self.clock.wall_ms())
        self.segment_list.replace_all(segment)
        self._set_roll_limits(segment)
        self.producers.clear()
        self.faults.forget()
        self.epochs.clear()
        self.pending_flush.write_epochs(self.directory, self.epochs)
        self.segment_list.end_offset = offset
        self.log_start_offset = self.flushed_offset = self.high_watermark = offset

    def _delete_segment_files(self, segments: Iterable[Segment]) -> None:
        """Rename the files of segments out of the way; they are removed once readers have had time to finish."""
        due_ms = self.clock.wall_ms() + self.config.file_delete_delay_ms
        for segment in segments:
            self.pending_flush.forget(segment)
            self.deleted_files.rename_segment(segment, due_ms=due_ms)
        self.pending_flush.add_directories(self.directory)

    def _advance_start(self, offset: int) -> None:
        self.log_start_offset = offset
        self.high_watermark = max(self.high_watermark, offset)
        if self.epochs.truncate_from_start(offset):
            self.pending_flush.write_epochs(self.directory, self.epochs)

    # ---- Other

    def update_high_watermark(self, high_watermark: int) -> None:
        """Set the high watermark: transactions whose marker is below it are final, and retention may come up to it."""
        self.high_watermark = high_watermark
        if self.producers.unreplicated:
            self.producers.high_watermark_updated(high_watermark)

    def reconfigure(self, config: LogConfig) -> None:
        """Apply the topic's changed settings; what is written from now on follows them."""
        old, self.config = self.config, config
        self.segment_list.is_compacted = config.is_compacted
        if (config.retention_bytes, config.retention_ms) != (old.retention_bytes, old.retention_ms):
            self.health.retention_requests += 1
        self._set_roll_limits(self.active)

    def expire_producers(self, now_ms: int) -> int:
        """Forget producers that have been silent too long; how many."""
        return self.producers.remove_expired(now_ms, after_ms=self.config.producer_id_expiration_ms)

    def note_gaps(self) -> None:
        """Note durably, once, that from now on batches may be missing between others. Raises StorageError."""
        if not self.cleaner_line.is_written:
            self.cleaner_line.begin(self.log_start_offset)
            self._checkpoints.checkpoint()
            self.cleaner_line.written()

    def set_topic_id(self, topic_id: uuid.UUID) -> None:
        """Set the topic's id, which `partition.metadata` has now."""
        self.topic_id = topic_id

    def mark_created(self, *paths: PurePath) -> None:
        """Note that these files and this directory are new: the first flush makes their names durable."""
        self.pending_flush.add_files(*paths)
        self.pending_flush.add_directories(self.directory, self.directory.parent)

    def skip_gap(self, offset: int) -> None:
        """End at `offset`: compaction has removed all batches from here to there. Raises StorageError."""
        self.note_gaps()
        self.roll(offset)
        self.segment_list.end_offset = offset

    def replaces(self, other: PartitionLog) -> None:
        """Continue in place of `other`, whose copy in another directory this is."""
        self.producers = other.producers  # has more than a snapshot: transactions that are being verified
        self.truncations.continue_from(other.truncations)
        self._aborted.forget()
        self.cleaner_line.limit(other.cleaner_line.cleaned_offset)
        self.update_high_watermark(other.high_watermark)
        self.reconfigure(other.config)

    def moved(self, directory: PurePath) -> None:
        """Note that the directory was renamed (the topic is being deleted, or this copy of a log replaces it)."""
        self.deleted_files.moved(self.directory, directory)
        self.directory = directory
        self.snapshots.moved(directory)
        for segment in self.segments:
            segment.moved(directory)

    def begin_clean_shutdown(self) -> FlushJob | None:
        """Write snapshot and indexes, so that the next start need not scan; returns the flush that syncs them.

        None if all is as the last clean shutdown left it. Raises StorageError and OSError.
        """
        if self.is_as_loaded:
            return None
        self.active.trim()
        self.active.seal()
        if self._needs_snapshot and (
            self.active.base_offset != self.end_offset or self.snapshots.offsets[-1:] != [self.end_offset]
        ):
            self.pending_flush.add_files(self.snapshots.write(self.end_offset, self.producers))
        self.pending_flush.add_sealed([self.active])
        return self.begin_flush()

    @property
    def _needs_snapshot(self) -> bool:
        """Whether a start without a snapshot would have batches to replay, or lose the state of producers."""
        return bool(self.size_bytes or len(self.producers))

    @property
    def is_as_loaded(self) -> bool:
        """Whether all is still as a clean shutdown left it: true of most logs of a large directory, at most stops."""
        untouched = self.end_offset == self._clean_end_offset and not self.truncation_count and not self.is_dirty
        indexes = (self.active.offset_index.file, self.active.time_index.file)  # rebuilt, if a start found none
        has_snapshot = self.snapshots.offsets[-1:] == [self.end_offset] or not self._needs_snapshot
        written = has_snapshot and all(file.is_written for file in indexes)
        return untouched and written

    def close_files(self) -> None:
        """Close every descriptor."""
        for segment in self.segments:
            segment.close()
