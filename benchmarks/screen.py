"""What a person sees while it runs: one line that changes on a terminal, one line a case elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

EVERY_S = 0.5
CLEAR = "\r\033[K"  # back to the start of the line, and wipe it


class Screen:
    """Standard error, where the progress goes."""

    def __init__(self) -> None:
        self.live = sys.stderr.isatty()

    def say(self, text: str) -> None:
        """A line that stays."""
        self._write(f"{CLEAR if self.live else ''}{text}\n")

    def now(self, text: str) -> None:
        """What is being done; overwritten by the next on a terminal."""
        self._write(f"{CLEAR}{text}" if self.live else f"{text}\n")

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

    def progress(self, verb: str, total: int) -> Callable[[int], None]:
        """A function to be told how far it is."""
        shown = 0.0
        step = EVERY_S if self.live else 20 * EVERY_S

        def told(count: int) -> None:
            nonlocal shown
            now = time.perf_counter()
            if now - shown >= step:
                shown = now
                self.now(f"{count:,} of {total:,} records {verb} ({count / total:.0%})")

        return told
