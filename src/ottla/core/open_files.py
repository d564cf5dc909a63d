"""Bounds the number of files that stay open between uses, and closes the ones kept longest.

The number of descriptors of a process is limited (RLIMIT_NOFILE), and connections need some too. A holder registers
each file that it keeps open. Beyond the limit the holders registered longest are asked to close theirs, in at most two
rounds: a file used since the first request is kept in the first round, a file with unsynced writes in both.

The descriptor is closed when its last user releases the `SystemFile`: a read in another thread or a response that is
being sent is never interrupted, and never reads another file that got the same descriptor.
"""

from __future__ import annotations

import errno
import os
import threading
from typing import Protocol


class Holder(Protocol):
    """Port: keeps one file open, and can open it again."""

    def let_go(self) -> bool:
        """Close the file unless it must stay open or was used since the last call; return whether it was closed."""
        ...


class KeptOpen:
    """Registers the holders of open files. Thread-safe; without a limit it registers none."""

    __slots__ = ("_holders", "_lock", "limit")

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self._holders: dict[Holder, None] = {}  # a dict keeps the order in which they came
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._holders)

    def add(self, holder: Holder) -> None:
        """Register a holder that is about to open its file; others close theirs if there are too many.

        Raises OSError (EMFILE) if none can: the descriptors beyond the limit are needed for the work that frees some.
        """
        if self.limit is None:
            return
        with self._lock:
            self._holders.pop(holder, None)
            for _ in range(2):  # a holder that only used its file may close it in the second round
                for candidate in list(self._holders):
                    if len(self._holders) < self.limit:
                        break
                    del self._holders[candidate]
                    if not candidate.let_go():
                        self._holders[candidate] = None  # to the end: it is asked last next time
            if len(self._holders) >= self.limit:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            self._holders[holder] = None

    def discard(self, holder: Holder) -> None:
        """Remove a holder that has closed its file; fine if it is not registered."""
        if self.limit is not None:
            with self._lock:
                self._holders.pop(holder, None)
