"""Limits the rate of reads and writes (`log.cleaner.io.max.bytes.per.second`)."""

from __future__ import annotations

from collections.abc import Callable

from ottla.core.clock import Clock


class Throttler:
    """Lets bytes pass at a rate, on average. After a pause it does not catch up on more than a second.

    `sleep` takes seconds; a test's moves its clock.
    """

    __slots__ = ("_clock", "_due", "_rate", "_sleep")

    def __init__(self, bytes_per_second: float, *, clock: Clock, sleep: Callable[[float], None]) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._due = clock.monotonic()  # when what has passed so far would have passed at exactly the rate

    def passed(self, size: int) -> None:
        """Wait as long as `size` bytes, which were read or written, had to take."""
        now = self._clock.monotonic()
        self._due = max(self._due, now - 1.0) + size / self._rate
        if self._due > now:
            self._sleep(self._due - now)
