"""A stream of Spark's own that changes rows by `foreachBatch`: the example of docs/pipeline.md, and what it guarantees."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ottla.pipeline.lake.lake_table import TableMismatch
from ottla.pipeline.lake.table_format import TableFormat
from ottla.pipeline.spark import upsert_batches
from ottla.records.builder import NewRecord, build_batch
from tests.conftest import Broker
from tests.pipeline.changes.keyed_topic import by_duckdb
from tests.support.lakes import delta_in, lake_in
from tests.support.topics import create_topic, write_batches

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "pipeline.md").read_text(encoding="utf-8")
(SNIPPET,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_the_example_of_the_page_follows_the_topic(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    create_topic(broker.bootstrap, "people")
    places = {"localhost:9092": broker.bootstrap, "checkpoints/": f"{tmp_path}/", "lake/names": str(tmp_path / "names")}
    snippet = SNIPPET
    for place, ours in places.items():
        snippet = snippet.replace(place, ours)
    table = delta_in(tmp_path / "names")
    rounds: list[list[tuple[bytes, bytes | None]]] = [
        [(b"a", b'{"name": "Ada"}'), (b"b", b'{"name": "Bob"}'), (b"a", b'{"name": "Ada L."}')],
        [(b"b", None), (b"c", b'{"name": "Cy"}')],
    ]
    for records in rounds:
        found = [NewRecord(key, value, 1_600_000_000_000) for key, value in records]
        write_batches(broker.bootstrap, "people", [bytes(build_batch(found))])
        exec(snippet, {"spark": spark})
    assert by_duckdb(table.paths(), 'key, "offset", name') == [(b"a", 2, "Ada L."), (b"c", 4, "Cy")]


@pytest.mark.parametrize("table_format", list(TableFormat))
def test_a_batch_is_applied_once(spark: SparkSession, tmp_path: Path, table_format: TableFormat) -> None:
    def batch(*rows: tuple[int, str, Any]) -> Any:
        made = [("t", 0, offset, name, value) for offset, name, value in rows]
        frame = spark.createDataFrame(made, "topic string, partition int, offset long, id string, n long")
        return frame.selectExpr("*", "timestamp_seconds(offset) as timestamp")

    apply = upsert_batches(
        tmp_path / "lake" / "names", key=["id"], query="q", history=True, buckets=2, table_format=table_format
    )
    table = lake_in(tmp_path / "lake", table_format).table("names")
    apply(batch((0, "a", 1), (1, "b", 1)), 0)
    for _ in range(2):
        apply(batch((2, "a", 2)), 1)
    versions = by_duckdb(table.paths(), "id, n, \"offset\", is_current = 'true'")
    assert versions == [("a", 1, 0, False), ("a", 2, 2, True), ("b", 1, 1, True)]
    with pytest.raises(TableMismatch, match="batch 0 of q is before batch 1"):
        apply(batch((0, "a", 1)), 0)
    with pytest.raises(ValueError, match="query: 'a/b' is not made of letters"):
        upsert_batches(tmp_path, key=["id"], query="a/b")
    with pytest.raises(TableMismatch, match="has no column id"):
        apply(batch((3, "a", 1)).drop("id"), 2)
