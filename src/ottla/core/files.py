"""Declares ports to the disk and implements them with the operating system.

`SystemFiles` is the real implementation; `testing/sim_disk.py` simulates crashes, torn writes and errors. The broker
accesses its files only through these ports, so crash tests cover all of it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import PurePath
from typing import Final, NamedTuple, Protocol

from ottla.core.errors import SyncFailed
from ottla.core.open_files import OpenFileCache

Buffer = bytes | bytearray | memoryview

_TEMPORARY: Final = ".tmp"
_SMALL_FILE_BYTES: Final = 4 << 10
_LARGE_READ_BYTES: Final = 16 << 20
_NO_FULL_SYNC: Final = frozenset({errno.ENOTSUP, errno.EINVAL, errno.ENOTTY})  # of file systems without F_FULLFSYNC
_DELETED: Final = " (deleted)"  # Linux shows it after the path of an open file whose name was removed


class File(Protocol):
    """Port: one open file."""

    def append(self, data: Buffer) -> int:
        """Write all of `data`, a buffer of bytes, at the end; returns the new size.

        After an OSError the end may hold part of it: truncate before going on.
        """
        ...

    def write_at(self, position: int, data: Buffer) -> None:
        """Write all of `data` at `position`."""
        ...

    def read_at(self, position: int, size: int) -> bytes:
        """Read up to `size` bytes from `position`; fewer only at the end of the file."""
        ...

    def truncate(self, size: int) -> None:
        """Truncate or extend to `size` bytes."""
        ...

    def sync(self) -> None:
        """Return once every byte written so far would survive a power cut. May be called from another thread.

        Raises SyncFailed.
        """
        ...

    def size(self) -> int:
        """Return the length of the file in bytes, without a system call."""
        ...

    def is_linked(self) -> bool:
        """Return whether the file has a name: a removed file can still be written and synced. One system call."""
        ...

    def descriptor(self) -> int | None:
        """Return the file descriptor, for sendfile; None for a simulated file."""
        ...

    def close(self) -> None:
        """Close the file. Calling it twice is harmless; a file without references closes itself."""
        ...


class FileRegion(NamedTuple):
    """A range of bytes of an open file, to be sent without reading it."""

    file: File
    position: int
    size: int

    def descriptor(self) -> int | None:
        """Return the kernel's number for the file, for sendfile; None on a simulated disk."""
        return self.file.descriptor()

    def read(self) -> bytes:
        """Read the bytes themselves; fewer than `size` if the file has become shorter."""
        return self.file.read_at(self.position, self.size)


class FileAccess(Protocol):
    """Port: opens and inspects files. Paths are absolute."""

    @property
    def open_file_cache(self) -> OpenFileCache:
        """Return the files that stay open between uses."""
        ...

    def open(self, path: PurePath, *, create: bool = False) -> File:
        """Open for reading and writing. Without `create` a missing file is FileNotFoundError."""
        ...

    def read(self, path: str) -> bytes:
        """Read a small file. A start reads tens of thousands of them, for which no paths and files are made."""
        ...

    def exists(self, path: PurePath) -> bool:
        """Return whether a file or directory exists."""
        ...

    def is_directory(self, path: PurePath) -> bool:
        """Return whether a directory exists."""
        ...

    def names_in(self, directory: PurePath) -> list[str]:
        """List the names in a directory, sorted."""
        ...

    def size_of(self, path: PurePath) -> int:
        """Return the length of a file in bytes."""
        ...

    def modified_ns(self, path: PurePath) -> int:
        """Return when a file was last written: corruption does not change it, a write by another program does."""
        ...


