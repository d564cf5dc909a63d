"""Every snippet of docs/spark.md runs, in the page's order, and its tables name what there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ottla.pipeline.connector import options
from ottla.pipeline.formats.plain import Raw
from ottla.pipeline.loading.row_mapping import RowMapping
from ottla.records.builder import NewRecord, build_batch
from tests.conftest import Broker
from tests.support.lakes import delta_in, directory_of
from tests.support.topics import create_topic, read_with_librdkafka, write_batches

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "spark.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.spark
@pytest.mark.slow
def test_the_snippets_of_the_page_run(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    create_topic(broker.bootstrap, "orders", partitions=2)
    create_topic(broker.bootstrap, "orders-upper")
    create_topic(broker.bootstrap, "orders-copy")
    found = [NewRecord(b"k%d" % n, b"order %d" % n, 1_600_000_000_000 + n) for n in range(5)]
    for partition in (0, 1):
        write_batches(broker.bootstrap, "orders", [bytes(build_batch(found))], partition=partition)
    names: dict[str, Any] = {"spark": spark}
    assert len(SNIPPETS) == 7
    table = delta_in(tmp_path / "lake" / "orders")
    table.create(RowMapping(Raw()).spec())
    places = {
        "localhost:9092": broker.bootstrap,
        "checkpoints/": f"{tmp_path}/",
        "lake/orders": str(directory_of(table)),
    }
    try:
        for snippet in SNIPPETS:
            for place, ours in places.items():
                snippet = snippet.replace(place, ours)  # noqa: PLW2901 - with the places of this test
            exec(snippet, names)
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    upper = read_with_librdkafka(broker.bootstrap, "orders-upper", end_offset=100)
    assert sorted(row.value or b"" for row in upper) == sorted([b"ORDER %d" % n for n in range(5)] * 2)
    copy = read_with_librdkafka(broker.bootstrap, "orders-copy", end_offset=100)
    assert sorted(row.timestamp_ms for row in copy) == sorted([1_600_000_000_000 + n for n in range(5)] * 2)


def test_the_page_names_every_option_and_no_other() -> None:
    documented = {name.lower() for name in re.findall(r"`((?:kafka\.|kafkaConsumer\.)?[a-zA-Z][\w.]*)`", PAGE)}
    known = {*options._SOURCE, *options._SINK, "kafka.bootstrap.servers"}
    assert known - {"kafka.enable.idempotence"} <= documented
