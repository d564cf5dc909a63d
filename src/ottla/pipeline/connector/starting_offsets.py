"""Parses the options for where a source begins and ends: an end of the log, offsets, or a timestamp.

The result is a value (`OffsetOption`); `connector/offset_client.py` resolves it to offsets. If several start options
are given, precedence follows Spark's Kafka source: timestamp, timestamps per partition, offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ottla.core.ids import TopicPartition
from ottla.pipeline.connector.subscription import OptionLookup, partition_numbers

EARLIEST_OFFSET, LATEST_OFFSET = -2, -1


@dataclass(frozen=True, slots=True)
class Earliest:
    """The first record that is kept."""


@dataclass(frozen=True, slots=True)
class Latest:
    """After the last record that can be read."""


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """Partition by partition; -2 is earliest and -1 latest."""

    offsets: Mapping[TopicPartition, int]
    option: str


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record that is not older, in milliseconds since 1970, everywhere or partition by partition."""

    time_ms: int | None
    times_ms: Mapping[TopicPartition, int]
    option: str
    or_latest: bool
    """Whether a partition without such a record means its end, or an error."""


OffsetOption = Earliest | Latest | AtOffsets | AtTime


def starting_offsets(given: OptionLookup, *, streaming: bool) -> OffsetOption:
    """Read startingTimestamp, startingOffsetsByTimestamp or startingOffsets. Raises ValueError naming the option."""
    strategy = (given.text("startingOffsetsByTimestampStrategy") or "error").lower()
    if strategy not in {"error", "latest"}:
        raise ValueError(f"startingOffsetsByTimestampStrategy: {strategy!r} is neither error nor latest")
    timed = _at_time(given, "startingTimestamp", "startingOffsetsByTimestamp", or_latest=strategy == "latest")
    if timed is not None:
        return timed
    spec = _at_offsets(given, "startingOffsets", otherwise=Latest() if streaming else Earliest())
    if not streaming and (isinstance(spec, Latest) or _contains_offset(spec, LATEST_OFFSET)):
        raise ValueError("startingOffsets: a batch that began at the latest offset would be empty")
    return spec


def ending_offsets(given: OptionLookup, *, streaming: bool) -> OffsetOption:
    """Read endingTimestamp, endingOffsetsByTimestamp or endingOffsets. Raises ValueError naming the option."""
    names = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
    if streaming:
        for name in names:
            if given.text(name) is not None:
                raise ValueError(f"{name}: a stream has no end")
        return Latest()
    timed = _at_time(given, names[0], names[1], or_latest=True)
    if timed is not None:
        return timed
    spec = _at_offsets(given, names[2], otherwise=Latest())
    if isinstance(spec, Earliest) or _contains_offset(spec, EARLIEST_OFFSET):
        raise ValueError("endingOffsets: a batch that ended at the earliest offset would be empty")
    return spec


def _at_time(given: OptionLookup, everywhere: str, by_partition: str, *, or_latest: bool) -> AtTime | None:
    text = given.text(everywhere)
    if text is not None:
        if not text.strip().isdecimal():
            raise ValueError(f"{everywhere}: {text!r} is no number of milliseconds since 1970")
        return AtTime(int(text), {}, everywhere, or_latest)
    text = given.text(by_partition)
    if text is not None:
        times = partition_numbers(by_partition, text, "1500000000000")
        if any(time < 0 for time in times.values()):
            raise ValueError(f"{by_partition}: a time before 1970")
        return AtTime(None, times, by_partition, or_latest)
    return None


def _at_offsets(given: OptionLookup, name: str, *, otherwise: OffsetOption) -> OffsetOption:
    text = given.text(name)
    match None if text is None else text.strip().lower():
        case None:
            return otherwise
        case "earliest":
            return Earliest()
        case "latest":
            return Latest()
    assert text is not None
    if not text.strip().startswith("{"):
        raise ValueError(f'{name}: {text!r} is neither earliest, latest nor {{"topic": {{"0": 5}}}}')
    offsets = partition_numbers(name, text, "5")
    if any(offset < EARLIEST_OFFSET for offset in offsets.values()):
        raise ValueError(f"{name}: offsets are numbers from 0 on, or -1 for latest, -2 for earliest")
    return AtOffsets(offsets, name)


def _contains_offset(spec: OffsetOption, special: int) -> bool:
    return isinstance(spec, AtOffsets) and special in spec.offsets.values()
