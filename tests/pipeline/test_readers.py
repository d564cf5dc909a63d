"""The tables open where people work: DuckDB, Polars, pandas and Spark see the same rows, without a jar."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from ottla.pipeline.event_time import TimeFrom, TimeRule
from ottla.pipeline.formats.json_objects import JsonObjects
from ottla.pipeline.lake.lake_table import LakeTable
from ottla.pipeline.lake.rewrite import compact
from ottla.pipeline.lake.table_format import TableFormat
from ottla.pipeline.loading.row_mapping import RowMapping
from tests.pipeline.memory_log import Bench, MemoryTopic, Values
from tests.support.lakes import directory_of

COLUMNS = ["offset", "late", "event_date", "n", "s", "l"]
Rows = list[tuple[Any, ...]]


def lived_in(root: Path, table_format: TableFormat) -> Bench:
    """A table with all that happens to one: columns that came and widened, late rows, a backfill, files merged."""
    rows = [{"at": "1970-01-01", "n": n, "s": {"x": n}} for n in range(20)]
    topic = MemoryTopic({0: [json.dumps(row).encode() for row in rows]})
    mapping = RowMapping(JsonObjects(), TimeRule(TimeFrom.FIELD, field="at", lateness_ms=5_000))
    bench = Bench(root, topic, mapping, table_format=table_format)
    bench.load()
    more: Values = [
        json.dumps({"at": "1970-01-02", "n": n + 0.5, "s": {"y": "z"}, "l": [n]}).encode() for n in range(9)
    ]
    topic.values[0] += [*more, b"wrong"]
    bench.load()
    bench.backfill({0: 3}, {0: 25})
    compact(bench.table, "c")
    return bench


def wanted() -> Rows:
    rows: Rows = [(o, o > 5, "1970-01-01", float(o), {"x": o, "y": None}, None) for o in range(20)]
    return rows + [(20 + n, False, "1970-01-02", n + 0.5, {"x": None, "y": "z"}, [n]) for n in range(9)]


def plain(row: dict[str, Any]) -> tuple[Any, ...]:
    struct = row["s"]
    return (
        row["offset"],
        row["late"],
        str(row["event_date"])[:10],
        row["n"],
        {"x": _whole(struct["x"]), "y": struct["y"]},
        None if row["l"] is None else [int(item) for item in row["l"]],
    )


def _whole(number: Any) -> int | None:
    return None if number is None or math.isnan(number) else int(number)


def iceberg(table: LakeTable) -> Any:
    from pyiceberg.catalog.sql import SqlCatalog

    root = directory_of(table).parent
    catalog = SqlCatalog("ottla", uri=f"sqlite:///{root / 'catalog.db'}", warehouse=f"file://{root}")
    return catalog.load_table(("lake", table.name))


def is_delta(table: LakeTable) -> bool:
    return (directory_of(table) / "_delta_log").exists()


def by_duckdb(table: LakeTable) -> Rows:
    connection = duckdb.connect()
    if is_delta(table):
        connection.register("t", DeltaTable(directory_of(table)).to_pyarrow_dataset())
    else:
        connection = iceberg(table).scan().to_duckdb("t")
    found = connection.sql("select * from t")
    assert found is not None
    return [plain(row) for row in found.to_arrow_table().to_pylist()]


def by_polars(table: LakeTable) -> Rows:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its advice to install one more package
        frame = pl.scan_delta(directory_of(table)) if is_delta(table) else pl.scan_iceberg(iceberg(table))
        return [plain(row) for row in frame.select(COLUMNS).collect().to_dicts()]


def by_pandas(table: LakeTable) -> Rows:
    frame = DeltaTable(directory_of(table)).to_pandas() if is_delta(table) else iceberg(table).scan().to_pandas()
    return [plain(row) for row in frame.to_dict("records")]


@pytest.fixture(params=list(TableFormat))
def table(request: pytest.FixtureRequest, tmp_path: Path) -> LakeTable:
    return lived_in(tmp_path / "lake", request.param).table


@pytest.mark.slow
@pytest.mark.parametrize("read", [by_duckdb, by_polars, by_pandas], ids=["duckdb", "polars", "pandas"])
def test_a_table_opens(table: LakeTable, read: Callable[[LakeTable], Rows]) -> None:
    assert sorted(read(table)) == sorted(wanted())


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.external
@pytest.mark.parametrize("table_format", list(TableFormat))
def test_a_table_opens_in_spark_by_its_files(spark: SparkSession, tmp_path: Path, table_format: TableFormat) -> None:
    table = lived_in(tmp_path / "lake", table_format).table
    frame = table.dataframe(spark)
    assert frame.columns == table.spec().schema.names
    rows = [plain(row.asDict(recursive=True)) for row in frame.collect()]
    assert sorted(rows) == sorted(wanted())
