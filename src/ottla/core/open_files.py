"""How many files stay open between uses, and who gives theirs up when there are too many.

A process may hold so many descriptors (RLIMIT_NOFILE) and no more, and connections need theirs too. Whoever keeps a
file open for a later use is noted here; beyond the limit those who have kept theirs longest are asked to let go, twice
round at most: one that was used meanwhile may say no once, one whose writes must be synced by it always.

A file that somebody lets go of is closed when its last user is done with it (`SystemFile` closes itself): a read that
another thread has begun, or an answer on its way to a socket, is never cut off, nor ends in a file that came after it.
"""

from __future__ import annotations

import errno
import os
import threading
from typing import Protocol


class Holder(Protocol):
    """Keeps one file open, and can open it again."""

    def let_go(self) -> bool:
        """Give the file up unless it must stay or was used since this was asked last; whether it did."""
        ...


class KeptOpen:
    """Those who keep a file open. May be used from any thread; costs nothing while there is no limit."""

    __slots__ = ("_holders", "_lock", "limit")

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self._holders: dict[Holder, None] = {}  # a dict keeps the order in which they came
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._holders)

    def add(self, holder: Holder) -> None:
        """`holder` is about to open its file. Where that is one too many, others let go.

        Raises OSError (EMFILE) where none can: the handles beyond the limit are needed by those who will set some free.
        """
        if self.limit is None:
            return
        with self._lock:
            self._holders.pop(holder, None)
            for _ in range(2):  # whoever only used its file may let go when it is asked again
                for candidate in list(self._holders):
                    if len(self._holders) < self.limit:
                        break
                    del self._holders[candidate]
                    if not candidate.let_go():
                        self._holders[candidate] = None  # at the end: it is asked last the next time
            if len(self._holders) >= self.limit:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            self._holders[holder] = None

    def discard(self, holder: Holder) -> None:
        """`holder` has closed its file by itself. One that is not known here is fine."""
        if self.limit is not None:
            with self._lock:
                self._holders.pop(holder, None)
