"""Files, as a port: one small door to the disk that a simulated disk can crash at any point.

`SystemFiles` is the real one; `testing/sim_disk.py` is the one that loses, tears and refuses. Everything the broker
keeps goes through here, so a crash test covers everything.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from pathlib import PurePath
from typing import Protocol

from ottla.core.open_files import KeptOpen

Buffer = bytes | bytearray | memoryview

_TEMPORARY = ".tmp"


class SyncFailed(OSError):
    """An fsync failed, whatever its number: what it was to save may be lost, and no second try can tell.

    Linux marks pages clean that it could not write, so that the next fsync succeeds without them. A full disk and a
    used-up quota may show here first, where the file system allocates late.
    """


class File(Protocol):
    """One open file: written at its end or at a place, read anywhere."""

    def append(self, data: Buffer) -> None:
        """Write all of `data` at the end. After an OSError the end may hold part of it: truncate before going on."""
        ...

    def write_at(self, position: int, data: Buffer) -> None:
        """Write all of `data` at `position`."""
        ...

    def read_at(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position`; fewer only at the end of the file."""
        ...

    def truncate(self, size: int) -> None:
        """Cut or extend to `size` bytes."""
        ...

    def sync(self) -> None:
        """Return once every byte written so far would survive a power cut. May be called from another thread.

        Raises SyncFailed.
        """
        ...

    def size(self) -> int:
        """The file's length in bytes, known without asking the disk."""
        ...

    def descriptor(self) -> int | None:
        """The kernel's number for the file, for sendfile; None where there is no kernel below."""
        ...

    def close(self) -> None:
        """Give the file back. Calling it twice is harmless; a file that nobody refers to any more closes itself."""
        ...


class FileSystem(Protocol):
    """The few things a log asks of a directory tree. Paths are absolute."""

    @property
    def kept_open(self) -> KeptOpen:
        """Who keeps files of this tree open between uses."""
        ...

    def open(self, path: PurePath, *, create: bool = False) -> File:
        """Open for reading and writing. Without `create` a missing file is FileNotFoundError."""
        ...

    def exists(self, path: PurePath) -> bool:
        """Whether a file or directory is there."""
        ...

    def is_directory(self, path: PurePath) -> bool:
        """Whether a directory is there."""
        ...

    def names_in(self, directory: PurePath) -> list[str]:
        """The names in a directory, sorted."""
        ...

    def make_directory(self, path: PurePath) -> None:
        """Create a directory and its parents; fine if it is there."""
        ...

    def rename(self, old: PurePath, new: PurePath) -> None:
        """Move, replacing what is at `new` (for a file). Durable only after `sync_directory`."""
        ...

    def remove(self, path: PurePath) -> None:
        """Delete a file; fine if it is gone."""
        ...

    def remove_tree(self, path: PurePath) -> None:
        """Delete a directory and everything in it; fine if it is gone."""
        ...

    def sync_directory(self, path: PurePath) -> None:
        """Make the names in a directory durable. Raises SyncFailed; any other OSError came before the sync."""
        ...

    def size_of(self, path: PurePath) -> int:
        """A file's length in bytes."""
        ...

    def modified_ns(self, path: PurePath) -> int:
        """When a file's content was last written: damage does not move it, another program that writes does."""
        ...

    def free_bytes(self, path: PurePath) -> int:
        """Room left on the disk below `path`."""
        ...

    def total_bytes(self, path: PurePath) -> int:
        """Size of the disk below `path`."""
        ...

    def lock(self, path: PurePath) -> Lock:
        """Take the lock file or raise BlockingIOError if another process holds it."""
        ...


class Lock(Protocol):
    """A lock held between processes until released or until this process dies."""

    def release(self) -> None:
        """Give it back."""
        ...

    def check_present(self) -> None:
        """Raises OSError where the lock file is not at its place any more: somebody has removed the directory."""
        ...


def replace_file(files: FileSystem, path: PurePath, data: bytes) -> None:
    """Put `data` at `path` so that after a crash either the old or the new content is there, whole.

    Write aside, sync, rename, sync the directory. Raises OSError, then the old content is there; SyncFailed.
    """
    aside = path.with_name(path.name + _TEMPORARY)
    files.remove(aside)
    file = files.open(aside, create=True)
    try:
        file.append(data)
        file.sync()
    finally:
        file.close()
    files.rename(aside, path)
    files.sync_directory(path.parent)


