"""Keeps the two sparse indexes of a segment: from offset to file position, and from time to offset.

Both are caches. They hold what a scan of the log would find, so a missing or corrupt one is rebuilt and may cost time,
never a wrong answer: `sane` checks the whole file when it is first read, and the segment checks that the batch found
is the one its entry names (`segment.py`).

Kafka's formats, all integers big-endian and offsets relative to the segment's base offset:

    .index       8 bytes an entry: relative offset (4), file position (4)
    .timeindex  12 bytes an entry: timestamp in ms (8), relative offset (4)

An offset entry names the *last* offset of the batch at `position`; a time entry says that no record up to `offset` is
younger than `timestamp`. Both kinds only grow, so binary search finds the greatest entry at or below a target.

No file descriptor is kept: entries wait in memory and are written a page at a time, at a flush, a roll and a close.
Thousands of partitions would otherwise hold three descriptors for each segment.
"""

from __future__ import annotations

import contextlib
import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from pathlib import PurePath
from typing import Final, NamedTuple

from ottla.core.files import File, FileAccess
from ottla.storage.file_names import INDEX_SUFFIX, TIME_INDEX_SUFFIX, offset_name

_OFFSET_ENTRY: Final = struct.Struct(">ii")
_TIME_ENTRY: Final = struct.Struct(">qi")
OFFSET_ENTRY_BYTES: Final = _OFFSET_ENTRY.size
TIME_ENTRY_BYTES: Final = _TIME_ENTRY.size
assert (OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES) == (8, 12)

_NO_COLUMN: Final[array[int]] = array("i")  # of indexes that are not loaded: never changed
_WRITE_BYTES: Final = 6144  # unwritten entries are handed to the system in pieces this large: a multiple of 8 and of 12


