"""Bounds the number of files that stay open between uses, and closes the ones kept longest.

The number of descriptors of a process is limited (RLIMIT_NOFILE), and connections need some too. Each file that is kept
open is registered. Beyond the limit those registered longest are asked to close, in at most two rounds: a file used
since the first request is kept in the first round, a file with unsynced writes in both.

The descriptor is closed when its last user releases the `SystemFile`: a read in another thread or a response that is
being sent is never interrupted, and never reads another file that got the same descriptor.
"""

from __future__ import annotations

import errno
import os
import threading
from typing import Protocol


class IdleFile(Protocol):
    """Port: a file that stays open between uses, and can be opened again."""

    def close_if_idle(self) -> bool:
        """Close it unless it must stay open or was used since the last call; return whether it was closed."""
        ...


class OpenFileCache:
    """The files that stay open between uses. Thread-safe; without a limit it registers none."""

    __slots__ = ("_files", "_lock", "limit")

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self._files: dict[IdleFile, None] = {}  # a dict keeps the order in which they came
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._files)

    def add(self, file: IdleFile) -> None:
        """Register a file that is about to be opened; others are closed if there are too many.

        Raises OSError (EMFILE) if none can: the descriptors beyond the limit are needed for the work that frees some.
        """
        if self.limit is None:
            return
        with self._lock:
            self._files.pop(file, None)
            for _ in range(2):  # one that was only used may be closed in the second round
                for candidate in list(self._files):
                    if len(self._files) < self.limit:
                        break
                    del self._files[candidate]
                    if not candidate.close_if_idle():
                        self._files[candidate] = None  # to the end: it is asked last next time
            if len(self._files) >= self.limit:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            self._files[file] = None

    def discard(self, file: IdleFile) -> None:
        """Remove a file that was closed; fine if it is not registered."""
        if self.limit is not None:
            with self._lock:
                self._files.pop(file, None)
