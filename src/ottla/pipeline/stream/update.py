"""Updates a table of windows from the table that its rows come from.

1. *what is new*: the rows between the offsets the results took into account and the source table's positions;
2. *which windows they touch*, and 3. those windows recomputed from all their rows, by the code a batch would use;
4. tombstones for removed rows are published to the topic; 5. one commit replaces the windows and moves the offsets;
6. the rows are published, and then marked as published.

After any crash, the table equals a batch over the same input. The topic is repeated where it may lack
something, and repeating changes nothing for a reader that keeps the last value of each key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from ottla.pipeline.lake.intent import OPERATION
from ottla.pipeline.lake.lake_table import AppTransaction, Change, LakeTable
from ottla.pipeline.offset_range import OffsetRange
from ottla.pipeline.stream.aggregate import START, TIME, Windows, check_result, naming, storable
from ottla.pipeline.stream.results import UNPUBLISHED, Message, Results, Step

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

DEFINITION = "ottla.stream.definition"
REPLACED = OPERATION
"""A transaction of the source table: when its version changes, loaded rows were replaced, and all windows are computed
again."""
_INTERVALS_MAX = 50
"""Periods that a query names; beyond, the nearest are joined."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

LoadedRanges = Mapping[str, Mapping[int, OffsetRange]]
"""By topic and partition: what the source table holds."""
Publish = Callable[[Iterable[Message]], None]
"""Sends records to the topic and returns when all are acknowledged."""


class LateRowPolicy(StrEnum):
    """The handling of rows that the load marked late."""

    UPDATE = "update"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Stream:
    """Declares a stream: its source, windows and measures."""

    name: str
    windows: Windows
    compute: Callable[[DataFrame], DataFrame]
    key: Sequence[str]
    """With `window_start`, what makes a row of the results."""
    definition: str
    """Changes whenever the results would."""
    late: LateRowPolicy = LateRowPolicy.UPDATE


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """Counts the result of one update."""

    windows: int
    rows: int
    published: int