class EntryFile:
    """An append-only file of fixed-size entries whose last ones are still in memory."""

    __slots__ = (
        "_base_offset",
        "_directory",
        "_disk_bytes",
        "_files",
        "_held",
        "_is_stale",
        "_suffix",
        "_unwritten",
        "entry_bytes",
    )

    def __init__(self, files: FileAccess, directory: PurePath, base_offset: int, suffix: str, entry_bytes: int) -> None:
        self._files = files
        self._directory, self._base_offset, self._suffix = directory, base_offset, suffix
        self.entry_bytes = entry_bytes
        self._unwritten = b""  # at most a page of it
        self._disk_bytes = -1  # not asked yet
        self._is_stale = False  # the file has entries that count no more, until those in memory replace them
        self._held: bytes | None = None  # the content of the file, while a start uses it

    @property
    def path(self) -> PurePath:
        """Return the file's path, made again: most of thousands of partitions never need it."""
        return self._directory / offset_name(self._base_offset, self._suffix)

    @property
    def is_written(self) -> bool:
        """Whether no entry waits in memory."""
        return not self._unwritten and not self._is_stale

    def moved(self, directory: PurePath) -> None:
        """Note the new path of a renamed directory."""
        self._directory = directory

    def hold(self, content: bytes | None) -> None:
        """Take the content of the file, which was just read and is not read again; or None, to release it."""
        self._held = content
        if content is not None and self._disk_bytes < 0:
            self._disk_bytes = len(content) - len(content) % self.entry_bytes

    def append(self, entry: bytes) -> None:
        """Add one entry; it reaches the file with the next `write_out`, or with a page of others."""
        self._unwritten += entry
        if len(self._unwritten) >= _WRITE_BYTES:
            self.offer()

    def offer(self) -> None:
        """Write out, ignoring an OSError: the entries stay in memory, and the next flush raises the error."""
        with contextlib.suppress(OSError):
            self.write_out()

    def write_out(self) -> None:
        """Hand the waiting entries to the system."""
        if self.is_written:
            return
        self._held = None
        file = self._files.open(self.path, create=True)
        try:
            start = self._whole_bytes(file)
            end = start + len(self._unwritten)
            if self._unwritten:
                file.write_at(start, self._unwritten)
            if self._is_stale and file.size() > end:
                file.truncate(end)
            self._disk_bytes, self._is_stale = end, False
        finally:
            file.close()
        self._unwritten = b""

    def read_all(self) -> bytes:
        """Read every entry. A missing file is an empty one."""
        if not self._disk_bytes:
            return self._unwritten
        if self._held is not None:
            return self._held[: self._disk_bytes] + self._unwritten
        try:
            file = self._files.open(self.path)
        except FileNotFoundError:
            return self._unwritten
        try:
            return file.read_at(0, self._whole_bytes(file)) + self._unwritten
        finally:
            file.close()

    def read_last(self) -> bytes | None:
        """Return the last entry, or None if there is none."""
        if self._unwritten:
            return self._unwritten[-self.entry_bytes :]
        if not self._disk_bytes:
            return None
        if self._held is not None:
            return self._held[self._disk_bytes - self.entry_bytes : self._disk_bytes]
        try:
            file = self._files.open(self.path)
        except FileNotFoundError:
            return None
        try:
            end = self._whole_bytes(file)
            return file.read_at(end - self.entry_bytes, self.entry_bytes) if end else None
        finally:
            file.close()

    def entries_on_disk(self) -> int:
        """Return the number of complete entries in the file."""
        size = self._disk_bytes if self._disk_bytes >= 0 else self._files.size_of(self.path)
        return size // self.entry_bytes

    def whole_on_disk(self) -> bool:
        """Return whether the file is there and a whole number of entries long."""
        if self._is_stale:
            return True
        if self._held is not None:
            return len(self._held) % self.entry_bytes == 0
        try:
            return self._files.size_of(self.path) % self.entry_bytes == 0
        except FileNotFoundError:
            return False

    def is_empty_on_disk(self) -> bool:
        """Return whether the file is there and empty."""
        if self._held is not None:
            return not self._held
        try:
            return self._files.size_of(self.path) == 0
        except FileNotFoundError:
            return False

    def replace_all(self, entries: bytes | bytearray) -> None:
        """Put `entries` in place of everything."""
        self._unwritten = b""
        if not entries and not self._is_stale and self.is_empty_on_disk():  # as in most of thousands of partitions
            self._disk_bytes = 0
            return
        self._held = None
        file = self._files.open(self.path, create=True)
        try:
            file.truncate(0)
            if entries:
                file.append(entries)
            self._disk_bytes, self._is_stale = len(entries), False
        finally:
            file.close()

    def clear(self) -> None:
        """Drop all entries; the file keeps them until others are written in their place.

        To cut the file first takes a file system as long as a sync: most indexes that a recovery makes are as long as
        those that it finds.
        """
        if self._is_stale or (self._disk_bytes < 0 and self._is_there()) or self._disk_bytes > 0:
            self._unwritten, self._held = b"", None
            self._disk_bytes, self._is_stale = 0, True
        else:
            self.replace_all(b"")

    def sync(self) -> None:
        """Make what was written durable. Called from the flush thread: touches the file only."""
        try:
            file = self._files.open(self.path)
        except FileNotFoundError:
            return
        try:
            file.sync()
        finally:
            file.close()

    def _is_there(self) -> bool:
        """Return whether the file is there and not empty."""
        try:
            return self._files.size_of(self.path) > 0
        except FileNotFoundError:
            return False

    def _whole_bytes(self, file: File) -> int:
        """Return the file's length without a torn last entry, and without space that another broker preallocated."""
        if self._disk_bytes < 0:
            self._disk_bytes = file.size() - file.size() % self.entry_bytes
        return self._disk_bytes


class OffsetEntry(NamedTuple):
    """A batch the index knows: its last offset and where it begins in the file."""

    offset: int
    position: int


