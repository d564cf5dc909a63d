"""Time and chance, as ports. Tests own both; nothing else in Ottla may ask the system (ruff's TID251 refuses)."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks, because they are two things."""

    def wall_ms(self) -> int:
        """Time of day in milliseconds since 1970, for records. It may jump, even backwards."""
        ...

    def monotonic(self) -> float:
        """Seconds, for measuring waits. It never goes back."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970 by the system clock."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds by the clock that never goes back."""
        return time.monotonic()
