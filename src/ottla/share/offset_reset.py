"""Finds where a share group begins to consume a partition: the setting `share.auto.offset.reset` of the group."""

from __future__ import annotations

import re

from ottla.replication.partition import Partition

LATEST, EARLIEST, BY_DURATION = "latest", "earliest", "by_duration:"

_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{1,9})?)S)?)?",
    re.IGNORECASE,
)
_UNIT_MS = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1_000}


def duration_ms(text: str) -> int:
    """Parse an ISO 8601 duration of days and smaller units. Raises ValueError.

    >>> duration_ms("P1DT2H"), duration_ms("PT1.5S")
    (93600000, 1500)
    """
    match = _DURATION.fullmatch(text)
    parts = {} if match is None else {unit: value for unit, value in match.groupdict().items() if value is not None}
    if not parts or text.upper().endswith("T"):
        raise ValueError(f"{text!r} is not an ISO 8601 duration such as PT1H")
    return round(sum(float(value) * _UNIT_MS[unit] for unit, value in parts.items()))


def check_reset(strategy: str) -> None:
    """Raise ValueError unless the strategy is latest, earliest or by_duration:<duration>."""
    if strategy.startswith(BY_DURATION):
        duration_ms(strategy.removeprefix(BY_DURATION))
    elif strategy not in (LATEST, EARLIEST):
        raise ValueError(f"{strategy!r} is not latest, earliest or by_duration:<duration>")


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
