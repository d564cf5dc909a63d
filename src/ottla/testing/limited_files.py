"""Provides the system's files on a disk that a test declares full: it has no free space then, and takes no writes."""

from __future__ import annotations

import errno
import os
from pathlib import PurePath
from typing import Any, cast

from ottla.core.files import Buffer, File, SystemFiles


class LimitedFiles:
    """The files of one broker: those of the system, some of which are on a disk that may be full."""

    def __init__(self) -> None:
        self._system = SystemFiles()
        self._full: PurePath | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._system, name)

    def fill(self, path: PurePath) -> None:
        """Leave no space at or below a path."""
        self._full = path

    def free(self) -> None:
        """Give space again."""
        self._full = None

    def check(self, path: PurePath) -> None:
        """Raise OSError for a write to the full disk."""
        if self._is_full(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def _is_full(self, path: PurePath) -> bool:
        return self._full is not None and (path == self._full or self._full in path.parents)

    def open(self, path: PurePath, *, create: bool = False) -> File:
        """Open a file, unless it would have to be created on the full disk."""
        if create and not self._system.exists(path):
            self.check(path)
        return cast("File", _LimitedFile(self, path, self._system.open(path, create=create)))

    def make_directory(self, path: PurePath) -> None:
        """Create a directory, but not on the full disk."""
        self.check(path)
        self._system.make_directory(path)

    def free_bytes(self, path: PurePath) -> int:
        """Return the free space, of which a full disk has none."""
        return 0 if self._is_full(path) else self._system.free_bytes(path)


class _LimitedFile:
    """A file that refuses writes while its disk is full."""

    def __init__(self, disk: LimitedFiles, path: PurePath, file: File) -> None:
        self._disk, self._path, self._file = disk, path, file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def append(self, data: Buffer) -> int:
        """Append, unless the disk is full."""
        self._disk.check(self._path)
        return self._file.append(data)

    def write_at(self, position: int, data: Buffer) -> None:
        """Write, unless the disk is full."""
        self._disk.check(self._path)
        self._file.write_at(position, data)
