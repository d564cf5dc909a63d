"""What a report says, as values: read from the lake's requests with Spark, no HTML here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from ottla.pipeline.traffic import FIRST_ERROR_STATUS, top

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TOP_ROWS = 10
BARS_MAX = 120
"""Bars in a chart over time: more would be thinner than a pixel of a phone."""
_STEPS = tuple(timedelta(minutes=m) for m in (5, 15, 30, 60, 120, 180, 360, 720, 1440, 7 * 1440, 28 * 1440))


@dataclass(frozen=True, slots=True)
class Bar:
    """One stretch of time."""

    start: datetime
    requests: Mapping[str, int]
    """By status class."""
    bytes: int


@dataclass(frozen=True, slots=True)
class Ranked:
    """One value of a top list."""

    value: str
    requests: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a report."""

    requests: int
    errors: int
    bytes: int
    clients: int
    first: datetime | None
    """The time of the first request; None when there was none."""
    last: datetime | None
    step: timedelta
    bars: Sequence[Bar]
    statuses: Sequence[Ranked]
    paths: Sequence[Ranked]
    top_clients: Sequence[Ranked]


def summarize(requests: DataFrame, traffic_rows: Sequence[Mapping[str, Any]]) -> Summary:
    """Read the requests once for totals and tops; the course over time comes from the traffic rows."""
    totals = requests.agg(
        F.count("*").alias("requests"),
        F.count_if(F.col("status") >= FIRST_ERROR_STATUS).alias("errors"),
        F.coalesce(F.sum("bytes"), F.lit(0)).alias("bytes"),
        F.count_distinct("client").alias("clients"),
        F.min("event_time").alias("first"),
        F.max("event_time").alias("last"),
    ).toArrow()
    (total,) = totals.to_pylist()
    step = step_for(total["first"], total["last"])
    return Summary(
        requests=total["requests"],
        errors=total["errors"],
        bytes=total["bytes"],
        clients=total["clients"],
        first=total["first"],
        last=total["last"],
        step=step,
        bars=bars(traffic_rows, step),
        statuses=_ranked(requests.withColumn("status", F.col("status").cast("string")), "status", 1000),
        paths=_ranked(requests, "path", TOP_ROWS),
        top_clients=_ranked(requests, "client", TOP_ROWS),
    )


def step_for(first: datetime | None, last: datetime | None) -> timedelta:
    """The shortest step that covers the time in at most BARS_MAX bars; for ages, as many months as that takes."""
    if first is None or last is None:
        return _STEPS[0]
    months = _STEPS[-1] * ((last - first) // (_STEPS[-1] * BARS_MAX) + 1)
    return next((step for step in _STEPS if (last - first) / step < BARS_MAX), months)


def bars(traffic_rows: Sequence[Mapping[str, Any]], step: timedelta) -> list[Bar]:
    """The rows added up by step; a step without a request is a bar of nothing, for time must not be skipped."""
    requests: dict[datetime, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    sent: dict[datetime, int] = defaultdict(int)
    for row in traffic_rows:
        start = floor(row["window_start"], step)
        requests[start][row["status_class"]] += row["requests"]
        sent[start] += row["bytes"]
    if not requests:
        return []
    at, end = min(requests), max(requests)
    found = []
    while at <= end:
        found.append(Bar(at, dict(requests.get(at, {})), sent.get(at, 0)))
        at += step
    return found


def floor(time: datetime, step: timedelta) -> datetime:
    """The beginning of the step a time lies in, counted from 1970 in UTC.

    >>> floor(datetime(2015, 5, 17, 10, 8, tzinfo=UTC), timedelta(minutes=5)).minute
    5
    """
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return epoch + (time - epoch) // step * step


def _ranked(requests: DataFrame, column: str, limit: int) -> list[Ranked]:
    return [Ranked(**row) for row in top(requests, column, limit).toArrow().to_pylist()]
