"""Provides the system's files on a disk that a test declares full, slow or broken: it refuses operations then."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable
from pathlib import PurePath
from typing import Any, cast

from ottla.core.errors import SyncFailed
from ottla.core.files import Buffer, File, FileAccess, SystemFiles, read_file


class LimitedFiles:
    """The files of one broker: those of the system, some of which are on a disk that may be full or broken."""

    def __init__(self) -> None:
        self._system = SystemFiles()
        self._full: PurePath | None = None
        self._refusing: dict[str, int] = {}
        self.refusals: Counter[str] = Counter()  # by the kind of the operation; those for want of space are "full"
        self.before: dict[str, Callable[[], None]] = {}  # called before each operation of a kind, of those of `refuse`

    def __getattr__(self, name: str) -> Any:
        return getattr(self._system, name)

    def fill(self, path: PurePath) -> None:
        """Leave no space at or below a path."""
        self._full = path

    def free(self) -> None:
        """Give space again."""
        self._full = None

    def refuse(self, error: int, *kinds: str) -> None:
        """Raise OSError with this number at every operation of these kinds, until `stop_refusing`.

        Kinds are open, create, read, write, truncate, sync, mkdir, rename and remove, as those of `SimDisk`.
        """
        self._refusing.update(dict.fromkeys(kinds, error))

    def stop_refusing(self, *kinds: str) -> None:
        """End the refusals of operations of these kinds, or all."""
        for kind in kinds or tuple(self._refusing):
            self._refusing.pop(kind, None)

    def read(self, path: str) -> bytes:
        """Read a small file."""
        return read_file(cast("FileAccess", self), PurePath(path))

    def begin(self, kind: str, path: PurePath) -> None:
        """Raise the OSError that a test has planned for all operations of a kind."""
        if (before := self.before.get(kind)) is not None:
            before()
        error = self._refusing.get(kind)
        if error is not None:
            self.refusals[kind] += 1
            raise OSError(error, os.strerror(error), str(path))

    def watches(self, kind: str) -> bool:
        """Return whether an operation of this kind may be refused or slow: the system must not do it alone."""
        return kind in self._refusing or kind in self.before

    def check(self, path: PurePath) -> None:
        """Raise OSError for a write to the full disk."""
        if self._is_full(path):
            self.refusals["full"] += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def _is_full(self, path: PurePath) -> bool:
        return self._full is not None and (path == self._full or self._full in path.parents)

    def open(self, path: PurePath, *, create: bool = False) -> File:
        """Open a file, unless it would have to be created on the full disk."""
        self.begin("open", path)
        if create and not self._system.exists(path):
            self.check(path)
            self.begin("create", path)
        return cast("File", _LimitedFile(self, path, self._system.open(path, create=create)))

    def make_directory(self, path: PurePath) -> None:
        """Create a directory, but not on the full disk."""
        self.check(path)
        self.begin("mkdir", path)
        self._system.make_directory(path)

    def rename(self, old: PurePath, new: PurePath) -> None:
        """Rename a file."""
        self.begin("rename", old)
        self._system.rename(old, new)

    def remove(self, path: PurePath) -> None:
        """Remove a file."""
        self.begin("remove", path)
        self._system.remove(path)

    def sync_directory(self, path: PurePath) -> None:
        """Make the names in a directory durable."""
        try:
            self.begin("sync", path)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror, str(path)) from error
        self._system.sync_directory(path)

    def free_bytes(self, path: PurePath) -> int:
        """Return the free space, of which a full disk has none."""
        return 0 if self._is_full(path) else self._system.free_bytes(path)


class _LimitedFile:
    """A file that refuses operations as its disk does."""

    def __init__(self, disk: LimitedFiles, path: PurePath, file: File) -> None:
        self._disk, self._path, self._file = disk, path, file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def append(self, data: Buffer) -> int:
        """Append, unless the disk is full."""
        self._disk.check(self._path)
        self._disk.begin("write", self._path)
        return self._file.append(data)

    def write_at(self, position: int, data: Buffer) -> None:
        """Write, unless the disk is full."""
        self._disk.check(self._path)
        self._disk.begin("write", self._path)
        self._file.write_at(position, data)

    def read_at(self, position: int, size: int) -> bytes:
        """Read bytes."""
        self._disk.begin("read", self._path)
        return self._file.read_at(position, size)

    def truncate(self, size: int) -> None:
        """Truncate or extend the file."""
        self._disk.begin("truncate", self._path)
        self._file.truncate(size)

    def sync(self) -> None:
        """Make all writes durable."""
        try:
            self._disk.begin("sync", self._path)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror, str(self._path)) from error
        self._file.sync()

    def descriptor(self) -> int | None:
        """Return the descriptor for sendfile; None where reads have to come by here."""
        return None if self._disk.watches("read") else self._file.descriptor()
