"""Opens and closes the `.log` file of a segment, and knows whether it has to be synced.

A file is opened when it is first needed, and may be closed while it is idle.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Literal

from ottla.core.files import File, FileSystem
from ottla.storage.file_names import (
    CHECKSUMS_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    offset_name,
)
from ottla.storage.integrity.block_checksums import BlockChecksums, read_checksums


class SegmentFile:
    """The files of one segment by their names, and its `.log`."""

    __slots__ = (
        "_checksums",
        "_is_recovered",
        "_sync_is_awaited",
        "_used",
        "_was_closed_idle",
        "base_offset",
        "directory",
        "files",
        "is_dirty",
        "open_file",
        "size_bytes",
    )

    def __init__(self, files: FileSystem, directory: PurePath, base_offset: int, size_bytes: int) -> None:
        self.files = files
        self.open_file: File | None = None  # the `.log` file, unless it is not open at the moment; see `file`
        self.directory = directory
        self.base_offset = base_offset
        self.size_bytes = size_bytes
        self.is_dirty = False  # whether the file changed since the last flush began
        self._sync_is_awaited = True  # whether a caller waits for the sync of what makes it dirty
        self._is_recovered = False  # what makes it dirty was written by an earlier process
        self._was_closed_idle = False
        self._used = False  # the file was used since it was last to be closed
        self._checksums: BlockChecksums | Literal[False] | None = None  # False: not looked for yet

    def path(self, suffix: str) -> PurePath:
        """Return the path of one of the segment's files."""
        return self.directory / offset_name(self.base_offset, suffix)

    def paths(self) -> list[PurePath]:
        """Return the paths of all of the segment's files, existing or not; the `.log` is last."""
        return [
            self.path(suffix)
            for suffix in (CHECKSUMS_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, LOG_SUFFIX)
        ]

    @property
    def file(self) -> File:
        """The `.log` file, opened at its first use."""
        file = self.open_file
        if file is None:
            file = self._open()
            if self._was_closed_idle:
                self._was_closed_idle = False  # ranges verified or written before stay verified
            elif self.size_bytes:
                self.opened()
        self._used = True
        return file

    def opened(self) -> None:
        """Trust nothing of the file, which was opened: another process may have written it."""
        self._checksums = False

    def _open(self, *, create: bool = False) -> File:
        self.files.open_file_cache.add(self)
        try:
            file = self.open_file = self.files.open(self.path(LOG_SUFFIX), create=create)
        except OSError:
            self.files.open_file_cache.discard(self)
            raise
        return file  # another thread that opens one may have closed it as idle by now

    @property
    def log_path(self) -> PurePath:
        """Return the present path of the `.log` file."""
        return self.path(LOG_SUFFIX)

    @property
    def checksums(self) -> BlockChecksums | None:
        """The block checksums of the segment, if there are any for its present content."""
        if self._checksums is False:
            block_checksums = read_checksums(self.files, self.path(CHECKSUMS_SUFFIX))
            self._checksums = (
                block_checksums
                if block_checksums and block_checksums.counts_for(self.files, self.log_path, self.size_bytes)
                else None
            )
        return self._checksums

    def close_if_idle(self) -> bool:
        """Close the file when too many are open, unless it was used since the last call or must be synced.

        A failed write-back is reported to the descriptor that wrote, so a flush must have begun with that one first.
        """
        if self._used or (self.must_sync_before_close and self.size_bytes):
            self._used = False
            return False
        self.open_file = None  # a reader or a flush that uses it keeps it open until it is done
        self._was_closed_idle = True
        return True

    def mark_dirty(self) -> None:
        """Have the next flush sync the file: what it has, or its name, may not be on the disk."""
        self.is_dirty = True

    def mark_recovered(self) -> None:
        """Have the next flush sync what a recovery kept, by any descriptor: the process that wrote it is gone."""
        self.is_dirty = self._is_recovered = True

    def mark_clean(self) -> None:
        """Have flushes leave the file out until it changes: it is synced, or a flush of it has begun."""
        self.is_dirty = self._is_recovered = False

    @property
    def must_sync_before_close(self) -> bool:
        """Whether a flush must begin with the open descriptor, which gets the error of a failed write-back."""
        return self.is_dirty and self._sync_is_awaited and not self._is_recovered

    @property
    def is_removed(self) -> bool:
        """Whether another program has removed the open file. May be called in a worker thread."""
        file = self.open_file
        try:
            return file is not None and not file.is_linked()
        except OSError:
            return False  # it was closed meanwhile

    def detach_file(self) -> File | None:
        """Return the open descriptor, if there is one, to the caller, which closes it later."""
        file, self.open_file = self.open_file, None
        self.files.open_file_cache.discard(self)
        return file

    def close(self) -> None:
        """Close the descriptor; the file is opened again at its next use."""
        file = self.open_file
        if file is not None:
            file.close()
            self.open_file = None
            self.files.open_file_cache.discard(self)
