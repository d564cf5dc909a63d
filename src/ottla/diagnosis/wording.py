"""Writes numbers, durations and lists for a reason's line."""

from __future__ import annotations

from collections.abc import Iterable


def duration(seconds: float) -> str:
    """Format a duration.

    >>> duration(30), duration(600), duration(7200), duration(3 * 86400)
    ('30 s', '10 min', '2.0 h', '3.0 d')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7_200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3_600:.1f} h"
    return f"{seconds / 86_400:.1f} d"


def count_of(count: int, noun: str) -> str:
    """Format a number of things.

    >>> count_of(1, "record"), count_of(2, "record")
    ('1 record', '2 records')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def named(items: Iterable[object]) -> str:
    """List things.

    >>> named([1, 2])
    '1, 2'
    """
    return ", ".join(map(str, items))
