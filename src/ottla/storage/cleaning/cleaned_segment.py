"""Writes a segment that replaces others or is added: log, indexes, aborted transactions, under temporary names."""

from __future__ import annotations

import contextlib
from pathlib import PurePath
from typing import NamedTuple

from ottla.core.files import Buffer, FileSystem
from ottla.core.ids import NO_TIMESTAMP
from ottla.records.batch import BatchHeader
from ottla.storage.cleaning.errors import Uncleanable
from ottla.storage.cleaning.throttler import Throttler
from ottla.storage.file_names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    offset_name,
)
from ottla.storage.log.segment import RELATIVE_OFFSET_MAX
from ottla.storage.state.aborted_index import AbortedTransaction, replace_aborted
from ottla.storage.state.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, OffsetIndex, TimeIndex


class NewSegment(NamedTuple):
    """Holds the place and the limits of a segment to be written."""

    directory: PurePath
    base_offset: int
    suffix: str  # of the temporary names, as `CleaningPlan.suffix`
    is_alone: bool  # it replaces one segment, and may be larger than `segment_bytes`
    index_interval_bytes: int
    io_buffer_bytes: int
    segment_bytes: int
    segment_index_bytes: int


class GroupTooLarge(Exception):
    """Segments that should fit into one do not, rewritten: recompressed, or with longer time deltas."""


class CleanedSegment:
    """A new segment. `seal` makes it durable; `discard` takes its files away."""

    __slots__ = (
        "_buffer",
        "_file",
        "_files",
        "_max_timestamp",
        "_max_timestamp_offset",
        "_offset_index",
        "_since_index",
        "_target",
        "_throttle",
        "_time_index",
        "written",
    )

    def __init__(self, files: FileSystem, target: NewSegment, throttle: Throttler) -> None:
        self._files = files
        self._target = target
        self._throttle = throttle
        base_offset = target.base_offset
        self._offset_index = OffsetIndex(files, target.directory, base_offset, INDEX_SUFFIX + target.suffix)
        self._time_index = TimeIndex(files, target.directory, base_offset, TIME_INDEX_SUFFIX + target.suffix)
        self._max_timestamp, self._max_timestamp_offset = NO_TIMESTAMP, base_offset
        self._since_index = 0
        self._buffer = bytearray()
        self._file = files.open(self._path(LOG_SUFFIX), create=True)
        self.written = 0

    def append(self, header: BatchHeader, batch: Buffer) -> None:
        """Add a batch. Raises GroupTooLarge, Uncleanable, OSError."""
        size = len(batch)
        self._check_size(size)
        max_timestamp = BatchHeader(batch, 0).max_timestamp
        if max_timestamp > self._max_timestamp:
            self._max_timestamp, self._max_timestamp_offset = max_timestamp, header.last_offset
        if self._since_index > self._target.index_interval_bytes:
            self._offset_index.append(header.last_offset, self.written)
            self._time_index.append(self._max_timestamp, self._max_timestamp_offset)
            self._since_index = 0
        self._since_index += size
        self._buffer += batch
        self.written += size
        if len(self._buffer) >= self._target.io_buffer_bytes // 2:
            self._write_out()

    def seal(self, aborted: list[AbortedTransaction]) -> None:
        """Write and sync everything. The names follow with the renames to come. Raises OSError."""
        self._write_out()
        if self.written:
            self._time_index.append(self._max_timestamp, self._max_timestamp_offset)
        self._offset_index.file.write_out()
        self._time_index.file.write_out()
        replace_aborted(self._files, self._path(TXN_INDEX_SUFFIX), aborted)
        self._file.sync()
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, *((TXN_INDEX_SUFFIX,) if aborted else ())):
            _sync(self._files, self._path(suffix))
        self._file.close()

    def discard(self) -> None:
        """Discard the segment: nothing came of it. What cannot be removed now is removed by the next start."""
        self._file.close()
        with contextlib.suppress(OSError):
            for suffix in SEGMENT_SUFFIXES:
                self._files.remove(self._path(suffix))

    def _path(self, suffix: str) -> PurePath:
        return self._target.directory / offset_name(self._target.base_offset, suffix + self._target.suffix)

    def _check_size(self, size: int) -> None:
        """Raise GroupTooLarge or Uncleanable if so many more bytes do not fit.

        A segment that grew alone may exceed `segment.bytes`, as in Kafka, but not the four bytes of an index entry.
        """
        target = self._target
        if target.is_alone:
            if self.written + size > RELATIVE_OFFSET_MAX:
                raise Uncleanable(f"{self._path(LOG_SUFFIX)} would outgrow what an index can point into")
        elif (
            self.written + size > target.segment_bytes
            or self._offset_index.count >= target.segment_index_bytes // OFFSET_ENTRY_BYTES
            or self._time_index.count >= target.segment_index_bytes // TIME_ENTRY_BYTES - 1
        ):
            raise GroupTooLarge

    def _write_out(self) -> None:
        if self._buffer:
            self._file.append(self._buffer)
            self._throttle.passed(len(self._buffer))
            self._buffer = bytearray()


def _sync(files: FileSystem, path: PurePath) -> None:
    file = files.open(path, create=True)
    try:
        file.sync()
    finally:
        file.close()
