"""Filters of a query restrict what a batch reads: never a matching record less, and never a wrong one unless Spark checks."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ottla.core.ids import TopicPartition
from ottla.pipeline.connector.filters import split_filters

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST = 12
"""Offsets, partitions and seconds are drawn from 0 up to here."""


@dataclass(frozen=True)
class Comparison:
    """The form of PySpark's filters since 4.1. They differ by the names of their classes."""

    attribute: tuple[str, ...]
    value: Any


class EqualTo(Comparison): ...


class EqualNullSafe(Comparison): ...


class GreaterThan(Comparison): ...


class GreaterThanOrEqual(Comparison): ...


class LessThan(Comparison): ...


class LessThanOrEqual(Comparison): ...


class In(Comparison): ...


class StringStartsWith(Comparison): ...


@dataclass(frozen=True)
class IsNotNull:
    attribute: tuple[str, ...]


@dataclass(frozen=True)
class Not:
    child: Any


COMPARE = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


@dataclass(frozen=True)
class Row:
    topic: str
    partition: int
    offset: int
    timestamp: datetime


def matches(one: Any, row: Row) -> bool:
    """SQL's meaning of a filter; null, as in `x in (1, null)`, is not a match and neither is its negation."""
    if isinstance(one, IsNotNull):
        return True
    inner = one.child if isinstance(one, Not) else one
    found = getattr(row, inner.attribute[0])
    if isinstance(inner, In):
        truth = True if found in inner.value else None if None in inner.value else False
    elif isinstance(inner, StringStartsWith):
        truth = found.startswith(inner.value)
    else:
        truth = None if inner.value is None else COMPARE[type(inner)](found, inner.value)
    return truth is not None and truth != isinstance(one, Not)


def times(seconds: float) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


small = st.integers(-2, LAST + 2)
values = {
    "topic": st.sampled_from(["a", "b", ""]),
    "partition": small,
    "offset": small,
    "timestamp": st.builds(times, small | st.sampled_from([0.5, 3.000_001, 3.999_999, 10.0])),
}


@st.composite
def comparisons(draw: st.DrawFn) -> Any:
    column = draw(st.sampled_from(sorted(values)))
    kind = draw(st.sampled_from([*COMPARE, In, IsNotNull, StringStartsWith]))
    if kind is IsNotNull:
        return IsNotNull((column,))
    if kind is StringStartsWith:
        return StringStartsWith(("topic",), draw(values["topic"]))
    either = values[column] | st.none()
    value = tuple(draw(st.lists(either, min_size=1, max_size=3))) if kind is In else draw(either)
    made = kind((column,), value)
    return Not(made) if draw(st.booleans()) else made


@st.composite
def logs(draw: st.DrawFn) -> dict[TopicPartition, list[Row]]:
    """Partitions whose records are in no order of time."""
    found = {}
    for topic, number in draw(st.sets(st.tuples(st.sampled_from("ab"), st.integers(0, 3)), min_size=1)):
        seconds = draw(st.lists(st.integers(0, LAST), min_size=1, max_size=LAST))
        found[TopicPartition(topic, number)] = [
            Row(topic, number, at, times(second)) for at, second in enumerate(seconds)
        ]
    return found


def read_with(filters: list[Any], log: dict[TopicPartition, list[Row]]) -> tuple[list[Row], list[Any]]:
    """What a batch reads, and the filters that are left to Spark."""
    pushed, rest = split_filters(filters)
    start = dict.fromkeys(log, 0)
    if pushed.from_time_ms is not None:  # as the brokers' time index does
        since = EPOCH + timedelta(milliseconds=pushed.from_time_ms)
        start = {tp: next((r.offset for r in rows if r.timestamp >= since), len(rows)) for tp, rows in log.items()}
    begin, end = pushed.restrict(start, {tp: len(rows) for tp, rows in log.items()})
    return [row for tp in end for row in log[tp][begin[tp] : max(begin[tp], end[tp])]], rest


@given(st.lists(comparisons(), max_size=4), logs())
def test_a_read_with_pushed_filters_returns_the_rows_that_match(
    filters: list[Any], log: dict[TopicPartition, list[Row]]
) -> None:
    read, rest = read_with(filters, log)
    assert all(any(one is given for given in filters) for one in rest), "Spark compares by reference"
    found = {row for row in read if all(matches(one, row) for one in rest)}
    assert found == {row for rows in log.values() for row in rows if all(matches(one, row) for one in filters)}


def test_filters_on_topic_partition_and_offset_are_applied_here_alone() -> None:
    applied = [
        EqualTo(("topic",), "a"),
        IsNotNull(("partition",)),
        Not(In(("partition",), (0, 2))),
        GreaterThan(("offset",), 3),
        LessThanOrEqual(("offset",), 5),
    ]
    log = {TopicPartition(t, p): [Row(t, p, n, times(n)) for n in range(LAST)] for t in "ab" for p in range(3)}
    read, rest = read_with(applied, log)
    assert [(row.topic, row.partition, row.offset) for row in read] == [("a", 1, 4), ("a", 1, 5)]
    assert rest == []


def test_a_timestamp_restricts_the_start_and_is_left_to_spark() -> None:
    late = GreaterThanOrEqual(("timestamp",), times(9.000_5))
    log = {TopicPartition("a", 0): [Row("a", 0, n, times(n)) for n in range(LAST)]}
    read, rest = read_with([late], log)
    assert [row.offset for row in read] == [10, 11]
    assert rest == [late]
    before_1970 = GreaterThanOrEqual(("timestamp",), times(-5))
    assert split_filters([before_1970])[0].from_time_ms is None, "negative timestamps mean other things to brokers"
    assert split_filters([GreaterThan(("timestamp",), datetime(2020, 1, 1))])[0].from_time_ms is None  # noqa: DTZ001


def test_filters_on_other_columns_and_on_fields_are_left_to_spark() -> None:
    others = [EqualTo(("value",), b"x"), EqualTo(("offset", "x"), 1), EqualTo(("partition",), True)]
    pushed, rest = split_filters(others)
    assert rest == others
    assert pushed == split_filters([])[0]
