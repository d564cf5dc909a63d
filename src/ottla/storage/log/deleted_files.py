"""Files on their way out: renamed at once, removed later.

A reader may hold a stretch of a deleted segment that the kernel is still sending; its descriptor stays open until the
delay (`file.delete.delay.ms`) is over. What a crash leaves is found by its suffix and removed at the next start.
"""

from __future__ import annotations

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

    __slots__ = ("_files", "_items")

    def __init__(self, files: FileSystem) -> None:
        self._files = files
        self._items: list[_Item] = []

    def __len__(self) -> int:
        return len(self._items)

    def add(self, path: PurePath, *, due_ms: int, file: File | None = None, is_directory: bool = False) -> None:
        """Remove `path` once it is `due_ms` by the wall clock, and close `file` then."""
        self._items.append(_Item(due_ms, path, file, is_directory))

    def rename_segment(self, segment: Segment, *, due_ms: int) -> None:
        """Rename those of a segment's files that are there, the `.log` last, and remove them later. Raises OSError."""
        for path in segment.paths():
            if self._files.exists(path):
                renamed = path.with_name(path.name + DELETED_SUFFIX)
                self._files.rename(path, renamed)
                self.add(renamed, due_ms=due_ms, file=segment.detach_file() if path.suffix == LOG_SUFFIX else None)

    def moved(self, old: PurePath, new: PurePath) -> None:
        """The directory of a log was renamed: update the paths of its files."""
        self._items = [
            item._replace(path=new / item.path.name) if item.path.parent == old else item for item in self._items
        ]

    def purge(self, now_ms: int) -> int:
        """Remove what is due; how many went. Raises OSError, and tries the rest again next time."""
        removed = 0
        while due := next((item for item in self._items if item.due_ms <= now_ms), None):
            if due.file is not None:
                due.file.close()
            if due.is_directory:
                self._files.remove_tree(due.path)
            else:
                self._files.remove(due.path)
            self._items.remove(due)
            removed += 1
        return removed

    def close(self) -> None:
        """Close what is open; the files themselves are left for the next start to remove."""
        for item in self._items:
            if item.file is not None:
                item.file.close()
