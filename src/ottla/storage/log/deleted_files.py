"""Deletes files in two steps: renames them at once, removes them later.

A reader may hold a region of a deleted segment that the kernel is still sending; its descriptor stays open until the
delay (`file.delete.delay.ms`) is over. Without the delay, on a full disk, the name is removed and the descriptor stays
open for as long as a reader holds it. What a crash leaves is found by its suffix and removed at the next start.

A deletion of topics leaves thousands of directories, and a large file takes the disk a while: `purge` is for a worker
thread, while everything else goes on.
"""

from __future__ import annotations

import itertools
import threading
from pathlib import PurePath
from typing import NamedTuple

from ottla.core.files import File, FileSystem
from ottla.storage.file_names import DELETED_SUFFIX, LOG_SUFFIX
from ottla.storage.log.segment import Segment


class _Item(NamedTuple):
    due_ms: int
    path: PurePath
    file: File | None  # to be closed first
    is_directory: bool


class DeletedFiles:
    """Everything in one log directory that waits to be removed."""

    __slots__ = ("_files", "_in_directory", "_items", "_lock", "_numbers")

    def __init__(self, files: FileSystem) -> None:
        self._files = files
        self._lock = threading.Lock()  # of the fields below; nothing is removed while it is held
        self._numbers = itertools.count()
        self._items: dict[int, _Item] = {}
        self._in_directory: dict[PurePath, set[int]] = {}  # the files among them, by their directory

    def __len__(self) -> int:
        return len(self._items)

    def add(self, path: PurePath, *, due_ms: int, file: File | None = None, is_directory: bool = False) -> None:
        """Remove `path` once it is `due_ms` by the wall clock, and close `file` then."""
        with self._lock:
            number = next(self._numbers)
            self._items[number] = _Item(due_ms, path, file, is_directory)
            if not is_directory:
                self._in_directory.setdefault(path.parent, set()).add(number)

    def rename_segment(self, segment: Segment, *, due_ms: int) -> None:
        """Rename those of a segment's files that are there, the `.log` last, and remove them later. Raises OSError."""
        for path in segment.paths():
            if self._files.exists(path):
                renamed = path.with_name(path.name + DELETED_SUFFIX)
                self._files.rename(path, renamed)
                self.add(renamed, due_ms=due_ms, file=segment.detach_file() if path.suffix == LOG_SUFFIX else None)

    def moved(self, old: PurePath, new: PurePath) -> None:
        """Update the paths of the files of a log whose directory was renamed."""
        with self._lock:
            numbers = self._in_directory.pop(old, None)
            if numbers is not None:
                for number in numbers:
                    item = self._items[number]
                    self._items[number] = item._replace(path=new / item.path.name)
                self._in_directory.setdefault(new, set()).update(numbers)

    def purge(self, now_ms: int, *, is_urgent: bool = False) -> int:
        """Remove what is due, or all if it is urgent; how many went. Raises OSError, and tries the rest again later.

        May be called in a worker thread, in one at a time.
        """
        removed = 0
        due = [number for number, item in tuple(self._items.items()) if is_urgent or item.due_ms <= now_ms]
        for number in due:
            while (item := self._closed(number, now_ms)) is not None:
                if item.is_directory:
                    self._files.remove_tree(item.path)
                else:
                    self._files.remove(item.path)
                removed += self._forget(number, item)
        return removed

    def _closed(self, number: int, now_ms: int) -> _Item | None:
        """Close the file of an item and return the item, unless it is gone.

        A file that is not due yet is not closed: it closes itself after the last read.
        """
        with self._lock:
            item = self._items.get(number)
            if item is not None and item.file is not None:
                if item.due_ms <= now_ms:
                    item.file.close()
                item = self._items[number] = item._replace(file=None)
            return item

    def _forget(self, number: int, removed: _Item) -> bool:
        """Forget an item that was removed. If its directory was renamed meanwhile it may be there, and is kept."""
        with self._lock:
            if self._items.get(number) is not removed:
                return False
            del self._items[number]
            if not removed.is_directory:
                numbers = self._in_directory[removed.path.parent]
                numbers.discard(number)
                if not numbers:
                    del self._in_directory[removed.path.parent]
            return True

    def close(self) -> None:
        """Close what is open, and remove nothing more; the files are left for the next start to remove."""
        with self._lock:
            for item in self._items.values():
                if item.file is not None:
                    item.file.close()
            self._items, self._in_directory = {}, {}
