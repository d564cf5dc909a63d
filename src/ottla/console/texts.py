"""Formats numbers, sizes, times and durations as the pages show them. No I/O."""

from __future__ import annotations

from datetime import UTC, datetime

_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")
UNKNOWN = "\N{EN DASH}"


def number(value: float | None) -> str:
    """Format a number with separators.

    >>> number(1234567), number(None) == UNKNOWN, number(0.25), number(12.0)
    ('1,234,567', True, '0.25', '12')
    """
    if value is None:
        return UNKNOWN
    if isinstance(value, float) and not value.is_integer():
        return f"{value:,.2f}" if value < 10 else f"{value:,.0f}"
    return f"{int(value):,}"


def size(size_bytes: float | None) -> str:
    """Format a size in bytes.

    >>> size(1536), size(12), size(0)
    ('1.5 KB', '12 B', '0 B')
    """
    if size_bytes is None or size_bytes < 0:
        return UNKNOWN
    shown = float(size_bytes)
    for unit in _UNITS:
        if shown < 1024 or unit == _UNITS[-1]:
            break
        shown /= 1024
    return f"{shown:.0f} {unit}" if unit == "B" else f"{shown:.1f} {unit}"


def duration(seconds: float | None) -> str:
    """Format a duration with its two largest units.

    >>> duration(0), duration(0.25), duration(75), duration(90_061)
    ('0 s', '0.2 s', '1 min 15 s', '1 d 1 h')
    """
    if seconds is None:
        return UNKNOWN
    whole = int(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if 0 < seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def time(timestamp_ms: int | None) -> str:
    """Format a time of day in UTC, to the millisecond.

    >>> time(1431856800250)
    '2015-05-17 10:00:00.250'
    """
    if timestamp_ms is None or timestamp_ms < 0:
        return UNKNOWN
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):  # a producer may set any number
        return f"{timestamp_ms} ms"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{timestamp_ms % 1000:03}"


def percent(part: float, whole: float) -> int:
    """Return a share in whole per cents, 0 of nothing.

    >>> percent(1, 3), percent(1, 0)
    (33, 0)
    """
    return round(100 * part / whole) if whole > 0 else 0
