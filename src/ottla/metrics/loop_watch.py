"""Measures how late the broker's event loop turns: who waits while a turn is long."""

from __future__ import annotations

import asyncio

from ottla.core.histogram import Histogram

INTERVAL_S = 0.1
STALL_S = 0.020
"""No turn of the loop should take longer (docs/design/requests.md)."""


class LoopWatch:
    """Asks to be called at an interval, and notes how late that is. Lives on the loop."""

    def __init__(self) -> None:
        self.delays = Histogram()
        self.stalls = 0  # delays above `STALL_S`
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        """Begin to measure."""
        loop = asyncio.get_running_loop()
        self._due = loop.time() + INTERVAL_S
        self._timer = loop.call_at(self._due, self._called)

    def _called(self) -> None:
        late_s = asyncio.get_running_loop().time() - self._due
        self.delays.record(int(late_s * 1e6))
        self.stalls += late_s > STALL_S
        self.start()

    def stop(self) -> None:
        """End."""
        if self._timer is not None:
            self._timer.cancel()
