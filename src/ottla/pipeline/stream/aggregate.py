"""Aggregates rows to windows: DataFrame to DataFrame, without input or output. Batch, stream and tests use it.

A result has one row per window and combination of the dimensions: `window_start`, `window_end`, the dimensions, the
measures. Rows without an event time belong to no window. What a window's row says depends on the rows in that window
alone, so a window can be recomputed at any time, with the result of a batch over everything.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, Window
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType, StringType, TimestampType

from ottla.pipeline.sql_check import ForbiddenSql, checked_expression
from ottla.pipeline.stream.errors import InvalidExpression, InvalidFunction
from ottla.pipeline.stream.measures import Measure, MeasureSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ToColumn = Callable[[str], Column]
"""Checks an expression, and makes a column of it."""
TIME = "event_time"
START, END = "window_start", "window_end"


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of event time; if `slide` is shorter than `size` they overlap. In Spark's syntax: "5 minutes"."""

    size: str
    slide: str = ""

    def column(self) -> Column:
        """Return the windows of a row."""
        return F.window(TIME, self.size, self.slide or None)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A declared aggregate."""

    windows: Windows
    measures: Sequence[MeasureSpec]
    dimensions: Sequence[str] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    """New columns by name, each an expression of Spark's SQL; a later one may use an earlier."""
    condition: str = ""
    """Rows for which this is not true are left out."""
    functions: Collection[str] = ()
    """Functions of Spark's that expressions may call though they do more than compute (`sql_check`)."""

    def __call__(self, rows: DataFrame) -> DataFrame:
        """Return the windows of these rows. Raises InvalidExpression naming the part that Spark does not understand."""
        return rows.transform(self._with_columns).transform(self._in_windows).transform(self._measured)

    def _with_columns(self, rows: DataFrame) -> DataFrame:
        expression_of = self._expressions_on(rows)
        for name, expression in self.columns.items():
            with naming(f"columns.{name} = {expression!r}"):
                rows = rows.withColumn(name, expression_of(expression))
        rows = rows.where(F.col(TIME).isNotNull())
        if not self.condition:
            return rows
        with naming(f"where = {self.condition!r}"):
            return rows.where(expression_of(self.condition))

    def _expressions_on(self, rows: DataFrame) -> ToColumn:
        return partial(checked_expression, rows.sparkSession, allowed=self.functions)

    def _in_windows(self, rows: DataFrame) -> DataFrame:
        cut = rows.withColumn("__window", self.windows.column())
        return cut.withColumns({START: F.col("__window.start"), END: F.col("__window.end")}).drop("__window")

    def _measured(self, rows: DataFrame) -> DataFrame:
        key = [START, END, *self.dimensions]
        for name in self.dimensions:
            with naming(f"by = {name!r}"):
                rows.select(name)
        plain = []
        for wanted in self.measures:
            if wanted.measure is not Measure.TOP:
                with naming(f"values.{wanted.name} = {wanted.text!r}"):
                    plain.append(_plain(wanted, self._expressions_on(rows)))
                    rows.groupBy().agg(plain[-1])  # computes nothing, and says whether it could
        result = rows.groupBy(*key).agg(*(plain or [F.count("*").alias("__rows")])).drop("__rows")
        for wanted in self.measures:
            if wanted.measure is Measure.TOP:
                with naming(f"values.{wanted.name} = {wanted.text!r}"):
                    top = _top(rows, key, wanted, self._expressions_on(rows))
                    result = _joined(result, top, key, wanted.name)
        return result.select(*key, *(measure.name for measure in self.measures))


@contextlib.contextmanager
def naming(what: str) -> Iterator[None]:
    """Turn what Spark says of an expression into one line that begins with it. Raises InvalidExpression."""
    try:
        yield
    except (AnalysisException, ParseException) as error:
        said = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise InvalidExpression(f"{what}: {said[0] if said else 'Spark does not understand it'}") from error
    except ForbiddenSql as error:
        raise InvalidExpression(f"{what}: {error}") from None


