"""Parses and resolves offset expressions: `start`, `end`, `100`, `-10`, `+5`, `-1h`, `@2015-05-17T10:00`.

`parse` turns a text into an `OffsetSpec` and needs no broker. `resolve` turns a spec into an offset per partition; only
a spec with a time asks the brokers. `HELP` is the one description of the syntax; docs/cli.md and `--help` show it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from ottla.client.cluster import Cluster
from ottla.client.offsets import OffsetBounds, list_offsets
from ottla.client.times import parse_time_ms, quoted
from ottla.core.ids import TopicPartition
from ottla.core.quantities import parse_duration_ms
from ottla.core.settings import LONG_MAX

HELP = """\
start          the first offset still kept
end            the end of the partition as it was when the command began
100            this offset
-10            ten before the end, in every partition
+10            --from: ten after the start; --to: ten after --from
-90s -30m -1h -2d -1h30m
               that long ago (units ms, s, m, h, d, w): the first record
               of that time or later
@2015-05-17, @2015-05-17T10:00, @2015-05-17T10:00:05.250+02:00
               a time (UTC unless it names its offset): the first record
               of that time or later
@1431856800000
               a time in milliseconds since 1970"""


_LENGTH_MAX = 200  # Python refuses to convert some thousand digits


class OffsetKind(Enum):
    """The meaning of the number of an `OffsetSpec`."""

    START = "start"
    END = "end"
    OFFSET = "offset"
    BEFORE_END = "before end"
    AFTER = "after"
    TIMESTAMP_MS = "timestamp"


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """One end of a range of offsets. `--from` is inclusive, `--to` exclusive, like every `end_` in Ottla."""

    kind: OffsetKind
    number: int = 0


class InvalidOffsetSpec(ValueError):
    """Reports text that is no offset expression; the message describes the valid ones."""


START = OffsetSpec(OffsetKind.START)
END = OffsetSpec(OffsetKind.END)


def parse(text: str, *, now_ms: int) -> OffsetSpec:
    """Parse one offset expression. Raises `InvalidOffsetSpec` with the text and the accepted forms.

    >>> parse("-1h", now_ms=10_000_000), parse("-10", now_ms=0).kind
    (OffsetSpec(kind=<OffsetKind.TIMESTAMP_MS: 'timestamp'>, number=6400000), <OffsetKind.BEFORE_END: 'before end'>)
    """
    word = text.strip()
    if len(word) > _LENGTH_MAX:
        raise InvalidOffsetSpec(f"{quoted(word)} is larger than any offset can be")
    match word.lower():
        case "start" | "beginning" | "earliest" | "oldest":
            return START
        case "end" | "latest" | "newest":
            return END
    if word.startswith("@"):
        return OffsetSpec(OffsetKind.TIMESTAMP_MS, _time_ms(word[1:], now_ms))
    sign, digits = (word[0], word[1:]) if word[:1] in {"-", "+"} else ("", word)
    if sign == "-" and (ago_ms := parse_duration_ms(digits)) is not None:
        return OffsetSpec(OffsetKind.TIMESTAMP_MS, max(0, now_ms - ago_ms))
    if not (digits.isascii() and digits.isdecimal()):
        raise InvalidOffsetSpec(
            f"{quoted(word)} is not an offset: write start, end, 100, -10, +10, -1h or @2015-05-17T10:00"
        )
    if (number := int(digits)) > LONG_MAX:
        raise InvalidOffsetSpec(f"{quoted(word)} is larger than any offset can be")
    return OffsetSpec({"-": OffsetKind.BEFORE_END, "+": OffsetKind.AFTER, "": OffsetKind.OFFSET}[sign], number)


async def resolve(
    cluster: Cluster,
    spec: OffsetSpec,
    bounds: Mapping[TopicPartition, OffsetBounds],
    *,
    after: Mapping[TopicPartition, int] | None = None,
) -> dict[TopicPartition, int]:
    """Return the offset that a spec means in each partition, clamped to its bounds.

    A time means the first record of that time or later, and the end where there is none. `+10` counts from `after`,
    or without it from the start.
    """
    if spec.kind is OffsetKind.TIMESTAMP_MS:
        timestamps = await list_offsets(cluster, dict.fromkeys(bounds, spec.number))
        return {
            tp: b.clamp(timestamps[tp].offset if timestamps[tp].offset >= 0 else b.end_offset)
            for tp, b in bounds.items()
        }
    return {tp: b.clamp(_offset(spec, b, b.start_offset if after is None else after[tp])) for tp, b in bounds.items()}


def _offset(spec: OffsetSpec, bounds: OffsetBounds, after: int) -> int:
    match spec.kind:
        case OffsetKind.START:
            return bounds.start_offset
        case OffsetKind.END:
            return bounds.end_offset
        case OffsetKind.BEFORE_END:
            return bounds.end_offset - spec.number
        case OffsetKind.AFTER:
            return after + spec.number
        case _:
            return spec.number


def _time_ms(text: str, now_ms: int) -> int:
    ago_ms = parse_duration_ms(text[1:]) if text.startswith("-") else None
    if ago_ms is not None:
        return max(0, now_ms - ago_ms)
    try:
        return parse_time_ms(text)
    except ValueError as error:
        raise InvalidOffsetSpec(str(error)) from None
