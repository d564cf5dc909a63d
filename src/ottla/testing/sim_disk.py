"""Simulates a disk in memory that loses and tears unsynced writes and fails operations, for tests of all file access.

    disk = SimDisk()
    disk.stop_at(17)                     the 17th change from now and everything after it raises PowerCut
    ...                                  run the program until it raises PowerCut
    disk.power_cut(random.Random(seed))  apply the power cut
    ...                                  open everything again and check what was kept

To enumerate all states that a power cut may leave, instead of a random one:

    for number in range(disk.states()):
        after = disk.state(number)       another disk, in one of these states

Writes that no sync has covered may be kept, lost or torn, as on a real disk (`sim_disk_state.py`). A failed fsync loses
the pages: the next one succeeds without writing them, as in Linux; programs read them until the power is cut, or (as
the system may drop clean pages at any time) not even until then. On a disk that `lies` a sync has no effect: a test
can show with it that it would detect a missing sync.

All randomness comes from a `random.Random` argument, so that a seed replays a failure.
"""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from collections.abc import Callable
from enum import Enum
from pathlib import PurePath

from ottla.core.errors import SyncFailed
from ottla.core.files import Buffer, read_file
from ottla.core.open_files import OpenFileCache
from ottla.testing.sim_disk_state import PAGE_BYTES, Directory, Inode, RevertibleDirectory, RevertibleInode


class PowerCut(BaseException):
    """The machine stopped. Every call raises this until `SimDisk.power_cut` is called."""


class Survival(Enum):
    """The fate of unsynced writes in a power cut."""

    KEPT = "kept"
    LOST = "lost"
    TORN = "torn"  # random per page, sector, length and run of names
    NOTHING = "nothing"  # the disk is replaced by an empty one


POWER_CUTS = (Survival.KEPT, Survival.LOST, Survival.TORN)
"""The fates in which what was synced survives."""