def _plain(wanted: MeasureSpec, expression_of: ToColumn) -> Column:
    """Return a measure that one pass over a group gives."""
    condition = expression_of(wanted.condition) if wanted.condition else None
    if wanted.measure is Measure.COUNT:
        column = F.count("*") if condition is None else F.count_if(condition)
        return column.alias(wanted.name)
    about = expression_of(wanted.about)
    value = about if condition is None else F.when(condition, about)
    match wanted.measure:
        case Measure.SUM:
            column = F.sum(value)
        case Measure.MIN:
            column = F.min(value)
        case Measure.MAX:
            column = F.max(value)
        case Measure.AVERAGE:
            column = F.avg(value)
        case Measure.DISTINCT:
            column = F.count_distinct(value)
        case Measure.QUANTILE:
            # percentile_disc gives a value that was there; the approximate ones depend on how the rows were cut
            condition_text = f" filter (where {wanted.condition})" if wanted.condition else ""
            column = expression_of(
                f"percentile_disc({wanted.number!r}) within group (order by {wanted.about}){condition_text}"
            )
        case _:
            raise AssertionError(f"{wanted.measure} takes more than one pass")
    return column.alias(wanted.name)


def _top(rows: DataFrame, key: Sequence[str], wanted: MeasureSpec, expression_of: ToColumn) -> DataFrame:
    """Return the most frequent values, [{value, count}, ...]; ties in the order of the values: it is one result."""
    if wanted.condition:
        rows = rows.where(expression_of(wanted.condition))
    counted = (
        rows.withColumn("__value", expression_of(wanted.about).cast(StringType()))
        .where(F.col("__value").isNotNull())
        .groupBy(*key, "__value")
        .agg(F.count("*").alias("__count"))
    )
    rank = F.row_number().over(Window.partitionBy(*key).orderBy(F.desc("__count"), "__value"))
    best = counted.withColumn("__rank", rank).where(F.col("__rank") <= int(wanted.number))
    entry = F.struct("__rank", F.col("__value").alias("value"), F.col("__count").alias("count"))
    gathered = F.array_sort(F.collect_list(entry))
    entries = F.transform(gathered, lambda e: F.struct(e["value"].alias("value"), e["count"].alias("count")))
    return best.groupBy(*key).agg(entries.alias(wanted.name))


def _joined(left: DataFrame, right: DataFrame, key: Sequence[str], column: str) -> DataFrame:
    """Join side by side by key; a dimension may be null and is then equal to null."""
    renamed = right.select(*(F.col(name).alias(f"__{name}") for name in key), column)
    same = reduce(lambda a, b: a & b, (left[name].eqNullSafe(renamed[f"__{name}"]) for name in key))
    joined = left.join(renamed, same, "left").drop(*(f"__{name}" for name in key))
    nothing = F.array().cast(renamed.schema[column].dataType)
    return joined.withColumn(column, F.coalesce(column, nothing))


def storable(result: DataFrame) -> DataFrame:
    """Convert numbers to what a table of any format keeps: decimals, which sums make ever wider, to doubles."""
    wide = {f.name: F.col(f.name).cast("double") for f in result.schema if isinstance(f.dataType, DecimalType)}
    return result.withColumns(wide) if wide else result


def function_of(reference: str, allowed: Collection[str]) -> Callable[[DataFrame], DataFrame]:
    """Return a person's own DataFrame to DataFrame function, named `module:function`. Raises InvalidFunction.

    A job file is data: its writer must not choose what is imported, so the command that runs it allows the function.
    """
    module_name, colon, name = reference.partition(":")
    if not colon or not module_name or not name:
        raise InvalidFunction(f"{reference!r}: write module:function")
    if reference not in allowed:
        raise InvalidFunction(f"{reference!r} is only imported with the option --function {reference}")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InvalidFunction(f"{reference!r}: {error}; is its directory on PYTHONPATH?") from None
    found = getattr(module, name, None)
    if not callable(found):
        raise InvalidFunction(f"{reference!r}: module {module_name} has no function {name}")
    return found  # type: ignore[no-any-return]


def check_result(result: DataFrame, key: Sequence[str], reference: str) -> None:
    """Raise InvalidFunction unless a person's function gave what a stream needs."""
    kinds = {f.name: f.dataType for f in result.schema}
    missing = [name for name in (START, *key) if name not in kinds]
    if missing:
        raise InvalidFunction(f"{reference!r} gives no column {', '.join(missing)}; it has {', '.join(kinds)}")
    if not isinstance(kinds[START], TimestampType):
        raise InvalidFunction(f"{reference!r}: {START} is {kinds[START].simpleString()}, and must be a timestamp")