class OffsetIndex:
    """From offset to file position, for one segment."""

    __slots__ = ("_base_offset", "_entries", "_offsets", "_positions", "count", "file")

    def __init__(self, files: FileAccess, directory: PurePath, base_offset: int, suffix: str = INDEX_SUFFIX) -> None:
        self.file = EntryFile(files, directory, base_offset, suffix, OFFSET_ENTRY_BYTES)
        self._base_offset = base_offset
        self._offsets: array[int] | None = None  # relative; loaded at the first look-up
        self._positions = _NO_COLUMN
        self.count = 0  # entries appended since the segment was opened for writing; see `restore_count`

    def append(self, offset: int, position: int) -> None:
        """Note that the batch ending with `offset` begins at `position`."""
        relative = offset - self._base_offset
        self.file.append(_OFFSET_ENTRY.pack(relative, position))
        self.count += 1
        if self._offsets is not None:
            self._offsets.append(relative)
            self._positions.append(position)

    def at_or_below(self, offset: int) -> OffsetEntry | None:
        """Return the greatest entry whose offset is at most `offset`."""
        offsets = self._loaded() if self._offsets is None else self._offsets
        at = bisect_right(offsets, offset - self._base_offset) - 1
        return OffsetEntry(offsets[at] + self._base_offset, self._positions[at]) if at >= 0 else None

    def at_or_below_position(self, position: int) -> OffsetEntry | None:
        """Return the last entry whose batch begins at or before `position`: where to look for the end of a read."""
        offsets = self._loaded()
        at = bisect_right(self._positions, position) - 1
        return OffsetEntry(offsets[at] + self._base_offset, self._positions[at]) if at >= 0 else None

    def position_at_or_above(self, position: int) -> int | None:
        """Return the next place after `position`, or there, where a batch should begin; None after the last."""
        self._loaded()
        at = bisect_left(self._positions, position)
        return self._positions[at] if at < len(self._positions) else None

    def entry_before(self, entry: OffsetEntry) -> OffsetEntry | None:
        """Return the entry before this one."""
        offsets = self._loaded()
        at = bisect_left(offsets, entry.offset - self._base_offset) - 1
        return OffsetEntry(offsets[at] + self._base_offset, self._positions[at]) if at >= 0 else None

    def last(self) -> OffsetEntry | None:
        """Return the newest entry, read alone: loading a log after a clean stop needs no more."""
        raw = self.file.read_last()
        if raw is None:
            return None
        relative, position = _OFFSET_ENTRY.unpack(raw)
        return OffsetEntry(relative + self._base_offset, position)

    def sane(self, *, log_bytes: int) -> bool:
        """Return whether the file could be the index of a log of this size.

        Its entries are whole, and both columns grow strictly.
        """
        if not self.file.whole_on_disk():
            return False
        self.release()
        offsets = self._loaded()
        self.count = len(offsets)
        if not offsets:
            return True
        return _grows(offsets) and _grows(self._positions) and offsets[0] >= 0 and 0 <= self._positions[-1] < log_bytes

    def clear(self) -> None:
        """Drop all entries: a recovery adds others."""
        self.release()
        self.file.clear()
        self.count = 0

    def replace(self, entries: list[OffsetEntry]) -> None:
        """Put these entries in place of all (truncation)."""
        self.release()
        packed = b"".join(_OFFSET_ENTRY.pack(offset - self._base_offset, at) for offset, at in entries)
        self.file.replace_all(packed)
        self.count = len(entries)

    def entries(self) -> list[OffsetEntry]:
        """Return every entry, for truncation and tests."""
        offsets = self._loaded()
        return [
            OffsetEntry(offset + self._base_offset, at) for offset, at in zip(offsets, self._positions, strict=True)
        ]

    def restore_count(self, count: int) -> None:
        """Set the number of entries of a file that is opened for more."""
        self.count = count

    def release(self) -> None:
        """Forget the entries held in memory for look-ups; the next one reads them again."""
        self._offsets, self._positions = None, _NO_COLUMN

    def _loaded(self) -> array[int]:
        if self._offsets is None:
            flat = array("i", self.file.read_all())
            if sys.byteorder == "little":
                flat.byteswap()
            self._offsets, self._positions = flat[::2], flat[1::2]
        return self._offsets


class TimeEntry(NamedTuple):
    """No record of the segment up to and including `offset` is younger than `timestamp`."""

    timestamp: int
    offset: int


