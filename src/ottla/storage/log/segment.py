"""Reads and appends to one segment of a log: a `.log` file of batches and its indexes, named after its base offset.

Only the last segment of a log is written. A file is opened when it is first needed; an idle log of a thousand segments
has one open descriptor or none.

The indexes are not trusted: before the first lookup they are checked as a whole, and rebuilt by a scan if they are
invalid; each lookup then checks that the batch found is the one its index entry names. Data written by an earlier
process is not trusted either: `verified_ranges.py` verifies it before it is first read.

Step 6 of 9 on the path of a batch (ARCHITECTURE.md).
Before: storage/log/partition_log.py. Next: replication/group_commit.py.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import PurePath
from typing import Final

from ottla.core.errors import CorruptMessage
from ottla.core.files import File, FileSystem
from ottla.core.ids import NO_TIMESTAMP
from ottla.records.batch import BatchHeader
from ottla.records.batch_reader import HEADER_CHUNK_BYTES, BatchLocation, read_header, read_headers
from ottla.storage.config import LogConfig
from ottla.storage.file_names import CHECKSUMS_SUFFIX, TXN_INDEX_SUFFIX
from ottla.storage.integrity.corruption import corruption_error
from ottla.storage.log.segment_file import SegmentFile
from ottla.storage.log.verified_ranges import CorruptRange, LogContext, VerifiedRanges
from ottla.storage.state.index import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    OffsetEntry,
    OffsetIndex,
    TimeEntry,
    TimeIndex,
)
from ottla.storage.validation.follower_batches import FollowerBatches

logger = logging.getLogger(__name__)

RELATIVE_OFFSET_MAX: Final = (1 << 31) - 1  # what an index entry's four bytes hold
_REBUILD_CHUNK_BYTES: Final = 1 << 20
_RESERVE_FROM_BYTES: Final = 16 << 10  # a segment that has less reserves nothing: there may be thousands of these
_RESERVE_MAX_BYTES: Final = 256 << 10
_SMALL_APPEND_BYTES: Final = 16 << 10  # a larger one takes the disk longer than the file's new length does
_ZEROS: Final = memoryview(bytes(_RESERVE_MAX_BYTES))


class Segment(SegmentFile):
    """One segment of a log."""

    __slots__ = (
        "_index_bytes_max",
        "_is_torn",
        "_offsets_checked",
        "_reserve_from",
        "_reserved_until",
        "_times_checked",
        "aborts_checked",
        "bytes_since_index",
        "context",
        "created_ms",
        "max_timestamp",
        "max_timestamp_offset",
        "offset_index",
        "roll_at_bytes",
        "roll_at_ms",
        "roll_timestamp",
        "time_index",
        "verified_ranges",
    )

    def __init__(
        self, files: FileSystem, directory: PurePath, base_offset: int, *, size_bytes: int, created_ms: int
    ) -> None:
        super().__init__(files, directory, base_offset, size_bytes)
        self._is_torn = False  # part of a failed write could not be removed
        self._reserve_from: int | None = None  # the size from which on space is reserved; None: never
        self._reserved_until = 0  # zeros may follow the last batch up to there
        self.created_ms = created_ms
        self.verified_ranges: VerifiedRanges | None = (
            None  # of the data that was in the file when it was opened, until all of it is verified
        )
        self.context: LogContext | None = None  # the log's epochs and offsets; None before it is part of a log
        self.aborts_checked = False  # whether the index of aborted transactions has been compared with the log
        self.offset_index = OffsetIndex(files, directory, base_offset)
        self.time_index = TimeIndex(files, directory, base_offset)
        self._offsets_checked = self._times_checked = False
        self.bytes_since_index = 0
        # The three below are known for a segment that is being written; a sealed one asks its time index.
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self.roll_timestamp: int | None = None  # of the first batch: segment.ms counts from it
        # An append that exceeds one of these must first ask whether to roll. A full index makes the first negative.
        self.roll_at_bytes = -1
        self.roll_at_ms = -1
        self._index_bytes_max = 0

    @classmethod
    def create(cls, files: FileSystem, directory: PurePath, base_offset: int, *, now_ms: int) -> Segment:
        """Create the files of a new, empty segment; files that an earlier one of this name left are truncated."""
        segment = cls(files, directory, base_offset, size_bytes=0, created_ms=now_ms)
        file = segment._open(create=True)
        try:
            if file.size():
                file.truncate(0)
            files.remove(segment.path(TXN_INDEX_SUFFIX))
            files.remove(segment.path(CHECKSUMS_SUFFIX))
            segment.offset_index.replace([])
            segment.time_index.replace([])
        except OSError:
            segment.close()
            raise
        segment._offsets_checked = segment._times_checked = segment.aborts_checked = True
        segment.mark_dirty()  # the name itself is new
        return segment

    def join(self, context: LogContext) -> None:
        """Make the segment part of a log."""
        self.context = context
        if self.verified_ranges is not None:
            self.verified_ranges.context = context

    def opened(self) -> None:
        """Have readers verify the data of the file: what was found corrupt before is not verified again."""
        super().opened()
        known = self.verified_ranges.corrupt if self.verified_ranges is not None else None
        self.verified_ranges = VerifiedRanges(self, self.offset_index, self.context, known)

    def moved(self, directory: PurePath) -> None:
        """Update the paths after a rename of the partition's directory."""
        self.directory = directory
        self.offset_index.file.moved(directory)
        self.time_index.file.moved(directory)

    def verified_ranges_at(self, position: int) -> VerifiedRanges | None:
        """Return the ranges to consult before reading at `position`; None if this process wrote or verified it all."""
        if self.open_file is None:
            _ = self.file
        ranges = self.verified_ranges
        if ranges is None or position >= ranges.end:
            return None
        if ranges.is_done:
            self.verified_ranges = None
            return None
        return ranges

    def append(self, data: memoryview | bytes | bytearray) -> None:
        """Write at the end, in one call. After an OSError the file is as it was, or the second OSError is raised."""
        self.is_dirty = self._used = True  # before the file is taken: a dirty file is not closed by `close_if_idle`
        file = self.open_file or self.file
        position = self.size_bytes
        try:
            file.write_at(position, data)
        except OSError:
            self._is_torn = True
            file.truncate(position)
            self._is_torn, self._reserved_until = False, 0
            raise
        self.size_bytes = end = position + len(data)
        if end > self._reserved_until and self._reserve_from is not None and end >= self._reserve_from:
            self._reserve(file, len(data))

    def _reserve(self, file: File, append_bytes: int) -> None:
        """Write zeros after the last batch, for the small appends that follow to overwrite.

        An fdatasync of an append that makes the file longer writes the file's length too, through the journal of the
        file system (docs/design/durability.md). The zeros are at most a quarter of what the segment has. Without space
        there are none, until as much was appended.
        """
        end = self.size_bytes
        size = min(end // 4, _RESERVE_MAX_BYTES, self.roll_at_bytes - end)
        if size <= 0 or append_bytes > _SMALL_APPEND_BYTES:
            return
        self._reserved_until = end + size
        try:
            file.write_at(end, _ZEROS[:size])
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(end)

    def trim(self) -> None:
        """Remove the zeros after the last batch. Raises OSError."""
        if self._reserved_until > self.size_bytes:
            self.mark_dirty()
            self.file.truncate(self.size_bytes)
        self._reserved_until = 0

    def mark_aborts_checked(self) -> None:
        """Have readers trust the index of aborted transactions: it was compared with the log, or made from it."""
        self.aborts_checked = True

    def distrust(self) -> None:
        """Have readers verify the data of the file again: some of it is not what was written."""
        self._checksums = False
        self.verified_ranges = VerifiedRanges(self, self.offset_index, self.context)

    def mark_verified(self) -> None:
        """Have readers trust the data of the file: all of it has just been verified."""
        self.verified_ranges = None

    @property
    def is_whole(self) -> bool:
        """Whether the file has nothing of an append that failed."""
        return not self._is_torn

    def note_batch(
        self, last_offset: int, position: int, size_bytes: int, max_timestamp: int, interval_bytes: int
    ) -> None:
        """Update the indexes for a batch just written at `position`."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self.roll_timestamp is None:
            self.roll_timestamp = max_timestamp
        if self.bytes_since_index > interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset)
            self.bytes_since_index = 0
            if self.indexes_full(self._index_bytes_max):
                self.roll_at_bytes = -1
        self.bytes_since_index += size_bytes

    def check_batches(
        self, records: memoryview, end_offset: int, last_epoch: int, interval_bytes: int, *, may_have_gaps: bool
    ) -> FollowerBatches:
        """Check what a leader sent, which follows the offset and the epoch, to be appended here."""
        return FollowerBatches(
            records,
            end_offset=end_offset,
            last_epoch=last_epoch,
            may_have_gaps=may_have_gaps,
            index_interval_bytes=interval_bytes,
            bytes_since_index=self.bytes_since_index,
            max_timestamp=self.max_timestamp,
            max_timestamp_offset=self.max_timestamp_offset,
        )

    def note_batches(self, records: memoryview, batches: FollowerBatches, position: int) -> None:
        """Update the indexes as `note_batch` does for each of some batches just written at `position`."""
        if self.roll_timestamp is None:
            self.roll_timestamp = BatchHeader(records).max_timestamp
        self.max_timestamp, self.max_timestamp_offset = batches.max_timestamp, batches.max_timestamp_offset
        for last_offset, at, max_timestamp, max_timestamp_offset in batches.entries:
            self.offset_index.append(last_offset, position + at)
            self.time_index.append(max_timestamp, max_timestamp_offset)
        self.bytes_since_index = batches.bytes_since_index
        if batches.entries and self.indexes_full(self._index_bytes_max):
            self.roll_at_bytes = -1

    def set_roll_limits(self, size_bytes: int, deadline_ms: int, config: LogConfig) -> None:
        """Set the file size and the batch time above which an append must ask whether to roll, and those of `config`.

        Where each append is synced, its caller waits for the sync, and space is reserved for the next ones.
        """
        self.roll_at_bytes = -1 if self.indexes_full(config.segment_index_bytes) else size_bytes
        self._sync_is_awaited = config.durability == "fsync"
        self._reserve_from = _RESERVE_FROM_BYTES if self._sync_is_awaited else None
        self.roll_at_ms = deadline_ms
        self._index_bytes_max = config.segment_index_bytes

    def indexes_full(self, limit_bytes: int) -> bool:
        """Return whether an index has no space for another entry and the one that sealing the segment writes."""
        return (
            self.offset_index.count >= limit_bytes // OFFSET_ENTRY_BYTES
            or self.time_index.count >= limit_bytes // TIME_ENTRY_BYTES - 1
        )

    def seal(self) -> None:
        """Write the last entry of the time index, so that it alone gives the greatest time of the sealed segment."""
        if self.size_bytes:
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset)

    def write_indexes(self) -> None:
        """Hand the index entries in memory to the system. Raises OSError."""
        self.offset_index.file.write_out()
        self.time_index.file.write_out()

    # ---- Lookups

    def find(self, offset: int) -> BatchLocation | None:
        """Find the batch that contains `offset`, or the first after it; None if the segment ends before.

        Raises CorruptMessage if the batch may have been in a corrupt range.
        """
        batch = self.seek(offset)
        if isinstance(batch, CorruptRange):
            raise corruption_error(batch.corruption)
        return batch

    def seek(self, offset: int) -> BatchLocation | CorruptRange | None:
        """Find the batch as `find` does, but return a corrupt range instead of raising."""
        ranges = self.verified_ranges_at(0)
        if ranges is not None:
            if not self._offsets_checked:
                self._check_offset_index()
            lookup = ranges.find(offset)
            if lookup.index_is_wrong:
                self._replace_indexes("an entry of the offset index matches no batch")
            return lookup.found
        file = self.open_file or self.file
        for batch in read_headers(file, self._position_at_or_before(offset), self.size_bytes):
            if batch.header.last_offset >= offset:
                return batch
        return None

    def _position_at_or_before(self, offset: int) -> int:
        """Return where a search for `offset` may begin: the position of some batch at or before it."""
        if not self._offsets_checked:
            self._check_offset_index()
        entry = self.offset_index.at_or_below(offset)
        if entry is None:
            return 0
        if not self._entry_holds(entry):
            self._replace_indexes("an entry of the offset index matches no batch")
            entry = self.offset_index.at_or_below(offset)
        return entry.position if entry else 0

    def _entry_holds(self, entry: OffsetEntry) -> bool:
        """Return whether the entry points at the batch that it was written for."""
        header = read_header(self.file, entry.position, self.size_bytes)
        if header is None:
            return False
        before = self.offset_index.entry_before(entry)
        lowest = self.base_offset if before is None else before.offset + 1
        return lowest <= header.base_offset <= entry.offset <= header.last_offset

    def end_of_whole_batches(self, position: int, limit: int) -> BatchLocation | None:
        """Find the last batch that begins at or after `position` and ends at or before `limit`, or None."""
        start = position
        if not self._offsets_checked:
            self._check_offset_index()
        entry = self.offset_index.at_or_below_position(limit)
        if entry is not None and entry.position > position and self._entry_holds(entry):
            start = entry.position
        best: BatchLocation | None = None
        for batch in read_headers(self.file, start, self.size_bytes):
            if batch.end > limit:
                break
            best = batch
        if best is None and start > position:  # the entry's own batch crosses the limit: search before it
            entry = self.offset_index.entry_before(entry) if entry else None
            start = entry.position if entry and entry.position > position and self._entry_holds(entry) else position
            for batch in read_headers(self.file, start, limit):
                best = batch
        return best

    def batches(
        self, position: int = 0, *, strict: bool = False, chunk_bytes: int = _REBUILD_CHUNK_BYTES
    ) -> Iterator[BatchLocation]:
        """Yield every batch from `position` on, where one begins, by header. Corrupt ranges are skipped.

        With `strict` a corrupt range raises CorruptMessage instead.
        """
        ranges = self.verified_ranges_at(position)
        if ranges is None:
            yield from read_headers(self.file, position, self.size_bytes, chunk_bytes=chunk_bytes)
            return
        for batch in ranges.batches(position, None if position else self.base_offset):
            if not isinstance(batch, CorruptRange):
                yield batch
            elif strict:
                raise corruption_error(batch.corruption)

    def greatest_timestamp(self, *, active: bool) -> TimeEntry:
        """Return the greatest timestamp and the last offset of the first batch that has it; (-1, base) if empty."""
        if active:
            return TimeEntry(self.max_timestamp, self.max_timestamp_offset)
        self.check_indexes()
        return self.time_index.last() or TimeEntry(NO_TIMESTAMP, self.base_offset)

    def first_timestamp(self) -> int:
        """Return the greatest time of the first batch, from which the segment's age counts; -1 if there is none."""
        if self.roll_timestamp is None:
            first = read_header(self.file, 0, self.size_bytes)
            self.roll_timestamp = first.max_timestamp if first else NO_TIMESTAMP
        return self.roll_timestamp

    def first_batch_reaching(self, timestamp: int) -> BatchLocation | None:
        """Find the first batch with a record at or after `timestamp`, by batch headers. Raises CorruptMessage."""
        self.check_indexes()
        entry = self.time_index.below(timestamp)
        start = self._batch_of(entry) if entry else None
        if entry is not None and start is None:
            self._replace_indexes("an entry of the time index matches no batch")
            entry = self.time_index.below(timestamp)
            start = self._batch_of(entry) if entry else None
        for batch in self.batches(start.position if start else 0, strict=True, chunk_bytes=HEADER_CHUNK_BYTES):
            if batch.header.max_timestamp >= timestamp:
                return batch
        return None

    def _batch_of(self, entry: TimeEntry) -> BatchLocation | None:
        """Find the batch that a time entry was written for; None if there is no such batch."""
        batch = self.find(entry.offset)
        if batch is None or (batch.header.last_offset, batch.header.max_timestamp) != (entry.offset, entry.timestamp):
            return None
        return batch

    # ---- Checks and rebuilds of the indexes

    def check_indexes(self) -> None:
        """Rebuild the indexes if they cannot be those of this file; checks once per object."""
        if not self._offsets_checked:
            self._check_offset_index()
        if self._times_checked:
            return
        self._times_checked = True
        if not self.time_index.sane(end_offset=self.base_offset + RELATIVE_OFFSET_MAX):
            self._replace_indexes("the time index is missing or corrupt")
        elif self.size_bytes and not self._time_index_is_complete():
            self._replace_indexes("the time index lacks its last entries")

    def _check_offset_index(self) -> None:
        """Check the offset index alone; a check of the time index may scan the segment."""
        self._offsets_checked = True
        if not self.offset_index.sane(log_bytes=self.size_bytes):
            self._replace_indexes("the offset index is missing or corrupt")

    def _time_index_is_complete(self) -> bool:
        """Return whether no batch after the last time entry has a greater time.

        While writing, `max_timestamp` may have it.
        """
        last = self.time_index.last()
        try:
            start = self._batch_of(last) if last else None
        except CorruptMessage:
            return True  # the corruption has been reported already
        if last is not None and start is None:
            return False
        greatest = max(last.timestamp if last else NO_TIMESTAMP, self.max_timestamp)
        position = start.position if start else 0
        following = self.batches(position, chunk_bytes=HEADER_CHUNK_BYTES)
        return all(batch.header.max_timestamp <= greatest for batch in following)

    def _replace_indexes(self, why: str) -> None:
        logger.warning("the indexes of %s are rebuilt: %s", self.log_path, why)
        self.rebuild_indexes(self.batches(), interval_bytes=4096)
        self.seal()
        for index in (self.offset_index, self.time_index):  # no flush does it for a segment that is sealed
            index.file.offer()
        if self.verified_ranges is not None:
            self.verified_ranges.indexes_skip_corrupt = True

    def rebuild_indexes(self, batches: Iterator[BatchLocation], *, interval_bytes: int) -> None:
        """Rebuild both indexes from the batches given, which must be all of the segment's."""
        self.start_rebuild()
        for batch in batches:
            header = batch.header
            self.note_batch(
                last_offset=header.last_offset,
                position=batch.position,
                size_bytes=header.size_bytes,
                max_timestamp=header.max_timestamp,
                interval_bytes=interval_bytes,
            )

    def start_rebuild(self) -> None:
        """Empty both indexes and reset the greatest times; the caller then adds every batch."""
        self.offset_index.clear()
        self.time_index.clear()
        self._offsets_checked = self._times_checked = True
        self.bytes_since_index = 0
        self.max_timestamp, self.max_timestamp_offset, self.roll_timestamp = NO_TIMESTAMP, self.base_offset, None

    def end_rebuild(self, greatest: TimeEntry, *, bytes_since_index: int, is_empty: bool) -> None:
        """Note the greatest time and the bytes after the last entry, of indexes whose entries the caller has added."""
        self.max_timestamp, self.max_timestamp_offset = greatest
        self.bytes_since_index = bytes_since_index
        if not is_empty:
            self.first_timestamp()

    def hold_indexes(self, offsets: bytes | None, times: bytes | None) -> None:
        """Take what the files of the indexes have, so that they are not read again; or None, to release it."""
        self.offset_index.file.hold(offsets)
        self.time_index.file.hold(times)

    def resume_writing(self) -> int | None:
        """Resume a cleanly closed segment; returns its end offset, or None if it does not end cleanly.

        Checks the last index entries and the batches after them, not the whole file.
        """
        if not self.size_bytes:
            self.offset_index.replace([])
            self.time_index.replace([])
            self._offsets_checked = self._times_checked = True
            return self.base_offset
        if not (self.offset_index.file.whole_on_disk() and self.time_index.file.whole_on_disk()):
            return None
        entry, newest = self.offset_index.last(), self.time_index.last()
        if newest is None:
            return None
        tail = self._tail(entry)
        if not tail:
            return None
        first = read_header(self.file, 0, self.size_bytes) if tail[0].position else tail[0].header
        since, greatest = 0, NO_TIMESTAMP
        for batch in tail:
            since += batch.header.size_bytes
            greatest = max(greatest, batch.header.max_timestamp)
        if first is None or greatest > newest.timestamp or not self._is_of_batch(newest, tail):
            return None
        self.release_indexes()
        self.max_timestamp, self.max_timestamp_offset = newest
        self.roll_timestamp = first.max_timestamp
        self.bytes_since_index = since
        self.offset_index.restore_count(self.offset_index.file.entries_on_disk())
        self.time_index.restore_count(self.time_index.file.entries_on_disk())
        return tail[-1].header.last_offset + 1

    def _is_of_batch(self, newest: TimeEntry, tail: list[BatchLocation]) -> bool:
        """Return whether a time entry was written for one of the last batches, which are verified, or one before."""
        if newest.offset >= tail[0].header.base_offset:
            return any(
                batch.header.last_offset == newest.offset and batch.header.max_timestamp == newest.timestamp
                for batch in tail
            )
        checked, self._offsets_checked = self._offsets_checked, True  # all of it is checked at the first lookup
        try:
            return self._batch_of(newest) is not None
        except CorruptMessage:
            return False
        finally:
            self._offsets_checked = checked

    def _tail(self, entry: OffsetEntry | None) -> list[BatchLocation]:
        """Return the batches from the last index entry to the end of the file; none if any of them is invalid."""
        ranges = self.verified_ranges_at(entry.position if entry else 0)
        if ranges is not None:
            tail = ranges.tail()
            if ranges.is_done:
                self.verified_ranges = None  # of thousands of logs
            return tail
        batches = list(read_headers(self.file, entry.position if entry else 0, self.size_bytes))
        return batches if batches and batches[-1].end == self.size_bytes else []

    def resume_after_truncation(self, *, interval_bytes: int) -> None:
        """Load what an append needs when a truncation makes a sealed segment the active one."""
        if self.size_bytes and self.roll_timestamp is None and self.resume_writing() is None:
            self.rebuild_indexes(self.batches(), interval_bytes=interval_bytes)

    def truncate(self, position: int, *, end_offset: int) -> None:
        """Truncate the file at `position`, where the batch of `end_offset` began, and its indexes."""
        self.check_indexes()
        kept = [entry for entry in self.offset_index.entries() if entry.position < position]
        times = [entry for entry in self.time_index.entries() if entry.offset < end_offset]
        self.cut(position)
        self.mark_dirty()
        self.offset_index.replace(kept)
        self.time_index.replace(times)
        newest = times[-1] if times else TimeEntry(NO_TIMESTAMP, self.base_offset)
        self.max_timestamp, self.max_timestamp_offset = newest
        self.roll_timestamp, self.bytes_since_index = None, 0
        start = kept[-1].position if kept else 0
        for batch in read_headers(self.file, start, position):
            self.bytes_since_index += batch.header.size_bytes
            if batch.header.max_timestamp > self.max_timestamp:
                self.max_timestamp, self.max_timestamp_offset = batch.header.max_timestamp, batch.header.last_offset
        first = read_header(self.file, 0, position)
        self.roll_timestamp = first.max_timestamp if first else None

    def cut(self, position: int) -> None:
        """Truncate the file alone, where a batch began. Raises OSError."""
        self.file.truncate(position)
        self.size_bytes, self._reserved_until = position, 0
        self._checksums = None
        if self.verified_ranges is not None:
            self.verified_ranges.cut(position)

    def end_offset(self) -> int:
        """Return the offset after the last batch, found from the last index entry on."""
        end, entry = self.base_offset, self.offset_index.last()
        if (ranges := self.verified_ranges_at(0)) is not None:
            return ranges.end_offset()
        for batch in read_headers(self.file, entry.position if entry else 0, self.size_bytes):
            end = batch.header.last_offset + 1
        return end

    def release_indexes(self) -> None:
        """Free the memory used by lookups."""
        self.offset_index.release()
        self.time_index.release()
