"""Shows progress on stderr: one line that is overwritten on a terminal, one line per case elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

EVERY_S = 0.5
CLEAR = "\r\033[K"  # to the start of the line, and erase it


class Progress:
    """Writes to stderr."""

    def __init__(self) -> None:
        self.live = sys.stderr.isatty()

    def line(self, text: str) -> None:
        """Write a line that stays."""
        self._write(f"{CLEAR if self.live else ''}{text}\n")

    def status(self, text: str) -> None:
        """Write what is being done; the next status overwrites it on a terminal."""
        self._write(f"{CLEAR}{text}" if self.live else f"{text}\n")

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

    def counter(self, verb: str, total: int, *, of: str = "records") -> Callable[[int], None]:
        """Return a function that shows a count of records."""
        shown = 0.0
        step = EVERY_S if self.live else 20 * EVERY_S

        def show(count: int) -> None:
            nonlocal shown
            now = time.perf_counter()
            if now - shown >= step:
                shown = now
                self.status(f"{count:,} of {total:,} {of} {verb} ({count / total:.0%})")

        return show
