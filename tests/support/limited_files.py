"""The operating system's files on a disk that a test declares full: it has no free space then, and takes no writes."""

from __future__ import annotations

import errno
import os
from pathlib import PurePath
from typing import Any

from ottla.core.files import Buffer, File, SystemFiles


class LimitedFiles:
    """The files of one broker: those of the system, some of which are on a disk that may be full."""

    def __init__(self) -> None:
        self._system = SystemFiles()
        self.full: PurePath | None = None  # the directory below which nothing can be written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._system, name)

    def is_full(self, path: PurePath) -> bool:
        """Whether a path is on the disk that is full."""
        return self.full is not None and (path == self.full or self.full in path.parents)

    def check(self, path: PurePath) -> None:
        """Raise OSError for a write to the full disk."""
        if self.is_full(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def open(self, path: PurePath, *, create: bool = False) -> File:
        """Open a file, unless it would have to be created on the full disk."""
        if create and not self._system.exists(path):
            self.check(path)
        limited: Any = _LimitedFile(self, path, self._system.open(path, create=create))
        return limited  # type: ignore[no-any-return]

    def make_directory(self, path: PurePath) -> None:
        """Create a directory, but not on the full disk."""
        self.check(path)
        self._system.make_directory(path)

    def free_bytes(self, path: PurePath) -> int:
        """Return the free space, of which a full disk has none."""
        return 0 if self.is_full(path) else self._system.free_bytes(path)


class _LimitedFile:
    """A file that refuses writes while its disk is full."""

    def __init__(self, disk: LimitedFiles, path: PurePath, file: File) -> None:
        self._disk, self._path, self._file = disk, path, file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def append(self, data: Buffer) -> int:
        self._disk.check(self._path)
        return self._file.append(data)

    def write_at(self, position: int, data: Buffer) -> None:
        self._disk.check(self._path)
        self._file.write_at(position, data)
