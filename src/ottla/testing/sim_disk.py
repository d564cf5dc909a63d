"""A disk in memory that loses, tears and refuses: `core/files.FileSystem` for tests of anything that keeps files.

    disk = SimDisk()
    disk.stop_at(17)                     the 17th change from now never happens: PowerCut is raised, and by all after it
    ...                                  run the program until PowerCut comes out
    disk.power_cut(random.Random(seed))  what is left when the power comes back
    ...                                  open everything again and see what was kept

Or, to see all that may be left of one moment and not one of it:

    for number in range(disk.states()):
        after = disk.state(number)       another disk, with one of the things a power cut may leave

What a sync has not covered may be kept, lost or torn, as on a real disk: `sim_platter.py` says how. A failed fsync
loses the pages for good: the next one succeeds without writing them, as Linux does. A disk that `lies` does nothing at
any sync: what shows that a test would notice a sync that is missing.

Everything random comes from the `random.Random` given, so that a seed replays a failure.
"""

from __future__ import annotations

import errno
import os
import random
from enum import Enum
from pathlib import PurePath

from ottla.core.files import Buffer, SyncFailed
from ottla.core.open_files import KeptOpen
from ottla.testing.sim_platter import PAGE_BYTES, Directory, Inode


class PowerCut(Exception):
    """The machine stopped. Every call raises this until `SimDisk.power_cut` has settled what is left."""


class Survival(Enum):
    """What becomes of what was not synced."""

    KEPT = "kept"
    LOST = "lost"
    TORN = "torn"  # each page, each sector, each length and each run of names as the dice fall


