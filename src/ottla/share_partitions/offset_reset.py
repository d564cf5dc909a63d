"""Finds where a share group begins to consume a partition: the setting `share.auto.offset.reset` of the group."""

from __future__ import annotations

import re

from ottla.core.settings import LONG_MAX
from ottla.replication.partition import Partition

LATEST, EARLIEST, BY_DURATION = "latest", "earliest", "by_duration:"

_DURATION = re.compile(
    r"([-+]?)P(?:([-+]?[0-9]+)D)?(?:T(?=[-+0-9])(?:([-+]?[0-9]+)H)?(?:([-+]?[0-9]+)M)?"
    r"(?:([-+]?[0-9]+)(?:[.,]([0-9]{0,9}))?S)?)?",
    re.IGNORECASE | re.ASCII,
)
_UNITS_S = (86_400, 3_600, 60, 1)
_NANOS_PER_SECOND, _NANOS_PER_MS = 1_000_000_000, 1_000_000


def duration_ms(text: str) -> int:
    """Parse an ISO 8601 duration of days and smaller units, as Java's Duration does. Raises ValueError.

    >>> duration_ms("P1DT2H"), duration_ms("PT1.5S"), duration_ms("pt1h-30m")
    (93600000, 1500, 1800000)
    """
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()[1:]):
        raise ValueError(f"{text!r} is not an ISO 8601 duration such as PT1H")
    sign, *counts, fraction = match.groups()
    nanos = sum(int(count or 0) * unit for count, unit in zip(counts, _UNITS_S, strict=True)) * _NANOS_PER_SECOND
    fraction_nanos = int((fraction or "").ljust(9, "0"))
    nanos += -fraction_nanos if (counts[-1] or "").startswith("-") else fraction_nanos
    nanos = -nanos if sign == "-" else nanos
    if not 0 <= nanos <= LONG_MAX * _NANOS_PER_SECOND:
        raise ValueError(f"{text!r} is negative or too long")
    return nanos // _NANOS_PER_MS


def check_reset(strategy: str) -> None:
    """Raise ValueError unless the strategy is latest, earliest or by_duration:<duration>, in this case as in Kafka."""
    if strategy.startswith(BY_DURATION):
        duration_ms(strategy.removeprefix(BY_DURATION))
    elif strategy not in (LATEST, EARLIEST):
        raise ValueError("must be latest, earliest or by_duration:<ISO 8601 duration>")


def first_offset(partition: Partition, strategy: str, *, now_wall_ms: int) -> int:
    """Return the first offset to consume. Raises StorageError."""
    if strategy == EARLIEST:
        return partition.log.log_start_offset
    if strategy.startswith(BY_DURATION):
        since_ms = max(0, now_wall_ms - duration_ms(strategy.removeprefix(BY_DURATION)))
        try:
            found = partition.log.offset_for_timestamp(since_ms, end_offset=partition.high_watermark)
        except OSError as error:
            raise partition.not_readable(error) from error
        if found is not None:
            return found[0]
    return partition.high_watermark
