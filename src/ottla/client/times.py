"""Parses durations (`90s`, `1h30m`) and times (`2015-05-17T10:00`, milliseconds since 1970) as people type them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from ottla.core.settings import LONG_MAX

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d|w))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_QUOTED_CHARS_MAX = 80


def parse_duration_ms(text: str) -> int | None:
    """A duration in milliseconds, or None if the text is not one.

    >>> parse_duration_ms("1h30m"), parse_duration_ms("0.5s"), parse_duration_ms("10")
    (5400000, 500, None)
    """
    if not _DURATION.fullmatch(text):
        return None
    return round(sum(float(number) * _UNITS_MS[unit] for number, unit in _PART.findall(text)))


def parse_time_ms(text: str) -> int:
    """A time in milliseconds since 1970; UTC unless the text has a UTC offset. Raises `ValueError`.

    >>> parse_time_ms("2015-05-17T10:00")
    1431856800000
    """
    if text.isascii() and text.isdecimal():
        if (time_ms := int(text)) > LONG_MAX:
            raise ValueError(f"{quoted(text)} is larger than any time can be")
        return time_ms
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{quoted(text)} is not a time: write 2015-05-17T10:00, or milliseconds since 1970") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    try:
        seconds = (moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
    except OverflowError:
        raise ValueError(f"{quoted(text)} is outside the range of times that can be represented") from None
    if seconds < 0:
        raise ValueError(f"{quoted(text)} is before 1970")
    return round(seconds * 1_000)


def quoted(text: str) -> str:
    """The text in quotes for an error message, cut to a readable length."""
    return repr(text if len(text) <= _QUOTED_CHARS_MAX else text[:_QUOTED_CHARS_MAX] + "...")
