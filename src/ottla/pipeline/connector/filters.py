"""Restricts a batch to the offsets that its filters can match, before anything is read.

Spark 4.1 and later pass the filters of a query (`where partition = 3 and timestamp >= ...`) to a source. Filters on
topic, partition and offset are applied here. A filter on the timestamp gives the first offset to read, by the brokers'
time index, and is applied again by Spark, because records need not be ordered by timestamp.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

from ottla.core.ids import TopicPartition

_COMPARE = MappingProxyType(
    {
        "EqualTo": operator.eq,
        "EqualNullSafe": operator.eq,
        "GreaterThan": operator.gt,
        "GreaterThanOrEqual": operator.ge,
        "LessThan": operator.lt,
        "LessThanOrEqual": operator.le,
    }
)
_TYPES = MappingProxyType({"topic": str, "partition": int, "offset": int, "timestamp": datetime})
_NEVER_NULL = frozenset({"topic", "partition", "offset"})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class PushedFilters:
    """The offsets and times that the filters of a query leave to read. Serialized to the tasks."""

    of_partitions: tuple[Any, ...] = ()
    """Filters on topic and partition, as Spark passed them."""
    first_offset: int = 0
    end_offset: int | None = None
    from_time_ms: int | None = None
    """No record before the first one with this timestamp or a later one matches."""

    def restrict(
        self, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Return the starts and ends of the partitions and offsets that can match.

        >>> start = {TopicPartition("t", 0): 5}
        >>> PushedFilters(first_offset=7, end_offset=9).restrict(start, {TopicPartition("t", 0): 100})
        ({TopicPartition(topic='t', partition=0): 7}, {TopicPartition(topic='t', partition=0): 9})
        """
        kept = [tp for tp in end if all(_matches(condition, tp) for condition in self.of_partitions)]
        limit = self.end_offset
        return (
            {tp: max(start[tp], self.first_offset) for tp in kept},
            {tp: end[tp] if limit is None else min(end[tp], limit) for tp in kept},
        )


def split_filters(filters: Sequence[Any]) -> tuple[PushedFilters, list[Any]]:
    """Select the filters that a source can apply; return them and those that Spark has to apply."""
    pushed, rest = PushedFilters(), []
    for one in filters:
        pushed, is_applied = _with(pushed, one)
        if not is_applied:
            rest.append(one)
    return pushed, rest


def _with(pushed: PushedFilters, one: Any) -> tuple[PushedFilters, bool]:
    """Add a filter; returns False if Spark has to apply it too."""
    name, column, values = _parts(one)
    if name == "IsNotNull":
        return pushed, column in _NEVER_NULL
    if not values or not all(_is_of(value, column) for value in values):
        return pushed, False
    match column:
        case "topic" | "partition":
            return replace(pushed, of_partitions=(*pushed.of_partitions, one)), True
        case "offset":
            return _with_offsets(pushed, name, values)
        case _:
            return _with_time(pushed, name, values[0]), False


def _parts(one: Any) -> tuple[str, str, tuple[Any, ...]]:
    """Return a filter's name, column and values; a negated one has its child's column and values."""
    name = type(one).__name__
    inner = one.child if name == "Not" else one
    inner_name = type(inner).__name__
    column = inner.attribute[0] if len(getattr(inner, "attribute", ())) == 1 else ""
    if inner_name == "In":
        return name, column, tuple(inner.value)
    return name, column, (inner.value,) if inner_name in _COMPARE else ()


def _is_of(value: object, column: str) -> bool:
    wanted = _TYPES.get(column)
    return wanted is not None and isinstance(value, wanted) and not isinstance(value, bool)


def _matches(one: Any, tp: TopicPartition) -> bool:
    name = type(one).__name__
    if name == "Not":
        return not _matches(one.child, tp)
    found: Any = tp.topic if one.attribute == ("topic",) else tp.partition
    return found in one.value if name == "In" else bool(_COMPARE[name](found, one.value))


def _with_offsets(pushed: PushedFilters, name: str, values: tuple[int, ...]) -> tuple[PushedFilters, bool]:
    first: int = min(values)
    end: int | None = max(values) + 1
    match name:
        case "EqualTo" | "EqualNullSafe" | "In":
            pass
        case "GreaterThan":
            first, end = max(values) + 1, None
        case "GreaterThanOrEqual":
            end = None
        case "LessThan":
            first, end = 0, first
        case "LessThanOrEqual":
            first = 0
        case _:
            return pushed, False
    ends = [limit for limit in (pushed.end_offset, end) if limit is not None]
    filters = replace(pushed, first_offset=max(pushed.first_offset, first), end_offset=min(ends, default=None))
    return filters, name != "In"


def _with_time(pushed: PushedFilters, name: str, value: datetime) -> PushedFilters:
    """Begin at the first record that is late enough; a value without a time zone is not a timestamp."""
    if name not in {"EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual"} or value.tzinfo is None:
        return pushed
    microseconds = (value - _EPOCH) // _MICROSECOND + (name == "GreaterThan")
    time_ms = max(-(-microseconds // 1000), pushed.from_time_ms or 0)
    return replace(pushed, from_time_ms=time_ms) if time_ms > 0 else pushed