class SimDisk:
    """A file system whose power can be cut and whose n-th change can fail."""

    def __init__(
        self,
        *,
        capacity_bytes: int = 1 << 40,
        lies: bool = False,
        drops_failed_pages: bool = False,
        is_revertible: bool = False,
        root: Directory | None = None,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.lies = lies  # every sync succeeds without an effect
        self.drops_failed_pages = drops_failed_pages  # from the page cache, after a failed sync
        self.changes = 0  # the number of changes so far; `stop_at` and `fail_at` count them
        self.history: list[str] = []  # one line for each change, for the message of a failing test; not if revertible
        self._is_revertible = is_revertible  # a power cut loses all that is not synced: what else it may do is not kept
        self._root = root or self._directory_type()
        self._used_bytes = sum(len(inode.data) for inode in self._root.inodes())
        self._ticks = max((inode.modified for inode in self._root.inodes()), default=0)
        self.open_file_cache = OpenFileCache()
        self._locks: set[PurePath] = set()
        self._life = 0  # handles from before a power cut are invalid
        self._stop_at: int | None = None
        self._is_off = False
        self._cut_short: tuple[PurePath, int, bytes] | None = None  # the write that the power cut prevented
        self._fail_at: dict[int, int] = {}
        self._refusing: dict[str, tuple[int, str]] = {}
        self._full: PurePath | None = None
        self.refusals: Counter[str] = Counter()  # by the kind of the operation; those for want of space are "full"
        self.before: dict[str, Callable[[], None]] = {}  # called before each operation of a kind, of those of `refuse`

    # ---- For tests

    def stop_at(self, nth: int) -> None:
        """Raise PowerCut at the n-th change from now (1 is the next)."""
        self._stop_at = self.changes + nth

    def set_clock(self, now_ms: int) -> None:
        """Set the time of the next writes (`modified_ns`); by default it is soon after 1970."""
        self._ticks = max(self._ticks, now_ms * 1_000_000)

    def fail_at(self, nth: int, error: int = errno.EIO) -> None:
        """Raise OSError with this number at the n-th change from now; a write may be half done."""
        self._fail_at[self.changes + nth] = error

    def refuse(self, error: int, *kinds: str, under: PurePath | None = None) -> None:
        """Raise OSError with this number at every operation of these kinds, until `stop_refusing`.

        Kinds are the first words of `history` (create, write, truncate, mkdir, rename, remove, rmdir, sync), and open
        and read, which change nothing. `under` limits this to one directory.
        """
        self._refusing.update(dict.fromkeys(kinds, (error, f"{under}/" if under is not None else "")))

    def stop_refusing(self, *kinds: str) -> None:
        """End the refusals of operations of these kinds, or all."""
        for kind in kinds or tuple(self._refusing):
            self._refusing.pop(kind, None)

    def fill(self, path: PurePath) -> None:
        """Leave no space at or below a path, until `free`."""
        self._full = path

    def free(self) -> None:
        """Give space again."""
        self._full = None

    def is_full(self, path: PurePath) -> bool:
        """Return whether a test has filled the disk at a path."""
        return self._full is not None and (path == self._full or self._full in path.parents)

    def power_cut(self, rng: random.Random, survival: Survival = Survival.TORN) -> None:
        """Apply a power cut. Open handles become invalid, locks are released, planned failures are cleared."""
        match survival:
            case Survival.NOTHING:
                self._root = self._directory_type()
            case Survival.KEPT:
                self._root = self._root.kept()
            case Survival.LOST:
                self._root = self._root.state(0)
            case Survival.TORN:
                self._root = self._root.torn(rng)
        self._life += 1
        self._locks.clear()
        self._fail_at.clear()
        self._refusing.clear()
        self._stop_at, self._is_off, self._cut_short = None, False, None
        self._used_bytes = sum(len(inode.data) for inode in self._root.inodes())

    def erase(self) -> None:
        """Forget all files: brokers are cycles of objects, which keep a disk until they are collected."""
        for inode in self._root.inodes():
            inode.erase()
        self._root = self._directory_type()
        self._used_bytes = 0

    def states(self) -> int:
        """Return the number of states that a power cut could leave now: each dirty page, length and run of names."""
        return self._root.states()

    def state(self, number: int) -> SimDisk:
        """Return another disk in one of the `states` that a power cut could leave now; 0 has no unsynced write."""
        return SimDisk(capacity_bytes=self.capacity_bytes, lies=self.lies, root=self._root.state(number))

    def torn(self, rng: random.Random) -> SimDisk:
        """Return another disk as a power cut could leave it now, with torn pages that `states` does not count."""
        return SimDisk(capacity_bytes=self.capacity_bytes, lies=self.lies, root=self._root.torn(rng))

    def killed(self) -> list[SimDisk]:
        """Return other disks as SIGKILL may leave this one: with all writes, synced or not.

        The write that `stop_at` prevented may be half done: one disk for each page of it.
        """
        disks = [SimDisk(capacity_bytes=self.capacity_bytes, lies=self.lies, root=self._root.kept())]
        if self._cut_short is not None:
            path, position, raw = self._cut_short
            for end in range(PAGE_BYTES - position % PAGE_BYTES, len(raw), PAGE_BYTES):
                half_done = SimDisk(capacity_bytes=self.capacity_bytes, lies=self.lies, root=self._root.kept())
                half_done.open(path).write_at(position, raw[:end])
                disks.append(half_done)
        return disks

    def image(self) -> tuple[tuple[str, object], ...]:
        """Return all names and the bytes of all files, for comparisons."""
        return self._root.image()

    def process_died(self) -> None:
        """Apply a SIGKILL: handles become invalid and locks are released, but all writes are kept."""
        self._life += 1
        self._locks.clear()

    def flip_bit(self, path: PurePath, bit: int) -> None:
        """Corrupt a file, both its synced and its visible content."""
        self._inode(path).flip_bit(bit)

    # ---- FileSystem

    def open(self, path: PurePath, *, create: bool = False) -> SimFile:
        """Open a file; creating it is a change."""
        self._check_power()
        self.refuse_if_planned("open", str(path))
        parent, node = self._parent(path), self._node(path)
        if isinstance(node, Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            self.check_space(path)
            self.step(f"create {path}")
            node = (RevertibleInode if self._is_revertible else Inode)(modified=self.tick())
            parent.change({path.name: node})
        return SimFile(self, node, path)

    def read(self, path: str) -> bytes:
        """Read a file."""
        return read_file(self, PurePath(path))

    def exists(self, path: PurePath) -> bool:
        """Return whether a file or directory of this name exists."""
        return self._node(path) is not None

    def is_directory(self, path: PurePath) -> bool:
        """Return whether a directory of this name exists."""
        return isinstance(self._node(path), Directory)

    def names_in(self, directory: PurePath) -> list[str]:
        """Return the sorted names of a directory."""
        return sorted(self._directory(directory).names)

    def make_directory(self, path: PurePath) -> None:
        """Create a directory and its parents."""
        self.check_space(path)
        at = self._root
        for part in path.parts[1:]:
            node = at.names.get(part)
            if isinstance(node, Inode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            if node is None:
                self.step(f"mkdir {path}")
                node = self._directory_type()
                at.change({part: node})
            at = node

    def rename(self, old: PurePath, new: PurePath) -> None:
        """Rename a file; within one directory this is one change, as in a journal."""
        self.step(f"rename {old} {new}")
        node = self._node(old)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(old))
        source, target = self._parent(old), self._parent(new)
        self._forget(self._node(new))
        if source is target:
            source.change({old.name: None, new.name: node})
        else:
            target.change({new.name: node})
            source.change({old.name: None})

    def remove(self, path: PurePath) -> None:
        """Remove a file if it exists."""
        node = self._node(path)
        if node is not None:
            self.step(f"remove {path}")
            self._forget(node)
            self._parent(path).change({path.name: None})

    def remove_tree(self, path: PurePath) -> None:
        """Remove a directory name by name, as rmtree does."""
        node = self._node(path)
        if isinstance(node, Directory):
            for name in sorted(node.names):
                child = path / name
                if self.is_directory(child):
                    self.remove_tree(child)
                else:
                    self.remove(child)
        if node is not None:
            self.step(f"rmdir {path}")
            self._parent(path).change({path.name: None})

    def sync_directory(self, path: PurePath) -> None:
        """Make the names of this directory durable; not those of its parents, nor the content of its files."""
        try:
            self.step(f"sync directory {path}")
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror, str(path)) from error
        directory = self._directory(path)
        if not self.lies:
            directory.sync()

    def size_of(self, path: PurePath) -> int:
        """Return the size in bytes, synced or not."""
        return len(self._inode(path).data)

    def modified_ns(self, path: PurePath) -> int:
        """Return the time of the last write; no two writes have the same time."""
        return self._inode(path).modified

    def is_linked(self, inode: Inode) -> bool:
        """Return whether a file has a name."""
        return self._root.contains(inode)

    def free_bytes(self, path: PurePath) -> int:
        """Return the free space in bytes."""
        return 0 if self.is_full(path) else self.capacity_bytes - self._used_bytes

    def total_bytes(self, path: PurePath) -> int:
        """Return the capacity in bytes."""
        del path  # there is one disk
        return self.capacity_bytes

    def lock(self, path: PurePath) -> SimLock:
        """Lock a file until it is released or until a power cut."""
        self._check_power()
        if path in self._locks:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(path))
        self.open(path, create=True)
        self._locks.add(path)
        return SimLock(self, self._locks, path)

    # ---- For SimFile

    @property
    def life(self) -> int:
        """The number of power cuts and process deaths so far."""
        return self._life

    def step(self, what: str) -> None:
        """Count a change, and stop or fail if that was planned."""
        self._check_power()
        self.changes += 1
        if not self._is_revertible:
            self.history.append(what)
        if self._stop_at is not None and self.changes >= self._stop_at:
            self._is_off = True
            raise PowerCut(what)
        error = self._fail_at.pop(self.changes, None)
        if error is not None:
            raise OSError(error, os.strerror(error), what)
        self.refuse_if_planned(*what.split(" ", 1))

    def refuse_if_planned(self, kind: str, what: str) -> None:
        """Raise the OSError that a test has planned for all operations of a kind."""
        if (before := self.before.get(kind)) is not None:
            before()
        error, where = self._refusing.get(kind, (0, ""))
        if error and where in f"{what}/":
            self.refusals[kind] += 1
            raise OSError(error, os.strerror(error), what)

    def tick(self) -> int:
        """Return the time of the next write, later than all before."""
        self._ticks += 1
        return self._ticks

    def check_space(self, path: PurePath) -> None:
        """Raise OSError where a test has filled the disk."""
        if self.is_full(path):
            self.refusals["full"] += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def cut_short(self, path: PurePath, position: int, raw: bytes) -> None:
        """Note the write that a power cut prevented; only the first one was in progress."""
        if self._cut_short is None:
            self._cut_short = path, position, raw

    def grow(self, more_bytes: int) -> int:
        """Allocate up to `more_bytes`; returns the number of bytes that were free."""
        granted = min(more_bytes, self.capacity_bytes - self._used_bytes)
        self._used_bytes += granted
        return granted

    @property
    def _directory_type(self) -> type[Directory]:
        return RevertibleDirectory if self._is_revertible else Directory

    def _check_power(self) -> None:
        if self._is_off:
            raise PowerCut("the power is off")

    def _forget(self, node: Inode | Directory | None) -> None:
        if isinstance(node, Inode):
            self._used_bytes -= len(node.data)

    def _node(self, path: PurePath) -> Inode | Directory | None:
        node: Inode | Directory | None = self._root
        for part in path.parts[1:]:
            node = node.names.get(part) if isinstance(node, Directory) else None
        return node

    def _directory(self, path: PurePath) -> Directory:
        node = self._node(path)
        if not isinstance(node, Directory):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return node

    def _parent(self, path: PurePath) -> Directory:
        return self._directory(path.parent)

    def _inode(self, path: PurePath) -> Inode:
        node = self._node(path)
        if not isinstance(node, Inode):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return node


