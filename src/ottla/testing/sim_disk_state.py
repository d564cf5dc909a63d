"""Models the durable state of `SimDisk`: which contents and names a power cut may leave.

A file's content is written to the disk in pages of 4 KiB, in any order, and a power cut may tear a page at a boundary
of 512-byte sectors. So each page that no sync has covered has its content after any of the writes since the last sync,
or a mixture of two of these, sector by sector. The length changes independently: it may be any length the file has had
since, or end at any page boundary between these; bytes below it that were never written are zeros.

Names belong to their directory and change in order, as in the journals of ext4 and xfs: a prefix of the changes since
the last sync of the directory survives. Different directories are independent, which those journals do not allow. A
synced file in a directory that was not synced may be lost, and so may a whole tree.

`states` counts the possible states and `state(number)` returns one of them, so that a sweep can try all of them where
they are few; these include torn pages with one run of sectors each. `torn(rng)` chooses a random state.
"""

from __future__ import annotations

import math
import random
from typing import NamedTuple

SECTOR_BYTES = 512
PAGE_BYTES = 4096
_CHANGES_KEPT = 256  # of one file between two syncs; older ones are kept or lost together


class _Change(NamedTuple):
    position: int
    raw: bytes
    length: int  # of the file afterwards


class _Choices(NamedTuple):
    """The possible states of one file: lengths, contents of each page, and the number of states of each length."""

    lengths: list[int]
    pages: list[tuple[int, list[bytes]]]  # ascending; of dirty pages only
    counts: list[int]  # for each length

    @property
    def states(self) -> int:
        return sum(self.counts)


