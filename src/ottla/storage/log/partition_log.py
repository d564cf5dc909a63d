"""The log of one partition: batches in segments, each at its offset. Single writer; readers get stretches of files.

A batch comes from `replication/partition.py` (stamped there with nothing yet) and leaves as a `FileRegion` to
`broker/handlers/fetch.py`. In between (`append`): checks on the header, offsets stamped in place in the caller's
buffer, one write at the end of the active segment, then the caches: indexes, producer state, leader epochs.

Holds after every public call:

    log_start_offset <= end_offset,  flushed_offset <= end_offset

Nothing here waits and nothing is locked: all of it runs on the loop's thread, but for `FlushJob.run`.

Station 6 of 9 on a batch's journey. Before: replication/partition.py. After: storage/log/segment.py.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import PurePath

from ottla.core.clock import Clock
from ottla.core.errors import CorruptMessage, OffsetOutOfRange, StorageError
from ottla.core.files import FileSystem
from ottla.core.ids import TopicPartition
from ottla.records.batch import HEADER_BYTES, BatchHeader, stamp, stamp_log_append_time
from ottla.storage.config import LogConfig
from ottla.storage.log import timestamp_lookup
from ottla.storage.log.aborted_transactions import aborted_in
from ottla.storage.log.deleted_files import DeletedFiles
from ottla.storage.log.flush import DirectoryHealth, FlushJob
from ottla.storage.log.follower_append import AppendInfo, AppendOrigin, append_replicated, duplicate_of, note_producer
from ottla.storage.log.pending_flush import PendingFlush
from ottla.storage.log.retention import deletable, roll_is_due
from ottla.storage.log.segment import RELATIVE_OFFSET_MAX, Segment
from ottla.storage.log.segment_list import FileRegion, SegmentList
from ottla.storage.log.timestamp_lookup import TimedOffset
from ottla.storage.log.truncation import delete_prefix, truncate_fully_and_start_at, truncate_suffix
from ottla.storage.state.leader_epochs import EpochEnd, LeaderEpochs
from ottla.storage.state.producer_snapshots import ProducerSnapshots
from ottla.storage.state.producer_state import ProducerInfo, ProducerStates
from ottla.storage.state.transactions import AbortedTransaction, TransactionState, read_marker
from ottla.storage.validation.batch_validator import check_batch, check_client_batch, validated

__all__ = ["AppendInfo", "AppendOrigin", "FileRegion", "PartitionLog"]


def _nothing() -> None:
    """Nobody keeps a recovery point for this log."""


class PartitionLog:
    """One partition's log. Made by `LogDirectory`."""

    __slots__ = (
        "after_truncation",
        "before_gaps",
        "clean_end_offset",
        "clock",
        "config",
        "deleted_files",
        "directory",
        "end_offset",
        "epochs",
        "files",
        "flushed_offset",
        "has_gaps",
        "health",
        "high_watermark",
        "log_start_offset",
        "pending_flush",
        "producer_states",
        "segment_list",
        "snapshots",
        "topic_id",
        "topic_partition",
        "transactions",
        "truncation_count",
    )  # fmt: skip

    def __init__(
        self,
        *,
        files: FileSystem,
        clock: Clock,
        directory: PurePath,
        topic_partition: TopicPartition,
        topic_id: uuid.UUID,
        config: LogConfig,
        health: DirectoryHealth,
        deleted_files: DeletedFiles,
        segments: list[Segment],
        epochs: LeaderEpochs,
        producer_states: ProducerStates,
        transactions: TransactionState,
        snapshots: ProducerSnapshots,
        log_start_offset: int,
        end_offset: int,
    ) -> None:
        self.files = files
        self.clock = clock
        self.deleted_files = deleted_files
        self.directory = directory
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.config = config
        self.health = health
        self.segment_list = SegmentList(segments, epochs=epochs, end_offset=end_offset)
        self.segment_list.may_have_gaps = lambda: self.has_gaps or self.config.is_compacted
        self.segment_list.log_end_offset = lambda: self.end_offset
        self.after_truncation: Callable[[], None] = _nothing  # the directory notes the new recovery point
        self.clean_end_offset: int | None = None  # where a clean stop had ended it, if one had
        self.before_gaps: Callable[[], None] = _nothing  # the directory notes that batches may be missing from now on
        self.has_gaps = False  # compaction, here or where this was copied from, may have taken batches out
        self.epochs = epochs
        self.producer_states = producer_states
        self.transactions = transactions
        self.snapshots = snapshots
        self.log_start_offset = log_start_offset
        self.end_offset = end_offset
        self.flushed_offset = end_offset
        self.high_watermark = log_start_offset  # replication's word, kept here for retention and the checkpoint
        self.pending_flush = PendingFlush(files)
        self.truncation_count = 0  # truncations: a flush begun before one says nothing about what came after

    @property
    def segments(self) -> list[Segment]:
        """Oldest first."""
        return self.segment_list.items

    @property
    def active(self) -> Segment:
        """The segment that is written."""
        return self.segment_list.active

    @property
    def size_bytes(self) -> int:
        """The bytes of all segments."""
        return self.segment_list.size_bytes

    @property
    def is_dirty(self) -> bool:
        """Whether a flush has something to do."""
        return self.active.is_dirty or bool(self.pending_flush)

    @property
    def last_stable_offset(self) -> int:
        """Below this every transaction is decided; the caller takes the lesser of this and the high watermark."""
        first = self.transactions.first_unstable_offset(self.producer_states)
        return self.end_offset if first is None else max(first, self.log_start_offset)

    # Appending --------------------------------------------------------------------------------------------------------

    def append(
        self, records: memoryview, *, leader_epoch: int, now_ms: int, origin: AppendOrigin = AppendOrigin.CLIENT,
        inspected: LogConfig | None = None,
    ) -> AppendInfo:  # fmt: skip
        """Append one batch as the leader: check it, stamp it, write it. One seen before is answered, not written again.

        `records` must be writable and hold exactly one batch; `inspected` is the config for which its records were
        validated, if they were (`record_validator.py`). Raises a KafkaError and leaves the log unchanged; StorageError
        if the disk refuses.
        """
        if self.health.failure is not None:
            self.health.check()
        if records.nbytes < HEADER_BYTES:
            raise CorruptMessage(f"{records.nbytes} bytes are no record batch")
        header = BatchHeader(records, 0)
        config = self.config
        check_batch(header, records, config)
        marker, from_client = None, origin is AppendOrigin.CLIENT
        if from_client:
            check_client_batch(header)
        if inspected is not config and (
            config.requires_record_validation or header.max_timestamp > now_ms + config.timestamp_after_max_ms
        ):
            records, header = validated(records, header, config, now_ms=now_ms, from_client=from_client)
        if from_client:
            if header.producer_id >= 0:
                again = self.producer_states.check(
                    header.producer_id, header.producer_epoch, header.base_sequence, header.record_count,
                    transactional=header.is_transactional,
                )  # fmt: skip
                if again is not None:
                    return duplicate_of(self, again)
        elif header.is_control:
            marker = read_marker(records)
            if marker is not None:
                self.transactions.check_marker(header, marker, self.producer_states)
        first_offset = self.end_offset
        last_offset = first_offset + header.last_offset_delta
        max_timestamp, append_time_ms = header.max_timestamp, -1
        if config.timestamp_type == "LogAppendTime":
            max_timestamp = append_time_ms = now_ms
            stamp_log_append_time(records, 0, now_ms)
        stamp(records, 0, base_offset=first_offset, leader_epoch=leader_epoch)
        segment = self.segment_for(
            records.nbytes, first_offset=first_offset, last_offset=last_offset, max_timestamp=max_timestamp
        )
        position = segment.size_bytes
        try:
            segment.append(records)
        except OSError as error:
            raise self.refused("append", segment, error) from error
        segment.note_batch(
            last_offset=last_offset, position=position, size_bytes=records.nbytes, max_timestamp=max_timestamp,
            interval_bytes=config.index_interval_bytes,
        )  # fmt: skip
        if leader_epoch > self.epochs.latest:
            self.assign_epoch(leader_epoch, first_offset)
        self.end_offset = last_offset + 1
        if header.producer_id >= 0:
            note_producer(self, header, marker, first_offset, last_offset, max_timestamp, now_ms)
        return AppendInfo(first_offset, last_offset, append_time_ms, self.log_start_offset)

    def append_replicated(self, records: memoryview, *, now_ms: int) -> AppendInfo | None:
        """Append batches as a follower: offsets and epochs are the leader's, already in them. None if none is whole.

        A last batch that did not come whole is left out, as in any fetch answer. Raises CorruptMessage for a wrong
        checksum or an offset below the log's end; nothing is written then.
        """
        self.health.check()
        return append_replicated(self, records, now_ms=now_ms)

    def refused(self, what: str, segment: Segment, error: OSError) -> StorageError:
        """A write failed. With the file cut back to its good end a full disk costs this request only."""
        if not segment.is_whole:  # not even the cut worked: nothing here can be relied on
            return self.health.fail(f"{what} of {self.topic_partition}", error)
        return self.health.refused(f"{what} of {self.topic_partition}", error)

    def segment_for(self, size: int, *, first_offset: int, last_offset: int, max_timestamp: int) -> Segment:
        """The active segment, after a roll if it has no room or has lived long enough."""
        segment, config = self.segment_list.active, self.config
        held = segment.size_bytes
        if last_offset - segment.base_offset > RELATIVE_OFFSET_MAX:
            self.roll(first_offset)  # a compacted leader's offsets may jump further than an index entry reaches
            return self.active
        if (
            (held and held > config.segment_bytes - size)
            or segment.indexes_full(config.segment_index_bytes)
            or (held and roll_is_due(self.topic_partition, segment, config, max_timestamp, clock=self.clock))
        ):
            self.roll()
            return self.active
        return segment

    def roll(self, base_offset: int | None = None) -> None:
        """Seal the active segment and begin a new one, at the log's end if it is not said where.

        Raises StorageError, with nothing changed.
        """
        old, base_offset = self.active, self.end_offset if base_offset is None else base_offset
        if base_offset == old.base_offset:
            return
        self.health.check()
        try:
            snapshot = self.snapshots.write(base_offset, self.producer_states)
            new = Segment.create(self.files, self.directory, base_offset, now_ms=self.clock.wall_ms())
        except OSError as error:
            raise self.health.refused(f"new segment of {self.topic_partition}", error) from error
        self.clean_end_offset = None
        old.seal()
        old.release_indexes()
        self.pending_flush.add_sealed([old])
        self.pending_flush.add_files(snapshot)
        self.segment_list.add(new)

    def begin_epoch(self, epoch: int) -> None:
        """A leader's term begins here, before its first record (KIP-279). An epoch already known changes nothing."""
        if epoch > self.epochs.latest:
            self.assign_epoch(epoch, self.end_offset)

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """Batches of this epoch begin at `start_offset`, as they say themselves."""
        if self.epochs.assign(epoch, start_offset):
            self.pending_flush.epoch_begun()

    # Reading ----------------------------------------------------------------------------------------------------------

    def read(
        self, offset: int, *, max_bytes: int, end_offset: int, at_least_one: bool = True, may_check: bool = True
    ) -> FileRegion | None:
        """Whole batches from the one that holds `offset`, up to `max_bytes` and not past `end_offset`.

        With `at_least_one` a first batch larger than `max_bytes` comes whole all the same (KIP-74). None if there is
        nothing to give, or without `may_check` if it would have to be checked first (`verified_ranges.py`). Raises
        OffsetOutOfRange below the log's start and behind its end, CorruptMessage where the file is damaged.
        """
        if not self.log_start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRange(
                f"offset {offset} of {self.topic_partition} is not within {self.log_start_offset} to {self.end_offset}"
            )
        if offset >= end_offset:
            return None
        return self.segment_list.region(
            offset, max_bytes=max_bytes, end_offset=end_offset, log_end_offset=self.end_offset,
            at_least_one=at_least_one, may_check=may_check,
        )  # fmt: skip

    def offset_for_timestamp(self, timestamp: int, *, end_offset: int) -> TimedOffset | None:
        """The first record below `end_offset` at or after a time."""
        return timestamp_lookup.first_offset_at_or_after(
            self.segments, timestamp, log_start_offset=self.log_start_offset, end_offset=end_offset
        )

    def offset_of_max_timestamp(self, end_offset: int) -> TimedOffset | None:
        """The first of the youngest records below `end_offset`."""
        return timestamp_lookup.offset_of_max_timestamp(
            self.segments, log_start_offset=self.log_start_offset, end_offset=end_offset
        )

    def epoch_end_offset(self, epoch: int) -> EpochEnd:
        """The largest known epoch at or below `epoch` and the offset it ends at; (-1, -1) if unknown (KIP-320)."""
        return self.epochs.end_offset(epoch, log_end_offset=self.end_offset)

    def producers(self) -> list[ProducerInfo]:
        """Who has written here and is not forgotten."""
        return self.producer_states.describe()

    def aborted_transactions(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Aborted transactions that reach into a range of offsets: what a reader of committed records must skip."""
        first = len(self.segments) - len(self.segment_list.from_offset(first_offset))
        found = aborted_in(self.segments, self.snapshots, first_offset, end_offset, first=first)
        return found + self.pending_flush.aborted(first_offset, end_offset)

    # Durability -------------------------------------------------------------------------------------------------------

    def begin_flush(self) -> FlushJob:
        """What has to be synced now, as a job for a worker thread (`flush.py`). Raises StorageError."""
        self.health.check()
        if self.pending_flush.has_unnoted_truncation:
            self.after_truncation()
            self.pending_flush.has_unnoted_truncation = False
        try:
            return self.pending_flush.begin(
                self.directory,
                self.active,
                self.epochs,
                end_offset=self.end_offset,
                truncation_count=self.truncation_count,
            )
        except OSError as error:
            raise self.health.refused(f"flush of {self.topic_partition}", error) from error

    def complete_flush(self, job: FlushJob) -> None:
        """The job ran: what it covered counts. Raises StorageError if it failed: see the health for how badly."""
        assert job.is_done, "complete_flush before run"
        if job.error is not None:
            raise self.health.fail(f"fsync of {self.topic_partition}", job.error) from job.error
        if job.refusal is not None:
            self.pending_flush.restore(job.taken, self.segments)
            raise self.health.refused(f"flush of {self.topic_partition}", job.refusal) from job.refusal
        if job.truncation_count == self.truncation_count and job.end_offset > self.flushed_offset:
            self.flushed_offset = job.end_offset
            self.segment_list.remember(job.end_offset, *job.boundary)

    def flush(self) -> None:
        """All three steps at once, here. Raises StorageError."""
        job = self.begin_flush()
        try:
            job.run()
        finally:
            self.complete_flush(job)

    # Cutting ----------------------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Drop every batch that reaches `offset` or behind it (a follower that diverged from its leader).

        Raises StorageError. An offset at or behind the end changes nothing.
        """
        if offset >= self.end_offset:
            return
        self.health.check()
        try:
            truncate_suffix(self, offset)
        except OSError as error:
            raise self.health.fail(f"truncation of {self.topic_partition}", error) from error

    def restart_at(self, offset: int) -> None:
        """Drop everything; the log is empty and begins at `offset` (a follower too far behind its leader's start).

        Raises StorageError.
        """
        self.health.check()
        try:
            truncate_fully_and_start_at(self, offset)
        except OSError as error:
            raise self.health.fail(f"restart of {self.topic_partition}", error) from error

    def delete_records(self, before_offset: int) -> int:
        """DeleteRecords: the log begins at `before_offset` now; gives the new start. Files go with the next retention.

        Raises OffsetOutOfRange behind the high watermark. An offset below the start changes nothing.
        """
        if before_offset > self.high_watermark:
            raise OffsetOutOfRange(
                f"cannot delete records of {self.topic_partition} up to {before_offset}: "
                f"the high watermark is {self.high_watermark}"
            )
        if before_offset > self.log_start_offset:
            self._advance_start(before_offset)
        return self.log_start_offset

    def delete_old_segments(self, now_ms: int) -> int:
        """Retention: delete what may go now; how many segments went. Raises StorageError."""
        count = deletable(
            self.segments, self.config, log_start_offset=self.log_start_offset, high_watermark=self.high_watermark,
            end_offset=self.end_offset, now_ms=now_ms,
        )  # fmt: skip
        if not count:
            return 0
        if count == len(self.segments):
            self.roll()  # the log always has a segment to write
        try:
            delete_prefix(self, count)
        except OSError as error:
            raise self.health.refused(f"retention of {self.topic_partition}", error) from error
        finally:
            if self.segment_list.first_base_offset > self.log_start_offset:
                self._advance_start(self.segment_list.first_base_offset)
        return count

    def _advance_start(self, offset: int) -> None:
        self.log_start_offset = offset
        self.high_watermark = max(self.high_watermark, offset)
        if self.epochs.truncate_from_start(offset):
            self.pending_flush.write_epochs(self.directory, self.epochs)

    def note_truncation(self) -> None:
        """The recovery point went back: it must be on the disk before anything behind the cut counts."""
        self.pending_flush.has_unnoted_truncation = True
        try:
            self.after_truncation()
            self.pending_flush.has_unnoted_truncation = False
        except StorageError:
            if self.health.failure is not None:  # otherwise the next flush begins with it
                raise

    # The rest ---------------------------------------------------------------------------------------------------------

    def update_high_watermark(self, high_watermark: int) -> None:
        """Replication's word: transactions whose marker is below it are final, and retention may come up to it."""
        self.high_watermark = high_watermark
        self.transactions.replicated_up_to(high_watermark)

    def reconfigure(self, config: LogConfig) -> None:
        """The topic's settings changed; what is written from now on follows the new ones."""
        self.config = config
        self.active.sync_is_awaited = True  # until replication says otherwise

    def expire_producers(self, now_ms: int) -> int:
        """Forget producers that have been silent too long; how many."""
        return self.producer_states.expire(now_ms, after_ms=self.config.producer_id_expiration_ms)

    def mark_created(self, *paths: PurePath) -> None:
        """These files and this directory are new: the first flush makes their names durable."""
        self.pending_flush.add_files(*paths)
        self.pending_flush.add_directories(self.directory, self.directory.parent)

    def moved(self, directory: PurePath) -> None:
        """The directory was renamed (the topic is being deleted)."""
        self.directory = directory
        self.snapshots.moved(directory)
        for segment in self.segments:
            segment.moved(directory)

    def seal_for_stop(self) -> None:
        """A clean stop: snapshot, indexes and all data on the disk, so that the next start need not look at the log."""
        if self.is_as_loaded:
            return
        self.active.seal()
        if self.active.base_offset != self.end_offset or self.snapshots.offsets[-1:] != [self.end_offset]:
            self.pending_flush.add_files(self.snapshots.write(self.end_offset, self.producer_states))
        self.pending_flush.add_sealed([self.active])
        self.flush()

    @property
    def is_as_loaded(self) -> bool:
        """Whether all is still as a clean stop left it: most logs of a large directory, at most stops."""
        untouched = self.end_offset == self.clean_end_offset and not self.truncation_count and not self.is_dirty
        indexes = (self.active.offset_index.file, self.active.time_index.file)  # made anew, if a start found none
        written = self.snapshots.offsets[-1:] == [self.end_offset] and all(file.is_written for file in indexes)
        return untouched and written

    def settle(self) -> None:
        """After a recovery what survived may be in the system's memory only: sync it. Raises OSError."""
        for segment in self.segments[:-1]:
            if segment.is_dirty:  # one by one: there may be more of them than file handles
                segment.file.sync()
                segment.is_dirty = False
                self.pending_flush.add_sealed([segment])
        self.pending_flush.add_directories(self.directory, self.directory.parent)
        self.pending_flush.write_epochs(self.directory, self.epochs)
        try:
            self.flush()
        except StorageError:
            if self.health.failure is not None:
                raise
            self.active.file.sync()  # the small files wait until there is room for them; the log does not
            self.files.sync_directory(self.directory)
            self.files.sync_directory(self.directory.parent)
        self.active.sync_is_awaited = True

    def close_files(self) -> None:
        """Give back every descriptor."""
        for segment in self.segments:
            segment.close()
