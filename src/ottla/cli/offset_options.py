"""Reads the options that select offsets and partitions: `--from`, `--to`, `--partition`. Errors name the option."""

from __future__ import annotations

from ottla.cli.errors import usage_error
from ottla.client.offset_spec import InvalidOffsetSpec, OffsetKind, OffsetSpec, parse
from ottla.client.times import quoted

_PARTITIONS_MAX = 100_000  # in one range of a list of partitions


def read_offset(option: str, text: str, *, now_ms: int) -> OffsetSpec:
    """Parse an offset expression. Raises `CommandFailed` naming the option."""
    try:
        return parse(text, now_ms=now_ms)
    except InvalidOffsetSpec as error:
        raise usage_error(f"{option}: {error}") from None


def check_range(first: OffsetSpec, end: OffsetSpec | None) -> None:
    """Raise `CommandFailed` for a range that is empty for every possible content of the topic."""
    if end is None or first.kind is not end.kind:
        return
    match first.kind:
        case OffsetKind.OFFSET | OffsetKind.TIMESTAMP_MS:
            empty = first.number > end.number
        case OffsetKind.BEFORE_END:
            empty = first.number < end.number
        case _:
            empty = False
    if empty:
        raise usage_error("the range is empty: --from is after --to")


def read_partitions(option: str, text: str) -> tuple[int, ...]:
    """Parse `0,2,5-7` into partition numbers, sorted and without duplicates. Raises `CommandFailed` naming the option.

    >>> read_partitions("--partition", "5-7,0,6")
    (0, 5, 6, 7)
    """
    numbers: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not _is_number(first) or (dash and not _is_number(last)):
            raise usage_error(f"{option}: {quoted(text)} is not a list of partitions: write 0,2,5-7")
        low, high = int(first), int(last or first)
        if high < low or high - low > _PARTITIONS_MAX:
            raise usage_error(f"{option}: {quoted(part)} is not a range of partitions: write the lower number first")
        numbers.update(range(low, high + 1))
    return tuple(sorted(numbers))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()