class Inode:
    """Holds a file's content: as programs read it, as it is durable, and the changes in between."""

    __slots__ = ("_base", "_changes", "_choices", "_dirty", "data", "durable", "modified")

    def __init__(self, content: bytes = b"", *, modified: int = 0) -> None:
        self.data = bytearray(content)
        self.modified = modified  # when it was last written, by the disk's own count
        self.durable = content
        self._base = content  # as programs read it before the first change; after a failed sync not the durable content
        self._changes: list[_Change] = []
        self._dirty: set[int] = set()  # numbers of pages that a sync would write
        self._choices: _Choices | None = None

    @property
    def is_clean(self) -> bool:
        """Return whether a power cut would change nothing."""
        return not self._changes and self.durable == self.data

    def write(self, position: int, raw: bytes) -> None:
        """Write bytes at a position; a gap before it is filled with zeros."""
        if raw:
            self.data.extend(bytes(max(position - len(self.data), 0)))
            self.data[position : position + len(raw)] = raw
            self._note(_Change(position, raw, len(self.data)), position, position + len(raw))

    def resize(self, size: int) -> None:
        """Truncate, or extend with zeros."""
        before = len(self.data)
        if size < before:
            del self.data[size:]
        else:
            self.data.extend(bytes(size - before))
        self._note(_Change(size, b"", size), min(size, before), max(size, before))

    def sync(self) -> None:
        """Make the dirty pages and the length durable."""
        settled = bytearray(self.durable[: len(self.data)])
        settled.extend(bytes(len(self.data) - len(settled)))
        for page in self._dirty:
            start, end = page * PAGE_BYTES, min((page + 1) * PAGE_BYTES, len(self.data))
            settled[start:end] = self.data[start:end]
        self.durable = bytes(settled)
        self._begin_again()

    def erase(self) -> None:
        """Forget the content, of which open files may have the last reference."""
        self.data = bytearray()
        self.sync()

    def forget(self, *, drops: bool = False) -> None:
        """Mark the dirty pages clean without making them durable, as Linux does after a failed sync.

        With `drops` they leave the page cache, too: programs read what is durable.
        """
        if drops:
            self.data = bytearray(self.durable)
        self._begin_again()

    def flip_bit(self, bit: int) -> None:
        """Corrupt one bit of the durable content and of the content that programs read."""
        byte, mask = bit // 8, 1 << bit % 8
        self.data[byte] ^= mask
        if byte < len(self.durable):
            durable = bytearray(self.durable)
            durable[byte] ^= mask
            self.durable = bytes(durable)
        if self._changes:
            self._note(_Change(byte, bytes(self.data[byte : byte + 1]), len(self.data)), byte, byte + 1)
        else:
            self._base = bytes(self.data)
        self._choices = None

    # States after a power cut

    def states(self) -> int:
        """Count the possible states."""
        return self._choose().states

    def state(self, number: int) -> Inode:
        """Return one possible state; 0 is the durable one."""
        choices = self._choose()
        for length, count in zip(choices.lengths, choices.counts, strict=True):
            if number < count:
                chosen: dict[int, bytes] = {}
                for page, contents in choices.pages:
                    if page * PAGE_BYTES < length:
                        number, at = divmod(number, len(contents))
                        chosen[page] = contents[at]
                return Inode(self._assembled(length, chosen), modified=self.modified)
            number -= count
        raise IndexError(number)

    def torn(self, rng: random.Random) -> Inode:
        """Return a random state of pages, sectors and length."""
        if not self._changes:
            return Inode(self.durable, modified=self.modified)
        choices = self._choose()
        shorter, longer = min(choices.lengths), max(choices.lengths)
        length = rng.choice(
            (choices.lengths[0], len(self.data), rng.choice(choices.lengths), rng.randint(shorter, longer))
        )
        chosen = {}
        for page, contents in choices.pages:
            chosen[page] = rng.choice(contents)
            if rng.random() < 0.4:
                chosen[page] = _mixed([rng.choice(contents) for _ in range(PAGE_BYTES // SECTOR_BYTES)])
        return Inode(self._assembled(length, chosen), modified=self.modified)

    def _assembled(self, length: int, chosen: dict[int, bytes]) -> bytes:
        left = bytearray(self.durable[:length])
        left.extend(bytes(length - len(left)))
        for page, content in chosen.items():
            start = page * PAGE_BYTES
            size = min(PAGE_BYTES, length - start)
            if size > 0:
                left[start : start + size] = content[:size].ljust(size, b"\0")
        return bytes(left)

    def _choose(self) -> _Choices:
        if self._choices is None:
            versions = self._versions()
            lengths = dict.fromkeys((len(self.durable), *(change.length for change in self._changes)))
            shorter, longer = min(lengths), max(lengths)
            lengths |= dict.fromkeys(range(shorter - shorter % PAGE_BYTES + PAGE_BYTES, longer, PAGE_BYTES))
            pages = [(page, _with_torn(versions[page])) for page in sorted(versions)]
            counts = [
                math.prod(len(contents) for page, contents in pages if page * PAGE_BYTES < length) for length in lengths
            ]
            self._choices = _Choices(list(lengths), pages, counts)
        return self._choices

    def _versions(self) -> dict[int, list[bytes]]:
        """Return the contents that each dirty page has had, oldest (durable) first."""
        seen = bytearray(self._base)
        versions: dict[int, list[bytes]] = {}
        for change in self._changes:
            before = len(seen)
            if change.raw:
                seen.extend(bytes(max(change.position - before, 0)))
                seen[change.position : change.position + len(change.raw)] = change.raw
                touched = (min(change.position, before), change.position + len(change.raw))
            else:
                del seen[change.length :]
                seen.extend(bytes(change.length - len(seen)))
                touched = (min(change.length, before), max(change.length, before))
            for page in _pages(*touched):
                start = page * PAGE_BYTES
                held = versions.setdefault(page, [self.durable[start : start + PAGE_BYTES].ljust(PAGE_BYTES, b"\0")])
                content = bytes(seen[start : start + PAGE_BYTES]).ljust(PAGE_BYTES, b"\0")
                if content not in held:
                    held.append(content)
        return versions

    def _note(self, change: _Change, start: int, end: int) -> None:
        self._choices = None
        self._dirty.update(_pages(start, end))
        self._changes.append(change)
        if len(self._changes) > _CHANGES_KEPT:  # merge them: a page has its durable or its current content
            self._changes = [_Change(0, bytes(self.data), len(self.data))]

    def _begin_again(self) -> None:
        self._dirty.clear()
        self._changes.clear()
        self._base = bytes(self.data)
        self._choices = None


class RevertibleInode(Inode):
    """Holds a file of which a power cut loses all that is not synced: never a part of it, in another order, or torn.

    So only what was overwritten since the last sync has to be known. It never takes more than that content.
    """

    __slots__ = ("_overwritten", "_overwritten_bytes", "_synced_bytes")

    def __init__(self, content: bytes = b"", *, modified: int = 0) -> None:
        super().__init__(content, modified=modified)
        self.durable = self._base = b""  # not used
        self._synced_bytes = len(content)
        self._overwritten: list[tuple[int, bytes]] = []  # position, and what was there; the oldest first
        self._overwritten_bytes = 0

    @property
    def is_clean(self) -> bool:
        """Return whether a power cut would change nothing."""
        return self._reverted() == self.data

    def write(self, position: int, raw: bytes) -> None:
        """Write bytes at a position; a gap before it is filled with zeros."""
        self._keep(position, position + len(raw))
        super().write(position, raw)

    def resize(self, size: int) -> None:
        """Truncate, or extend with zeros."""
        self._keep(size, len(self.data))
        super().resize(size)

    def sync(self) -> None:
        """Make the content durable."""
        self._overwritten.clear()
        self._overwritten_bytes, self._synced_bytes = 0, len(self.data)

    def forget(self, *, drops: bool = False) -> None:
        """Leave the content as it was at the last sync durable; with `drops` programs read that, too."""
        if drops:
            self.data = self._reverted()

    def flip_bit(self, bit: int) -> None:
        """Corrupt one bit of the content that programs read; it is durable, unless it was not synced."""
        self.data[bit // 8] ^= 1 << bit % 8

    def state(self, number: int) -> Inode:
        """Return the durable state, which is the only one."""
        if number:
            raise IndexError(number)
        return RevertibleInode(bytes(self._reverted()), modified=self.modified)

    def states(self) -> int:
        """Return 1: there is one possible state."""
        return 1

    def torn(self, rng: random.Random) -> Inode:
        """Return the durable state: nothing is torn."""
        del rng
        return self.state(0)

    def _keep(self, start: int, end: int) -> None:
        """Keep the synced bytes of a range that is about to change."""
        end = min(end, len(self.data), self._synced_bytes)
        if start >= end:
            return
        self._overwritten.append((start, bytes(self.data[start:end])))
        self._overwritten_bytes += end - start
        if self._overwritten_bytes > self._synced_bytes:  # all of it is less
            self._overwritten = [(0, bytes(self._reverted()))]
            self._overwritten_bytes = self._synced_bytes

    def _reverted(self) -> bytearray:
        content = self.data[: self._synced_bytes]
        content.extend(bytes(self._synced_bytes - len(content)))
        for position, raw in reversed(self._overwritten):
            content[position : position + len(raw)] = raw
        return content

    def _note(self, change: _Change, start: int, end: int) -> None:
        """Note nothing: `_keep` has."""


def _pages(start: int, end: int) -> range:
    return range(start // PAGE_BYTES, max(end - 1, start) // PAGE_BYTES + 1)


def _with_torn(versions: list[bytes]) -> list[bytes]:
    """Return a page's complete versions, and the newest torn over the oldest: a prefix or a suffix of its sectors."""
    old, new = versions[0], versions[-1]
    found = dict.fromkeys(versions)
    for cut in range(SECTOR_BYTES, PAGE_BYTES, SECTOR_BYTES):
        found[new[:cut] + old[cut:]] = None
        found[old[:cut] + new[cut:]] = None
    return list(found)


def _mixed(contents: list[bytes]) -> bytes:
    """Build a page whose n-th sector comes from the n-th content."""
    return b"".join(
        content[at * SECTOR_BYTES : (at + 1) * SECTOR_BYTES].ljust(SECTOR_BYTES, b"\0")
        for at, content in enumerate(contents)
    )


class Directory:
    """Holds a directory's names: as programs see them, as they are durable, and the changes in between."""

    __slots__ = ("_changes", "_durable", "names")

    def __init__(self, names: dict[str, Inode | Directory] | None = None) -> None:
        self.names: dict[str, Inode | Directory] = names or {}
        self._durable = dict(self.names)
        self._changes: list[dict[str, Inode | Directory | None]] = []  # name -> its new node; a rename is one

    def change(self, change: dict[str, Inode | Directory | None]) -> None:
        """Add, replace or remove (None) names in one change."""
        self._changes.append(change)
        _apply(self.names, change)

    def sync(self) -> None:
        """Make the current names durable."""
        self._durable = dict(self.names)
        self._changes.clear()

    def kept(self) -> Directory:
        """Return a copy in which everything survived."""
        return type(self)(
            {
                name: type(node)(bytes(node.data), modified=node.modified) if isinstance(node, Inode) else node.kept()
                for name, node in self.names.items()
            }
        )

    def states(self) -> int:
        """Count the possible trees."""
        return sum(self._states_below(names) for names in self._survivors())

    def state(self, number: int) -> Directory:
        """Return one possible state; 0 is the durable one."""
        for names in self._survivors():
            count = self._states_below(names)
            if number < count:
                left: dict[str, Inode | Directory] = {}
                for name, node in sorted(names.items()):
                    number, at = divmod(number, node.states())
                    left[name] = node.state(at)
                return type(self)(left)
            number -= count
        raise IndexError(number)

    def torn(self, rng: random.Random) -> Directory:
        """Return a random state: all names, none of the new ones, or some."""
        survivors = self._survivors()
        names = rng.choice((survivors[0], survivors[-1], rng.choice(survivors)))
        return type(self)({name: node.torn(rng) for name, node in sorted(names.items())})

    def inodes(self) -> list[Inode]:
        """Return every file of the tree."""
        found: list[Inode] = []
        for node in self.names.values():
            found.extend([node] if isinstance(node, Inode) else node.inodes())
        return found

    def contains(self, inode: Inode) -> bool:
        """Return whether the file has a name in the tree."""
        for node in self.names.values():
            if node is inode or (isinstance(node, Directory) and node.contains(inode)):
                return True
        return False

    def image(self) -> tuple[tuple[str, object], ...]:
        """Return the visible tree, for comparisons."""
        return tuple(
            (name, bytes(node.data) if isinstance(node, Inode) else node.image())
            for name, node in sorted(self.names.items())
        )

    def _survivors(self) -> list[dict[str, Inode | Directory]]:
        """Return the names after none, one, two ... of the unsynced changes."""
        names = dict(self._durable)
        found = [dict(names)]
        for change in self._changes:
            _apply(names, change)
            found.append(dict(names))
        return found

    @staticmethod
    def _states_below(names: dict[str, Inode | Directory]) -> int:
        return math.prod(node.states() for node in names.values())


class RevertibleDirectory(Directory):
    """Holds a directory of which a power cut loses all changes of names since the last sync."""

    __slots__ = ()

    def change(self, change: dict[str, Inode | Directory | None]) -> None:
        """Add, replace or remove (None) names."""
        _apply(self.names, change)


def _apply(names: dict[str, Inode | Directory], change: dict[str, Inode | Directory | None]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node
