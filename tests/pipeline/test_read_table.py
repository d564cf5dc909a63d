"""Tables read in Spark without a jar: the rows of the newest version or an older one, pruned by columns and filters."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ottla.pipeline.event_time import TimeFrom, TimeRule
from ottla.pipeline.formats.json_objects import JsonObjects
from ottla.pipeline.lake.lake_table import TableMismatch
from ottla.pipeline.lake.rewrite import compact
from ottla.pipeline.lake.table_format import TableFormat
from ottla.pipeline.loading.row_mapping import RowMapping
from ottla.pipeline.spark import read_table
from tests.pipeline.memory_log import Bench, MemoryTopic
from tests.support.lakes import directory_of

pytestmark = pytest.mark.spark


def row(n: int) -> bytes:
    return json.dumps({"at": f"2015-05-{17 + n % 2}T10:00:00Z", "n": n, "s": {"x": n}}).encode()


@pytest.fixture(params=list(TableFormat))
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    """A table of three commits: 20 rows, 30 more with a column more, and a merge of all files of a day."""
    mapping = RowMapping(JsonObjects(), TimeRule(TimeFrom.FIELD, field="at"))
    topic = MemoryTopic({0: [row(n) for n in range(20)]})
    return Bench(tmp_path / "lake", topic, mapping, table_format=request.param)


def test_a_table_is_read_with_spark_sql_each_row_once(spark: SparkSession, bench: Bench) -> None:
    bench.load()
    first = int(bench.table.version())
    bench.topic.values[0] += [json.dumps({**json.loads(row(n)), "more": "m"}).encode() for n in range(20, 50)]
    bench.load()
    compact(bench.table, "abc")
    assert len(list(directory_of(bench.table).rglob("*.parquet"))) > len(bench.table.files()), (
        "replaced files are still there"
    )

    frame = read_table(spark, directory_of(bench.table))
    frame.createOrReplaceTempView("requests")
    found = spark.sql("select event_date, count(*), sum(s.x), count(more) from requests group by all order by 1")
    assert [(str(day), *counts) for day, *counts in found.collect()] == [
        ("2015-05-17", 25, sum(range(0, 50, 2)), 15),
        ("2015-05-18", 25, sum(range(1, 50, 2)), 15),
    ]
    older = read_table(spark, f"file://{directory_of(bench.table)}", version=first)
    assert (older.count(), "more" in older.columns) == (20, False)


def test_spark_reads_only_the_columns_and_row_groups_that_a_query_needs(spark: SparkSession, bench: Bench) -> None:
    bench.load()
    frame = read_table(spark, directory_of(bench.table)).where("event_date = '2015-05-17' and n > 10").select("n")
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert "GreaterThan(n,10)" in plan
    assert re.search(r"ReadSchema: struct<(event_date:date,)?n:bigint>", plan), plan
    assert sorted(n for (n,) in frame.collect()) == [12, 14, 16, 18]


def test_a_table_version_or_file_that_is_not_there_is_an_error(
    spark: SparkSession, bench: Bench, tmp_path: Path
) -> None:
    with pytest.raises(TableMismatch, match="there is no Delta or Iceberg table at"):
        read_table(spark, tmp_path)
    bench.load()
    with pytest.raises(TableMismatch, match=r"has no (version|snapshot) 12345"):
        read_table(spark, directory_of(bench.table), version=12345)
    Path(bench.table.paths()[0]).unlink()
    with pytest.raises(TableMismatch, match="1 of the 2 files of version newest are gone"):
        read_table(spark, directory_of(bench.table))
