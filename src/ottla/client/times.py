"""Parses times (`2015-05-17T10:00`, milliseconds since 1970) as people type them."""

from __future__ import annotations

from datetime import UTC, datetime

from ottla.core.settings import LONG_MAX

UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_QUOTED_CHARS_MAX = 80


def parse_time_ms(text: str) -> int:
    """Parse a time into milliseconds since 1970; UTC unless the text has a UTC offset. Raises `ValueError`.

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
        seconds = (moment - UNIX_EPOCH).total_seconds()
    except OverflowError:
        raise ValueError(f"{quoted(text)} is outside the range of times that can be represented") from None
    if seconds < 0:
        raise ValueError(f"{quoted(text)} is before 1970")
    return round(seconds * 1_000)


def quoted(text: str) -> str:
    """Return the text in quotes for an error message, cut to a readable length."""
    return repr(text if len(text) <= _QUOTED_CHARS_MAX else text[:_QUOTED_CHARS_MAX] + "...")
