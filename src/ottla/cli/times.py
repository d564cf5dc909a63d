"""Formats times for people."""

from __future__ import annotations

from datetime import UTC, datetime


def clock_time(wall_ms: int) -> str:
    """Return the time of day in UTC.

    >>> clock_time(1431856805000)
    '10:00:05Z'
    """
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%H:%M:%SZ")
