"""The operating system's files with every call to it counted: how much disk work something costs, without strace."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePath
from typing import Any

from ottla.core.files import File, FileSystem

CALLS = {  # what a method of the port asks of the system; `size` and `descriptor` ask nothing
    "append": "write",
    "write_at": "write",
    "read": "read",
    "read_at": "read",
    "truncate": "truncate",
    "sync": "sync",
    "close": "close",
    "exists": "stat",
    "is_directory": "stat",
    "names_in": "list",
    "make_directory": "make",
    "rename": "rename",
    "remove": "remove",
    "remove_tree": "remove",
    "sync_directory": "sync",
    "size_of": "stat",
    "modified_ns": "stat",
    "free_bytes": "stat",
    "total_bytes": "stat",
    "lock": "open",
}


class Counting:
    """Stands before a `FileSystem` or one of its files, and counts what is asked of it."""

    def __init__(self, behind: Any, calls: Counter[str] | None = None) -> None:
        self._behind = behind
        self.calls: Counter[str] = Counter() if calls is None else calls

    def open(self, path: PurePath, *, create: bool = False) -> File:
        """A file that counts into the same table."""
        self.calls["open"] += 1
        counted: Any = Counting(self._behind.open(path, create=create), self.calls)
        return counted  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._behind, name)
        kind = CALLS.get(name)
        if kind is None:
            return found

        def counted(*arguments: Any, **more: Any) -> Any:
            self.calls[kind] += 1
            return found(*arguments, **more)

        return counted


def counting(files: FileSystem) -> tuple[FileSystem, Counter[str]]:
    """The same files, and the table of what is asked of them."""
    made: Any = Counting(files)
    return made, made.calls
