"""The operating system's files on a disk that a test declares full: it has no free space then, and takes no writes."""

from __future__ import annotations

import errno
import os
from pathlib import PurePath

from ottla.core.files import Buffer, File, SystemFile, SystemFiles


class LimitedFiles(SystemFiles):
    """The files of one broker."""

    def __init__(self) -> None:
        super().__init__()
        self.full: PurePath | None = None  # the directory below which nothing can be written

    def is_full(self, path: PurePath) -> bool:
        """Whether a path is on the disk that is full."""
        return self.full is not None and (path == self.full or self.full in path.parents)

    def check(self, path: PurePath) -> None:
        """Raise OSError for a write to the full disk."""
        if self.is_full(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def open(self, path: PurePath, *, create: bool = False) -> File:
        """Open a file, unless it would have to be created on the full disk."""
        if create and not self.exists(path):
            self.check(path)
        return _LimitedFile(self, path, create=create)

    def make_directory(self, path: PurePath) -> None:
        """Create a directory, but not on the full disk."""
        self.check(path)
        super().make_directory(path)

    def free_bytes(self, path: PurePath) -> int:
        """Return the free space, of which a full disk has none."""
        return 0 if self.is_full(path) else super().free_bytes(path)


class _LimitedFile(SystemFile):
    """A file that refuses writes while its disk is full."""

    __slots__ = ("_disk", "_path")

    def __init__(self, disk: LimitedFiles, path: PurePath, *, create: bool) -> None:
        super().__init__(path, create=create)
        self._disk, self._path = disk, path

    def write_at(self, position: int, data: Buffer) -> None:
        self._disk.check(self._path)
        super().write_at(position, data)