class SimDisk:
    """A file system whose power can be cut and whose n-th change can fail."""

    def __init__(self, *, capacity_bytes: int = 1 << 40, lies: bool = False, root: Directory | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.lies = lies  # every sync says that it was done and does nothing
        self.changes = 0  # how many changes were asked for: what `stop_at` and `fail_at` count
        self.history: list[str] = []  # one line for each, for a failing test's message
        self._root = root or Directory()
        self._used_bytes = sum(len(inode.data) for inode in self._root.inodes())
        self._ticks = max((inode.modified for inode in self._root.inodes()), default=0)
        self.kept_open = KeptOpen()
        self._locks: set[PurePath] = set()
        self._life = 0  # a handle from before a power cut is dead
        self._stop_at: int | None = None
        self._is_off = False
        self._cut_short: tuple[PurePath, int, bytes] | None = None  # the write that was to be when the power went
        self._fail_at: dict[int, int] = {}
        self._refusing: dict[str, tuple[int, str]] = {}

    # What a test does -------------------------------------------------------------------------------------------------

    def stop_at(self, nth: int) -> None:
        """The n-th change from now (1 is the next) does not happen any more."""
        self._stop_at = self.changes + nth

    def set_clock(self, now_ms: int) -> None:
        """What is written from now on is written then (`modified_ns`); without this, soon after the epoch."""
        self._ticks = max(self._ticks, now_ms * 1_000_000)

    def fail_at(self, nth: int, error: int = errno.EIO) -> None:
        """The n-th change from now raises OSError with this number; a write may be half done by then."""
        self._fail_at[self.changes + nth] = error

    def refuse(self, error: int, *kinds: str, under: PurePath | None = None) -> None:
        """From now on every operation of these kinds raises OSError with this number, until `relent`.

        Kinds are the first words of `history` (create, write, truncate, mkdir, rename, remove, rmdir, sync), and open
        and read, which change nothing. With `under` only what lies in that directory is refused.
        """
        self._refusing.update(dict.fromkeys(kinds, (error, f"{under}/" if under is not None else "")))

    def relent(self) -> None:
        """What was refused is possible again."""
        self._refusing.clear()

    def power_cut(self, rng: random.Random, survival: Survival = Survival.TORN) -> None:
        """Settle what is left and start again. Old handles are dead, locks are free, planned trouble is forgotten."""
        match survival:
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

    def states(self) -> int:
        """In how many states a power cut now might leave the disk: each dirty page, length and run of names."""
        return self._root.states()

    def state(self, number: int) -> SimDisk:
        """Another disk, in one of the `states` that a power cut now might leave; 0 has nothing that was not synced."""
        return SimDisk(capacity_bytes=self.capacity_bytes, lies=self.lies, root=self._root.state(number))

    def torn(self, rng: random.Random) -> SimDisk:
        """Another disk, as a power cut now might leave it: with torn pages that `states` does not count."""
        return SimDisk(capacity_bytes=self.capacity_bytes, lies=self.lies, root=self._root.torn(rng))

    def killed(self) -> list[SimDisk]:
        """Other disks, as kill -9 may leave this one: all that programs see is there.

        The write that `stop_at` kept from happening may be half done: one disk for each page of it.
        """
        found = [SimDisk(capacity_bytes=self.capacity_bytes, lies=self.lies, root=self._root.kept())]
        if self._cut_short is not None:
            path, position, raw = self._cut_short
            for end in range(PAGE_BYTES - position % PAGE_BYTES, len(raw), PAGE_BYTES):
                half_done = SimDisk(capacity_bytes=self.capacity_bytes, lies=self.lies, root=self._root.kept())
                half_done.open(path).write_at(position, raw[:end])
                found.append(half_done)
        return found

    def image(self) -> tuple[tuple[str, object], ...]:
        """Every name and every file's bytes, to be compared."""
        return self._root.image()

    def process_died(self) -> None:
        """Kill -9: handles are dead and locks free, but the system still holds all that was written."""
        self._life += 1
        self._locks.clear()

    def flip_bit(self, path: PurePath, bit: int) -> None:
        """Damage a file, on the platter and in sight."""
        self._inode(path).flip_bit(bit)

    # FileSystem -------------------------------------------------------------------------------------------------------

    def open(self, path: PurePath, *, create: bool = False) -> SimFile:
        """Open a file; making it is a change."""
        self._check_power()
        self.refuse_if_told("open", str(path))
        parent, node = self._parent(path), self._node(path)
        if isinstance(node, Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            self.step(f"create {path}")
            node = Inode(modified=self.tick())
            parent.change({path.name: node})
        return SimFile(self, node, path)

    def exists(self, path: PurePath) -> bool:
        """Whether something is there."""
        return self._node(path) is not None

    def is_directory(self, path: PurePath) -> bool:
        """Whether a directory is there."""
        return isinstance(self._node(path), Directory)

    def names_in(self, directory: PurePath) -> list[str]:
        """Sorted names."""
        return sorted(self._directory(directory).names)

    def make_directory(self, path: PurePath) -> None:
        """With parents."""
        at = self._root
        for part in path.parts[1:]:
            node = at.names.get(part)
            if isinstance(node, Inode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            if node is None:
                self.step(f"mkdir {path}")
                node = Directory()
                at.change({part: node})
            at = node

    def rename(self, old: PurePath, new: PurePath) -> None:
        """Within one directory it is one change, as a journal has it."""
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
        """A missing file is no error."""
        node = self._node(path)
        if node is not None:
            self.step(f"remove {path}")
            self._forget(node)
            self._parent(path).change({path.name: None})

    def remove_tree(self, path: PurePath) -> None:
        """Everything below, name by name, as rmtree does."""
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
        """Names of this directory become durable; not those of its parents, nor the content of its files."""
        try:
            self.step(f"sync directory {path}")
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror, str(path)) from error
        directory = self._directory(path)
        if not self.lies:
            directory.sync()

    def size_of(self, path: PurePath) -> int:
        """Bytes in sight."""
        return len(self._inode(path).data)

    def modified_ns(self, path: PurePath) -> int:
        """No two writes happen at the same time."""
        return self._inode(path).modified

    def free_bytes(self, path: PurePath) -> int:
        """What may still be written."""
        del path  # there is one disk
        return self.capacity_bytes - self._used_bytes

    def total_bytes(self, path: PurePath) -> int:
        """The disk's size."""
        del path  # there is one disk
        return self.capacity_bytes

    def lock(self, path: PurePath) -> SimLock:
        """Held until released or until the power goes."""
        self._check_power()
        if path in self._locks:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(path))
        self.open(path, create=True)
        self._locks.add(path)
        return SimLock(self, self._locks, path)

    # For SimFile ------------------------------------------------------------------------------------------------------

    @property
    def life(self) -> int:
        """Counts power cuts."""
        return self._life

    def step(self, what: str) -> None:
        """A change is about to happen: stop or fail if that was planned."""
        self._check_power()
        self.changes += 1
        self.history.append(what)
        if self._stop_at is not None and self.changes >= self._stop_at:
            self._is_off = True
            raise PowerCut(what)
        error = self._fail_at.pop(self.changes, None)
        if error is not None:
            raise OSError(error, os.strerror(error), what)
        self.refuse_if_told(*what.split(" ", 1))

    def refuse_if_told(self, kind: str, what: str) -> None:
        """The OSError that a test has planned for all operations of a kind."""
        error, where = self._refusing.get(kind, (0, ""))
        if error and where in f"{what}/":
            raise OSError(error, os.strerror(error), what)

    def tick(self) -> int:
        """The time of a write: later than that of any other."""
        self._ticks += 1
        return self._ticks

    def cut_short(self, path: PurePath, position: int, raw: bytes) -> None:
        """The power went when this was to be written; only the first such write was under way."""
        if self._cut_short is None:
            self._cut_short = path, position, raw

    def grow(self, more_bytes: int) -> int:
        """Take room for up to `more_bytes`; how much there was."""
        granted = min(more_bytes, self.capacity_bytes - self._used_bytes)
        self._used_bytes += granted
        return granted

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

    def append(self, data: Buffer) -> None:
        """At the end; a failure leaves half of it there."""
        self.write_at(len(self._inode.data), data)

    def write_at(self, position: int, data: Buffer) -> None:
        """Anywhere; a failure leaves half of it there."""
        raw = bytes(data)
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
        """What programs see, synced or not."""
        self._check()
        self._disk.refuse_if_told("read", str(self._path))
        return bytes(self._inode.data[position : position + size])

    def truncate(self, size: int) -> None:
        """Cut, or extend with zeros."""
        self._step("truncate")
        length = len(self._inode.data)
        self._inode.resize(length + self._disk.grow(size - length))
        self._inode.modified = self._disk.tick()

    def sync(self) -> None:
        """What was written so far becomes durable, unless this fails: then it never will."""
        try:
            self._step("sync")
        except OSError as error:
            self._inode.forget()
            raise SyncFailed(error.errno, error.strerror, str(self._path)) from error
        if not self._disk.lies:
            self._inode.sync()

    def size(self) -> int:
        """Bytes in sight."""
        return len(self._inode.data)

    def descriptor(self) -> int | None:
        """There is no kernel below."""
        return None

    def close(self) -> None:
        """Calling it twice is harmless."""
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
        """Give it back."""
        self._held.discard(self._path)

    def check_present(self) -> None:
        """Its file must not have been removed."""
        self._disk.size_of(self._path)