class DirectoryAccess(Protocol):
    """Port: creates, renames and removes files and directories. Paths are absolute."""

    def make_directory(self, path: PurePath) -> None:
        """Create a directory and its parents; fine if it exists."""
        ...

    def rename(self, old: PurePath, new: PurePath) -> None:
        """Rename, replacing a file at `new`. Durable only after `sync_directory`."""
        ...

    def remove(self, path: PurePath) -> None:
        """Delete a file; fine if it does not exist."""
        ...

    def remove_tree(self, path: PurePath) -> None:
        """Delete a directory and its content; fine if it does not exist."""
        ...

    def sync_directory(self, path: PurePath) -> None:
        """Make the names in a directory durable. Raises SyncFailed; any other OSError came before the sync."""
        ...

    def lock(self, path: PurePath) -> Lock:
        """Lock a lock file or raise BlockingIOError if another process holds it."""
        ...


class DiskSpace(Protocol):
    """Port: reports the space of the disk that holds a path."""

    def free_bytes(self, path: PurePath) -> int:
        """Return the free space of the disk."""
        ...

    def total_bytes(self, path: PurePath) -> int:
        """Return the size of the disk."""
        ...


class FileSystem(FileAccess, DirectoryAccess, DiskSpace, Protocol):
    """Combines the three ports, for code that creates and replaces files as well as reads them."""


class Lock(Protocol):
    """Port: a lock between processes, held until it is released or this process ends."""

    def release(self) -> None:
        """Release the lock."""
        ...

    def check_linked(self) -> None:
        """Raise OSError if the lock file was deleted, with its directory: one system call, for each group commit."""
        ...

    def check_present(self) -> None:
        """Raise OSError if the lock file is no longer at its path: deleted, moved away or replaced."""
        ...


def replace_file(files: FileSystem, path: PurePath, data: bytes) -> None:
    """Replace the content of a file atomically: after a crash it is either the old or the new content.

    Writes a temporary file, syncs, renames and syncs the directory. Raises SyncFailed; after another OSError the old
    content is kept.
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


def read_file(files: FileAccess, path: PurePath) -> bytes:
    """Read a small file."""
    file = files.open(path)
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


def _sync_fully(descriptor: int) -> None:
    """Sync a file or a directory. On macOS `fsync` leaves the data in the cache of the drive, F_FULLFSYNC does not."""
    if hasattr(fcntl, "F_FULLFSYNC"):
        try:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in _NO_FULL_SYNC:
                raise
        else:
            return
    os.fsync(descriptor)


_sync_data: Final[Callable[[int], None]] = os.fdatasync if hasattr(os, "fdatasync") else _sync_fully  # none on macOS


class SystemFile:
    """Implements `File` with the operating system."""

    __slots__ = ("_descriptor", "_size")

    def __init__(self, path: PurePath, *, create: bool, writable: bool = True) -> None:
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        self._descriptor = -1
        self._descriptor = os.open(path, flags, 0o644)
        self._size = os.fstat(self._descriptor).st_size

    def append(self, data: Buffer) -> int:
        """Write at the end. Returns the new size."""
        self.write_at(self._size, data)
        return self._size

    def write_at(self, position: int, data: Buffer) -> None:
        """Write at a position; the usual case is one system call and no copy."""
        written = os.pwrite(self._descriptor, data, position)
        self._size = max(self._size, position + written)
        if written < len(data):  # a short write: the disk is nearly full, or a signal came
            self.write_at(position + written, memoryview(data)[written:])

    def read_at(self, position: int, size: int) -> bytes:
        """Read without changing the file position."""
        return os.pread(self._descriptor, size, position)

    def truncate(self, size: int) -> None:
        """Truncate the file."""
        os.ftruncate(self._descriptor, size)
        self._size = size

    def sync(self) -> None:
        """Sync data and length; the modification time need not be durable."""
        try:
            _sync_data(self._descriptor)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror) from error

    def size(self) -> int:
        """Return the size kept here: a system call per append would cost more."""
        return self._size

    def is_linked(self) -> bool:
        """Look for the name of the open file, without `stat`: it would make each later fdatasync slower.

        From Linux 6.13 on a write after a `stat` gives the file a new time, which is more to sync
        (docs/design/durability.md).
        """
        try:
            return not os.readlink(f"/proc/self/fd/{self._descriptor}").endswith(_DELETED)
        except FileNotFoundError:  # there is no /proc here
            return os.fstat(self._descriptor).st_nlink > 0

    def descriptor(self) -> int | None:
        """Return the descriptor, for sendfile."""
        return self._descriptor

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class SystemLock:
    """Implements `Lock` with flock, which the system releases when the process ends."""

    def __init__(self, path: PurePath) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise
        locked = os.fstat(self._descriptor)
        self._identity = (locked.st_ino, locked.st_dev)

    def release(self) -> None:
        """Release it, also where a process that was forked has the descriptor still."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)

    def check_linked(self) -> None:
        """Raise FileNotFoundError for a deleted file: it has no name left, though its descriptor works."""
        if not os.fstat(self._descriptor).st_nlink:
            raise FileNotFoundError(errno.ENOENT, "deleted while it was locked", str(self._path))

    def check_present(self) -> None:
        """Check that the file at the path is the locked one."""
        there = os.stat(self._path)
        if (there.st_ino, there.st_dev) != self._identity:
            raise FileNotFoundError(errno.ENOENT, "replaced by another file", str(self._path))