class SimFile:
    """An open file of a `SimDisk`."""

    def __init__(self, disk: SimDisk, inode: Inode, path: PurePath) -> None:
        self._disk = disk
        self._inode = inode
        self._path = path
        self._life = disk.life
        self._is_open = True

    def append(self, data: Buffer) -> int:
        """Append data; a failure leaves half of it in the file."""
        self.write_at(len(self._inode.data), data)
        return len(self._inode.data)

    def write_at(self, position: int, data: Buffer) -> None:
        """Write data at a position; a failure leaves half of it in the file."""
        raw = bytes(data)
        self._disk.check_space(self._path)
        try:
            self._step("write")
        except PowerCut:
            self._disk.cut_short(self._path, position, raw)
            raise
        except OSError as error:
            if error.errno != errno.EBADF:
                self._put(position, raw[: len(raw) // 2])
            raise
        granted = self._disk.grow(max(position + len(raw) - len(self._inode.data), 0))
        fits = len(self._inode.data) + granted - position
        self._put(position, raw[:fits])
        if fits < len(raw):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))

    def read_at(self, position: int, size: int) -> bytes:
        """Read bytes, synced or not."""
        self._check()
        self._disk.refuse_if_planned("read", str(self._path))
        return bytes(self._inode.data[position : position + size])

    def truncate(self, size: int) -> None:
        """Truncate the file, or extend it with zeros."""
        self._step("truncate")
        length = len(self._inode.data)
        self._inode.resize(length + self._disk.grow(size - length))
        self._inode.modified = self._disk.tick()

    def sync(self) -> None:
        """Make all writes durable; if this fails they never become durable."""
        try:
            self._step("sync")
        except OSError as error:
            self._inode.forget(drops=self._disk.drops_failed_pages)
            raise SyncFailed(error.errno, error.strerror, str(self._path)) from error
        if not self._disk.lies:
            self._inode.sync()

    def size(self) -> int:
        """Return the size in bytes, synced or not."""
        return len(self._inode.data)

    def is_linked(self) -> bool:
        """Return whether the file has a name."""
        return self._disk.is_linked(self._inode)

    def descriptor(self) -> int | None:
        """Return None: there is no file descriptor."""
        return None

    def close(self) -> None:
        """Close the file; a second call has no effect."""
        self._is_open = False

    def _put(self, position: int, raw: bytes) -> None:
        self._inode.write(position, raw)
        self._inode.modified = self._disk.tick()

    def _step(self, what: str) -> None:
        self._check()
        self._disk.step(f"{what} {self._path}")

    def _check(self) -> None:
        if not self._is_open or self._life != self._disk.life:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self._path))


class SimLock:
    """A lock of a `SimDisk`."""

    def __init__(self, disk: SimDisk, held: set[PurePath], path: PurePath) -> None:
        self._disk = disk
        self._held = held
        self._path = path

    def release(self) -> None:
        """Release the lock."""
        self._held.discard(self._path)

    def check_linked(self) -> None:
        """Raise FileNotFoundError if the file of the lock was deleted."""
        self.check_present()

    def check_present(self) -> None:
        """Raise FileNotFoundError if the file of the lock was removed."""
        self._disk.size_of(self._path)