def read_file(files: FileSystem, path: PurePath) -> bytes:
    """All of a small file."""
    file = files.open(path)
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


class SystemFile:
    """A file of the operating system."""

    __slots__ = ("_descriptor", "_size")

    def __init__(self, path: PurePath, *, create: bool, writable: bool = True) -> None:
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        self._descriptor = -1
        self._descriptor = os.open(path, flags, 0o644)
        self._size = os.fstat(self._descriptor).st_size

    def append(self, data: Buffer) -> None:
        """Write at the end; the usual case is one system call and no copy."""
        written = os.pwrite(self._descriptor, data, self._size)
        self._size += written
        view = memoryview(data)
        while written < view.nbytes:  # a short write: the disk is nearly full, or a signal came
            more = os.pwrite(self._descriptor, view[written:], self._size)
            self._size += more
            written += more

    def write_at(self, position: int, data: Buffer) -> None:
        """Write in the middle, for indexes."""
        view = memoryview(data)
        while view.nbytes:
            written = os.pwrite(self._descriptor, view, position)
            view, position = view[written:], position + written
        self._size = max(self._size, position)

    def read_at(self, position: int, size: int) -> bytes:
        """Read without moving any file position."""
        return os.pread(self._descriptor, size, position)

    def truncate(self, size: int) -> None:
        """Cut the file."""
        os.ftruncate(self._descriptor, size)
        self._size = size

    def sync(self) -> None:
        """Data and length reach the disk; the modification time need not."""
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror) from error

    def size(self) -> int:
        """Kept here: asking the system costs a call per append."""
        return self._size

    def descriptor(self) -> int | None:
        """For sendfile."""
        return self._descriptor

    def close(self) -> None:
        """Close once."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    __del__ = close


class SystemLock:
    """An flock, which the system gives back when the process dies."""

    def __init__(self, path: PurePath) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise

    def release(self) -> None:
        """Closing gives the lock back."""
        os.close(self._descriptor)

    def check_present(self) -> None:
        """The file at the path must be the one that is locked."""
        there, ours = os.stat(self._path), os.fstat(self._descriptor)
        if (there.st_ino, there.st_dev) != (ours.st_ino, ours.st_dev):
            raise FileNotFoundError(errno.ENOENT, "replaced by another file", str(self._path))


class SystemFiles:
    """The operating system's directory tree. At most `kept_open_max` files stay open between uses; None: no limit.

    Without `writable` files are opened for reading alone: for those who look at what belongs to others.
    """

    def __init__(self, *, kept_open_max: int | None = None, writable: bool = True) -> None:
        self.kept_open = KeptOpen(kept_open_max)
        self._writable = writable

    def open(self, path: PurePath, *, create: bool = False) -> File:
        """Open a file for reading and writing."""
        return SystemFile(path, create=create, writable=self._writable)

    def exists(self, path: PurePath) -> bool:
        """Whether something is there."""
        return os.path.exists(path)

    def is_directory(self, path: PurePath) -> bool:
        """Whether a directory is there."""
        return os.path.isdir(path)

    def names_in(self, directory: PurePath) -> list[str]:
        """Sorted, because tests and people like the same order twice."""
        return sorted(os.listdir(directory))

    def make_directory(self, path: PurePath) -> None:
        """Create with parents."""
        os.makedirs(path, exist_ok=True)

    def rename(self, old: PurePath, new: PurePath) -> None:
        """Atomic on one file system."""
        os.replace(old, new)

    def remove(self, path: PurePath) -> None:
        """Delete; a missing file is no error."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_tree(self, path: PurePath) -> None:
        """Delete a whole directory."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def sync_directory(self, path: PurePath) -> None:
        """Without this a rename may be undone by a power cut."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror) from error
        finally:
            os.close(descriptor)

    def size_of(self, path: PurePath) -> int:
        """Bytes in the file."""
        return os.stat(path).st_size

    def modified_ns(self, path: PurePath) -> int:
        """The system's own note of the last write."""
        return os.stat(path).st_mtime_ns

    def free_bytes(self, path: PurePath) -> int:
        """What an unprivileged process may still write."""
        stat = os.statvfs(path)
        return stat.f_bavail * stat.f_frsize

    def total_bytes(self, path: PurePath) -> int:
        """The disk's size."""
        stat = os.statvfs(path)
        return stat.f_blocks * stat.f_frsize

    def lock(self, path: PurePath) -> Lock:
        """Take the lock or fail at once."""
        return SystemLock(path)
