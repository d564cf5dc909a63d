"""Places in a topic, as people type them: `start`, `end`, `100`, `-10`, `+5`, `-1h`, `@2015-05-17T10:00`.

Pure: text in, a `Place` out. Turning a place into an offset of each partition asks the broker and is done in
`cli/places.py`, and for loads in `pipeline/loading/places.py`. `HELP` is the one description of the syntax; docs/cli.md
and `--help` show it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

HELP = """\
start          the first offset still kept
end            the end of the partition as it was when the command began
100            this offset
-10            ten before the end, in every partition
+10            --from: ten after the start; --to: ten after --from
-90s -30m -1h -2d -1h30m
               that long ago (units ms, s, m, h, d, w): the first record of that time or later
@2015-05-17, @2015-05-17T10:00, @2015-05-17T10:00:05.250+02:00
               a time (UTC unless it names its offset): the first record of that time or later
@1431856800000
               a time in milliseconds since 1970"""

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SPAN = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d|w))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_OFFSET_MAX = (1 << 63) - 1
_SHOWN_CHARS_MAX = 80


class Kind(Enum):
    """What the number of a place counts."""

    START = "start"
    END = "end"
    OFFSET = "offset"
    BEFORE_END = "before end"
    AFTER = "after"
    TIMESTAMP_MS = "timestamp"


@dataclass(frozen=True, slots=True)
class Place:
    """One end of a range. `--from` is inclusive, `--to` exclusive, like every `end_` in Ottla."""

    kind: Kind
    number: int = 0


class BadPlace(ValueError):
    """The text is no place; the message says what would be."""


START = Place(Kind.START)
END = Place(Kind.END)


def parse_span_ms(text: str) -> int | None:
    """A length of time in milliseconds, or None if the text is none.

    >>> parse_span_ms("1h30m"), parse_span_ms("0.5s"), parse_span_ms("10")
    (5400000, 500, None)
    """
    if not _SPAN.fullmatch(text):
        return None
    return round(sum(float(number) * _UNITS_MS[unit] for number, unit in _PART.findall(text)))


def parse_time_ms(text: str) -> int:
    """A time in milliseconds since 1970; UTC unless the text says otherwise. Raises `BadPlace`.

    >>> parse_time_ms("2015-05-17T10:00")
    1431856800000
    """
    if text.isascii() and text.isdecimal():
        return _bounded(int(text), text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadPlace(f"{_shown(text)} is not a time: write 2015-05-17T10:00, or milliseconds since 1970") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    try:
        whole = (moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
    except OverflowError:
        raise BadPlace(f"{_shown(text)} lies outside the times that can be written") from None
    if whole < 0:
        raise BadPlace(f"{_shown(text)} is before 1970")
    return round(whole * 1_000)


def parse_place(text: str, *, now_ms: int) -> Place:
    """Read one place. Raises `BadPlace` naming the text and what would be right.

    >>> parse_place("-1h", now_ms=10_000_000), parse_place("-10", now_ms=0).kind
    (Place(kind=<Kind.TIMESTAMP_MS: 'timestamp'>, number=6400000), <Kind.BEFORE_END: 'before end'>)
    """
    word = text.strip()
    match word.lower():
        case "start" | "beginning" | "earliest" | "oldest":
            return START
        case "end" | "latest" | "newest":
            return END
    if word.startswith("@"):
        rest = word[1:]
        span_ms = parse_span_ms(rest[1:]) if rest.startswith("-") else None
        return Place(Kind.TIMESTAMP_MS, max(0, now_ms - span_ms) if span_ms is not None else parse_time_ms(rest))
    sign, digits = (word[0], word[1:]) if word[:1] in {"-", "+"} else ("", word)
    if sign == "-" and (span_ms := parse_span_ms(digits)) is not None:
        return Place(Kind.TIMESTAMP_MS, max(0, now_ms - span_ms))
    if digits.isascii() and digits.isdecimal():
        kind = {"-": Kind.BEFORE_END, "+": Kind.AFTER, "": Kind.OFFSET}[sign]
        return Place(kind, _bounded(int(digits), word))
    raise BadPlace(f"{_shown(word)} is not a place: write start, end, 100, -10, +10, -1h or @2015-05-17T10:00")


def parse_partitions(text: str) -> tuple[int, ...]:
    """`0,2,5-7` as numbers, each once, in order. Raises `BadPlace`.

    >>> parse_partitions("5-7,0,6")
    (0, 5, 6, 7)
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isascii() and first.isdecimal()) or (dash and not (last.isascii() and last.isdecimal())):
            raise BadPlace(f"{_shown(text)} is not a list of partitions: write 0,2,5-7")
        low, high = int(first), int(last or first)
        if high < low or high - low > 100_000:
            raise BadPlace(f"{_shown(part)} is not a span of partitions: the first comes first")
        found.update(range(low, high + 1))
    return tuple(sorted(found))


def _bounded(number: int, text: str) -> int:
    if number > _OFFSET_MAX:
        raise BadPlace(f"{_shown(text)} is larger than any offset or time can be")
    return number


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARS_MAX else text[:_SHOWN_CHARS_MAX] + "...")