class TimeIndex:
    """From timestamp to offset, for one segment."""

    __slots__ = ("_base_offset", "_last_timestamp", "_offsets", "_timestamps", "count", "file")

    def __init__(
        self, files: FileAccess, directory: PurePath, base_offset: int, suffix: str = TIME_INDEX_SUFFIX
    ) -> None:
        self.file = EntryFile(files, directory, base_offset, suffix, TIME_ENTRY_BYTES)
        self._base_offset = base_offset
        self._last_timestamp: int | None = None  # unknown until asked or written
        self._timestamps: array[int] | None = None
        self._offsets = _NO_COLUMN
        self.count = 0

    def append(self, timestamp: int, offset: int) -> None:
        """Note the greatest timestamp so far; a repeat of it adds nothing."""
        if timestamp <= self.last_timestamp():
            return
        relative = offset - self._base_offset
        self.file.append(_TIME_ENTRY.pack(timestamp, relative))
        self.count += 1
        self._last_timestamp = timestamp
        if self._timestamps is not None:
            self._timestamps.append(timestamp)
            self._offsets.append(relative)

    def below(self, timestamp: int) -> TimeEntry | None:
        """Return the last entry with a smaller timestamp: what is sought is after its offset."""
        timestamps = self._loaded()
        at = bisect_left(timestamps, timestamp) - 1
        return TimeEntry(timestamps[at], self._offsets[at] + self._base_offset) if at >= 0 else None

    def last(self) -> TimeEntry | None:
        """Return the newest entry."""
        raw = self.file.read_last()
        if raw is None:
            return None
        timestamp, relative = _TIME_ENTRY.unpack(raw)
        return TimeEntry(timestamp, relative + self._base_offset)

    def last_timestamp(self) -> int:
        """Return the newest entry's timestamp; -1 if there is none, as no record has a smaller one."""
        if self._last_timestamp is None:
            entry = self.last()
            self._last_timestamp = entry.timestamp if entry else -1
        return self._last_timestamp

    def sane(self, *, end_offset: int) -> bool:
        """Return whether the file could be a time index.

        Its entries are whole, times grow, and offsets grow and are inside the log.
        """
        if not self.file.whole_on_disk():
            return False
        self.release()
        timestamps = self._loaded()
        self.count = len(timestamps)
        if not timestamps:
            return True
        in_range = self._offsets[0] >= 0 and self._offsets[-1] + self._base_offset < end_offset
        return _grows(timestamps) and _grows(self._offsets) and in_range

    def clear(self) -> None:
        """Drop all entries: a recovery adds others."""
        self.release()
        self.file.clear()
        self.count, self._last_timestamp = 0, -1

    def replace(self, entries: list[TimeEntry]) -> None:
        """Put these entries in place of all."""
        self.release()
        self.file.replace_all(b"".join(_TIME_ENTRY.pack(at, offset - self._base_offset) for at, offset in entries))
        self.count = len(entries)
        self._last_timestamp = entries[-1].timestamp if entries else -1

    def entries(self) -> list[TimeEntry]:
        """Return every entry, for truncation and tests."""
        timestamps = self._loaded()
        return [TimeEntry(at, offset + self._base_offset) for at, offset in zip(timestamps, self._offsets, strict=True)]

    def restore_count(self, count: int) -> None:
        """Set the number of entries of a file that is opened for more."""
        self.count = count

    def release(self) -> None:
        """Forget what is held for look-ups."""
        self._timestamps, self._offsets = None, _NO_COLUMN

    def _loaded(self) -> array[int]:
        if self._timestamps is None:
            raw = self.file.read_all()
            flat = struct.unpack(">" + "qi" * (len(raw) // TIME_ENTRY_BYTES), raw)
            self._timestamps, self._offsets = array("q", flat[::2]), array("i", flat[1::2])
        return self._timestamps


def _grows(column: array[int]) -> bool:
    """Return whether every entry is above the one before it."""
    return all(map(int.__lt__, column, column[1:]))