class ResultUpdater:
    """Brings a result table up to its source, step by step."""

    def __init__(
        self, spark: SparkSession, stream: Stream, source: LakeTable, results: Results, publish: Publish | None
    ) -> None:
        self._spark, self._stream, self._source, self._results = spark, stream, source, results
        self._publish = publish

    def advance(self, held: LoadedRanges) -> UpdateResult:
        """Update the results for the rows that the source holds now; `held` comes from `LakeTable.positions`.

        Raises CommitConflict if another process updated the same stream first, and what Spark and the tables raise.
        After any of them, and after a kill at any point, calling it again is safe.
        """
        published = self._publish_rest()
        table = self._results.table
        is_new = not table.exists()
        recompute_all = is_new or table.properties().get(DEFINITION) != self._stream.definition
        replaced = self._source.transaction_version(REPLACED)
        transactions = self._transactions(held, replaced)
        if not recompute_all and all(t.expected == t.new for t in transactions):
            return UpdateResult(0, 0, published)
        recompute_all = recompute_all or any(t.name == REPLACED and t.expected != t.new for t in transactions)
        rows = self._source.dataframe(self._spark)
        done = {} if recompute_all else {t.name: t.expected for t in transactions}
        windows = self._touched(rows, held, done)
        computed = self._compute(rows, windows, recompute_all=recompute_all)
        step = Step(computed, windows, self._with_unpublished(transactions, windows), from_nothing=recompute_all)
        if self._publish is not None:
            gone = self._results.gone(step)
            self._publish(gone)
            published += len(gone)
        self._results.commit(step)
        if recompute_all:
            self._results.note_key()
            table.set_properties({DEFINITION: self._stream.definition})
        return UpdateResult(len(windows), len(computed), published + self._publish_rest())

    def _transactions(self, held: LoadedRanges, replaced: int) -> list[AppTransaction]:
        """Return the transactions from where the results are to where the source is."""
        ends = {f"{topic}/{p}": r.end_offset for topic, ranges in held.items() for p, r in ranges.items()}
        wanted = {**ends, REPLACED: replaced}
        table = self._results.table
        known = table.transaction_version if table.exists() else (lambda _: 0)
        return [AppTransaction(name, known(name), new) for name, new in sorted(wanted.items())]

    def _touched(self, rows: DataFrame, held: LoadedRanges, done: Mapping[str, int]) -> list[datetime]:
        """Return the windows with a row that was not taken into account."""
        new = reduce(
            lambda a, b: a | b,
            (
                (F.col("topic") == topic)
                & (F.col("partition") == partition)
                & (F.col("offset") >= done.get(f"{topic}/{partition}", 0))
                & (F.col("offset") < span.end_offset)
                for topic, ranges in held.items()
                for partition, span in ranges.items()
            ),
            F.lit(False),
        )
        start = self._stream.windows.column().getField("start").alias(START)
        found = self._counting(rows).where(new).where(F.col(TIME).isNotNull()).select(start).distinct().toArrow()
        return sorted(found[START].to_pylist())

    def _compute(self, rows: DataFrame, windows: Sequence[datetime], *, recompute_all: bool) -> pa.Table:
        counting = self._counting(rows)
        if not recompute_all:
            counting = counting.where(self._around(windows))
        with naming(f"{self._stream.name}'s computation"):  # a declared one names its own part of it
            result = self._stream.compute(counting)
        check_result(result, self._stream.key, self._stream.name)
        if not recompute_all:  # windows at the edges of the periods are only partly there
            result = result.where(F.col(START).isin(list(windows)))
        return storable(result).toArrow()

    def _counting(self, rows: DataFrame) -> DataFrame:
        if self._stream.late is LateRowPolicy.DROP and "late" in rows.columns:
            return rows.where(~F.coalesce(F.col("late"), F.lit(False)))
        return rows

    def _around(self, windows: Sequence[datetime]) -> Column:
        """Return the condition for all rows of these windows: a few periods."""
        size = interval_of(self._stream.windows.size)
        periods = join_periods([(start, start + size) for start in windows], at_most=_INTERVALS_MAX)
        time = F.col(TIME)
        inside = [(time >= F.lit(first)) & (time < F.lit(end)) for first, end in periods]
        return reduce(lambda a, b: a | b, inside, F.lit(False))

    def _with_unpublished(
        self, transactions: Sequence[AppTransaction], windows: Sequence[datetime]
    ) -> list[AppTransaction]:
        if self._publish is None or not windows:
            return list(transactions)
        table = self._results.table
        before = table.transaction_version(UNPUBLISHED) if table.exists() else 0
        return [*transactions, AppTransaction(UNPUBLISHED, before, _version_of(min(windows)))]

    def _publish_rest(self) -> int:
        """Publish what the topic may lack, and note that it has it."""
        table = self._results.table
        if self._publish is None or not table.exists():
            return 0
        noted = table.transaction_version(UNPUBLISHED)
        if not noted:
            return 0
        rest = list(self._results.messages(_time_of(noted)))
        self._publish(rest)
        table.commit(Change("published", transactions=[AppTransaction(UNPUBLISHED, noted, 0)]))
        return len(rest)


def _version_of(window: datetime) -> int:
    """Return a time as a version that is never 0."""
    return (window - _EPOCH) // _MICROSECOND * 2 + 1


def _time_of(version: int) -> datetime:
    return _EPOCH + (version // 2) * _MICROSECOND


_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}


def interval_of(text: str) -> timedelta:
    """Parse a length of time as Spark's windows take it. Raises ValueError.

    >>> interval_of("5 minutes"), interval_of("1 day 12 hours")
    (datetime.timedelta(seconds=300), datetime.timedelta(days=1, seconds=43200))
    """
    words = text.split()
    seconds = 0
    try:
        for count, unit in zip(words[::2], words[1::2], strict=True):
            seconds += int(count) * _UNITS[unit.lower().removesuffix("s")]
    except (KeyError, ValueError):
        seconds = 0
    if seconds <= 0:
        raise ValueError(f"{text!r} is not a duration: write for example 5 minutes, 1 hour or 1 day")
    return timedelta(seconds=seconds)


def join_periods(periods: Sequence[tuple[datetime, datetime]], *, at_most: int) -> list[tuple[datetime, datetime]]:
    """Return at most `at_most` periods that cover these: those that touch become one, then the nearest."""
    found: list[tuple[datetime, datetime]] = []
    for first, end in sorted(periods):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((first, end))
    while len(found) > at_most:
        nearest = min(range(len(found) - 1), key=lambda n: found[n + 1][0] - found[n][1])
        found[nearest : nearest + 2] = [(found[nearest][0], found[nearest + 1][1])]
    return found
