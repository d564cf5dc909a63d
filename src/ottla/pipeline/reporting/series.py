"""Converts rows to what a chart draws: values of x, and for each a value of every series.

Time is never skipped: a step without a row has an x without a value. Where there would be more values of x than fit
on a phone, neighbours are taken together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa

X_VALUES_MAX = 120
"""More would be thinner than a pixel of a phone."""
SERIES_MAX = 8
"""Beyond, the smallest are drawn as one."""
OTHERS = "others"
_WIDE = tuple(timedelta(minutes=m) for m in (1, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 7 * 1440, 28 * 1440))
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ChartData:
    """Holds the content of a chart."""

    x_values: Sequence[Any]
    """Times in order, or other values as they came."""
    step: timedelta | None
    """From one x to the next, of times."""
    series: Sequence[str]
    """Names, "" where there is only one without a name."""
    values: Sequence[Sequence[float]]
    """By series, then x; 0 where there is nothing."""


def chart_data(rows: pa.Table) -> ChartData:
    """Build a chart from rows of x, value or of x, series, value. A row without x is left out."""
    x_column, value_column = rows.column_names[0], rows.column_names[-1]
    named = rows.column_names[1] if len(rows.column_names) > 2 else None
    found: dict[Any, dict[str, float]] = {}
    totals: dict[str, float] = {}
    for row in rows.to_pylist():
        if row[x_column] is None:
            continue
        name = "" if named is None else str(row[named] if row[named] is not None else "none")
        amount = float(row[value_column] or 0)
        at = found.setdefault(_time(row[x_column]), {})
        at[name] = at.get(name, 0) + amount
        totals[name] = totals.get(name, 0) + amount
    names = _names(totals)
    is_time = bool(found) and all(isinstance(x, datetime) for x in found)
    x_values, step = _time_axis(min(found), max(found), _step(sorted(found))) if is_time else (list(found), None)
    values = [[0.0] * len(x_values) for _ in names]
    index = {x: n for n, x in enumerate(x_values)}
    for x, amounts in found.items():
        n = index[x] if step is None else int((x - x_values[0]) / step)
        for name, amount in amounts.items():
            values[names.index(name if name in names else OTHERS)][n] += amount
    return ChartData(x_values, step, names, values)


def _time(value: Any) -> Any:
    """Convert dates and times alike to times in UTC."""
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    return value


def _names(totals: dict[str, float]) -> list[str]:
    """Return the series in alphabetical order, the small ones of many as one."""
    if len(totals) <= SERIES_MAX:
        return sorted(totals)
    kept = sorted(totals, key=lambda name: -totals[name])[: SERIES_MAX - 1]
    return [*sorted(kept), OTHERS]


def _step(times: Sequence[datetime]) -> timedelta:
    """Return the distance that divides all others: in whole seconds, a day where there is only one time."""
    seconds = 0
    for first, second in pairwise(times):
        gap = round((second - first).total_seconds())
        while gap:
            seconds, gap = gap, seconds % gap
    return timedelta(seconds=seconds or 86_400)


def _time_axis(first: datetime, last: datetime, step: timedelta) -> tuple[list[datetime], timedelta]:
    """Return the times from the first time to the last, and the step between them: few enough to be seen.

    Steps taken together make one that clocks and calendars know, and begin where it does, counted from 1970 in UTC.
    """
    count = (last - first) // step + 1
    if count <= X_VALUES_MAX:
        return [first + n * step for n in range(count)], step
    wide = next((w for w in _WIDE if w % step == timedelta(0) and (last - first) / w < X_VALUES_MAX - 1), None)
    if wide is None:  # an odd step, or ages
        wide = step * -(-count // (X_VALUES_MAX - 1))
    first = _EPOCH + (first - _EPOCH) // wide * wide
    return [first + n * wide for n in range((last - first) // wide + 1)], wide


def step_text(step: timedelta) -> str:
    """Format a step for people.

    >>> step_text(timedelta(minutes=5)), step_text(timedelta(hours=1)), step_text(timedelta(days=7))
    ('5 minutes', 'hour', '7 days')
    """
    seconds = int(step.total_seconds())
    for size, name in ((86_400, "day"), (3600, "hour"), (60, "minute")):
        if seconds % size == 0:
            count = seconds // size
            return name if count == 1 else f"{count} {name}s"
    return "second" if seconds == 1 else f"{seconds:,} seconds"
