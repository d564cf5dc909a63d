"""Queries a job's tables: each section of a report is a query of Spark's SQL over views with the tables' names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.pipeline.lake.lake_table import TableReader
from ottla.pipeline.reporting.values import InvalidReportSection, ReportSection, SectionKind, check
from ottla.pipeline.sql_check import ForbiddenSql, check_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_MAX = 100_000
"""More than a reader reads or a chart can show: such a query forgot to group or to limit."""


@dataclass(frozen=True, slots=True)
class SectionQuery:
    """A section before its query has run."""

    title: str
    kind: SectionKind
    sql: str
    note: str = ""
    limit: int | None = None
    """The most rows that are shown; the page says how many there are."""


def create_views(spark: SparkSession, tables: Mapping[str, TableReader]) -> None:
    """Create a view of every table that exists, of the files that the table has at this moment."""
    for name, table in tables.items():
        if table.exists():
            table.dataframe(spark).createOrReplaceTempView(name)


def run_queries(
    spark: SparkSession, queries: Sequence[SectionQuery], functions: Collection[str] = ()
) -> list[ReportSection]:
    """Run the queries. Raises InvalidReportSection if a query is invalid or its rows do not fit the section's kind.

    All are checked before the first is run; `functions` they may call though they do more than compute (`sql_check`).
    """
    from pyspark.errors import AnalysisException, ArithmeticException, NumberFormatException, ParseException

    found = []
    for section in queries:
        try:
            check_query(spark, section.sql, functions)
        except (ForbiddenSql, ParseException) as error:
            raise _invalid(section, error) from error
    for section in queries:
        try:
            rows = spark.sql(section.sql).limit(ROWS_MAX + 1).toArrow()
        except (AnalysisException, ParseException, ArithmeticException, NumberFormatException) as error:
            raise _invalid(section, error) from error
        total = None
        if section.limit is not None and len(rows) > section.limit:
            total = f"{len(rows):,}" if len(rows) <= ROWS_MAX else f"more than {ROWS_MAX:,}"
            rows = rows.slice(0, section.limit)
        if len(rows) > ROWS_MAX:
            raise InvalidReportSection(f"section {section.title!r}: over {ROWS_MAX:,} rows; group them, or add a limit")
        answered = ReportSection(section.title, section.kind, rows, section.note, total)
        check(answered)
        found.append(answered)
    return found


def _invalid(section: SectionQuery, error: Exception) -> InvalidReportSection:
    return InvalidReportSection(f"section {section.title!r}: {str(error).strip().splitlines()[0]}")
