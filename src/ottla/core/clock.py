"""Defines the clock as a port, so that tests control the time. Other modules must not use the system's (TID251)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """The time of day and a monotonic clock."""

    def wall_ms(self) -> int:
        """Return the time of day in milliseconds since 1970, for records. It may jump, also backwards."""
        ...

    def monotonic(self) -> float:
        """Return the seconds of a clock that never goes backwards, for timeouts."""
        ...


class SystemClock:
    """The clocks of the system."""

    def __init__(self) -> None:
        self.monotonic: Callable[[], float] = time.monotonic  # itself: each request reads it several times

    def wall_ms(self) -> int:
        """Return the system's time of day in milliseconds since 1970."""
        return time.time_ns() // 1_000_000