class SystemFiles:
    """Implements `FileSystem` with the operating system. At most `open_files_max` files stay open; None: no limit.

    With `writable=False` files are opened read-only, to inspect the files of another process.
    """

    def __init__(self, *, open_files_max: int | None = None, writable: bool = True) -> None:
        self.open_file_cache = OpenFileCache(open_files_max)
        self._writable = writable

    def open(self, path: PurePath, *, create: bool = False) -> File:
        """Open a file for reading and writing."""
        return SystemFile(path, create=create, writable=self._writable)

    def read(self, path: str) -> bytes:
        """Read a file in three system calls, if it is small."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.pread(descriptor, _SMALL_FILE_BYTES, 0)
            if len(data) == _SMALL_FILE_BYTES:
                while more := os.pread(descriptor, _LARGE_READ_BYTES, len(data)):
                    data += more
            return data
        finally:
            os.close(descriptor)

    def exists(self, path: PurePath) -> bool:
        """Return whether the path exists."""
        return os.path.exists(path)

    def is_directory(self, path: PurePath) -> bool:
        """Return whether the path is a directory."""
        return os.path.isdir(path)

    def names_in(self, directory: PurePath) -> list[str]:
        """List sorted names, so that the order is deterministic."""
        return sorted(os.listdir(directory))

    def make_directory(self, path: PurePath) -> None:
        """Create a directory with its parents."""
        os.makedirs(path, exist_ok=True)

    def rename(self, old: PurePath, new: PurePath) -> None:
        """Rename atomically."""
        os.replace(old, new)

    def remove(self, path: PurePath) -> None:
        """Delete a file; fine if it does not exist."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_tree(self, path: PurePath) -> None:
        """Delete a directory tree."""
        with contextlib.suppress(FileNotFoundError):
            import shutil  # with its codecs it takes 2 ms of a start

            shutil.rmtree(path)

    def sync_directory(self, path: PurePath) -> None:
        """Sync a directory: without it a power cut may undo a rename."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _sync_fully(descriptor)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror) from error
        finally:
            os.close(descriptor)

    def size_of(self, path: PurePath) -> int:
        """Return the size of a file."""
        return os.stat(path).st_size

    def modified_ns(self, path: PurePath) -> int:
        """Return the modification time."""
        return os.stat(path).st_mtime_ns

    def free_bytes(self, path: PurePath) -> int:
        """Return the bytes that an unprivileged process may write."""
        stat = os.statvfs(path)
        return stat.f_bavail * stat.f_frsize

    def total_bytes(self, path: PurePath) -> int:
        """Return the size of the disk."""
        stat = os.statvfs(path)
        return stat.f_blocks * stat.f_frsize

    def lock(self, path: PurePath) -> Lock:
        """Lock or fail at once."""
        return SystemLock(path)
