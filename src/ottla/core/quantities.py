"""Parses durations (`90s`, `1h30m`) and sizes (`64KiB`, `1.5GB`) as people type them."""

from __future__ import annotations

import re

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d|w))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(B|KB|MB|GB|TB|KiB|MiB|GiB|TiB)?\s*")
_UNITS_BYTES: dict[str | None, int] = {None: 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS_BYTES |= {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_WITH_UNKNOWN_UNIT = re.compile(r"\d[\d.]*\s*[A-Za-z]+")
# the last part of a setting's name -> its unit in milliseconds
_NAMED_UNITS_MS = {"us": 0.001, "ms": 1, "seconds": 1_000, "minutes": 60_000, "hours": 3_600_000}


def parse_duration_ms(text: str) -> int | None:
    """Return a duration in milliseconds, or None if the text is not one.

    >>> parse_duration_ms("1h30m"), parse_duration_ms("0.5s"), parse_duration_ms("10")
    (5400000, 500, None)
    """
    if not _DURATION.fullmatch(text):
        return None
    return round(sum(float(number) * _UNITS_MS[unit] for number, unit in _PART.findall(text)))


def parse_size(text: str) -> int | None:
    """Return a size in bytes, or None if the text is not one.

    >>> parse_size("1.5KB"), parse_size("1KiB"), parse_size("12"), parse_size("much")
    (1500, 1024, 12, None)
    """
    match = _SIZE.fullmatch(text)
    return round(float(match[1]) * _UNITS_BYTES[match[2]]) if match else None


def in_unit_of(name: str, text: str) -> str:
    """Convert a duration or size to the number that a setting with this name holds; other text stays as it is.

    Kafka's settings have their unit in the name. Raises ValueError if the duration is not a whole number of it, or if
    the text is a number with a unit that is not known.

    >>> in_unit_of("retention.ms", "1h"), in_unit_of("log.retention.hours", "7d"), in_unit_of("segment.bytes", "1GiB")
    ('3600000', '168', '1073741824')
    >>> in_unit_of("retention.ms", "-1"), in_unit_of("compression.type", "1h")
    ('-1', '1h')
    >>> in_unit_of("segment.bytes", "1G")
    Traceback (most recent call last):
    ValueError: must be a whole number of bytes, or a size such as 64KiB or 1GiB
    """
    parts = name.split(".")
    text = text.strip()
    unit_ms = _NAMED_UNITS_MS.get(parts[-1])
    if unit_ms is not None and (duration_ms := parse_duration_ms(text)) is not None:
        count = duration_ms / unit_ms
        if count != int(count):
            raise ValueError(f"must be a whole number of {parts[-1]}")
        return str(int(count))
    is_size = "bytes" in parts or parts[-2:] == ["buffer", "size"]
    if is_size and not text.isdecimal() and (size := parse_size(text)) is not None:
        return str(size)
    if (unit_ms is not None or is_size) and _WITH_UNKNOWN_UNIT.fullmatch(text):
        if is_size:
            raise ValueError("must be a whole number of bytes, or a size such as 64KiB or 1GiB")
        raise ValueError(f"must be a whole number of {parts[-1]}, or a duration such as 90m or 7d")
    return text
