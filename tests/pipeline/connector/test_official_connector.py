"""One job through Spark's own Kafka connector and through ours: the same rows, the same schema, the same checkpoint."""

from __future__ import annotations

import os
import random
import uuid
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from ottla.pipeline.jars import JarsNotFound, connector_jars, installed_spark
from ottla.records.builder import NewRecord, build_batch
from tests.pipeline.connector.test_rows_of_other_clients import write_transactions
from tests.support.real_kafka import RealKafka
from tests.support.topics import create_topic, write_batches

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.external,
    pytest.mark.official_connector,
    pytest.mark.xdist_group(
        "official_connector"
    ),  # beside the short suite of the oldest Spark, with a session of its own
]


@pytest.fixture(scope="module")
def both(spark: SparkSession) -> SparkSession:
    """The session, which knows both formats."""
    try:
        connector_jars(os.environ, print)
    except JarsNotFound as error:
        pytest.skip(str(error))
    return spark


def read(spark: SparkSession, kind: str, kafka: RealKafka, **options: str) -> DataFrame:
    reader = spark.read.format(kind).option("kafka.bootstrap.servers", kafka.bootstrap)
    return reader.options(**options).load()


def rows(frame: DataFrame) -> list[Any]:
    return frame.orderBy("topic", "partition", "offset").collect()


def test_the_jars_are_those_that_the_installed_spark_lacks() -> None:
    try:
        jars = connector_jars(os.environ, print)
    except JarsNotFound as error:
        pytest.skip(str(error))
    names = sorted(file.name.rpartition("-")[0] for file in jars.files)
    scala = installed_spark().scala
    expected = {
        f"spark-sql-kafka-0-10_{scala}",
        f"spark-token-provider-kafka-0-10_{scala}",
        "kafka-clients",
        "commons-pool2",
    }
    assert set(names) == expected
    assert jars.version in installed_spark().candidates()
    assert jars.how.startswith(("Maven", "Ivy"))


def test_the_same_rows_and_schema_come_out_of_both(both: SparkSession, real_kafka: RealKafka) -> None:
    topic = f"both-{uuid.uuid4().hex[:8]}"
    create_topic(real_kafka.bootstrap, topic, partitions=2)
    found = [
        NewRecord(None, None, -1),
        NewRecord(b"", b"", 0, [("", b""), ("twice", b"1"), ("twice", None)]),
        NewRecord(b"k", b"v", 1_600_000_000_123, [("é", b"\xff")]),
    ]
    write_batches(real_kafka.bootstrap, topic, [bytes(build_batch(found, codec=codec)) for codec in range(5)])
    write_batches(real_kafka.bootstrap, topic, [bytes(build_batch(found))], partition=1)
    for options in (
        {"subscribe": topic, "includeHeaders": "true"},
        {"subscribe": topic},
        {
            "subscribePattern": f"{topic[:-1]}.",
            "startingOffsets": f'{{"{topic}":{{"0":4,"1":-2}}}}',
            "minPartitions": "5",
        },
        {"assign": f'{{"{topic}":[1]}}', "endingOffsets": f'{{"{topic}":{{"1":2}}}}'},
        {"subscribe": topic, "startingTimestamp": "1600000000000"},
    ):
        theirs, ours = read(both, "kafka", real_kafka, **options), read(both, "ottla", real_kafka, **options)
        assert ours.schema == theirs.schema
        assert rows(ours) == rows(theirs), options


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_transactions_are_the_same_to_both(both: SparkSession, real_kafka: RealKafka, level: str) -> None:
    topic = f"both-tx-{level}-{uuid.uuid4().hex[:6]}"
    create_topic(real_kafka.bootstrap, topic)
    write_transactions(real_kafka.bootstrap, topic, random.Random(level))
    options = {"subscribe": topic, "includeHeaders": "true", "kafka.isolation.level": level}
    ours = rows(read(both, "ottla", real_kafka, **options))
    assert ours == rows(read(both, "kafka", real_kafka, **options))
    assert ours


def test_a_running_stream_moves_over_with_its_checkpoint_by_changing_one_word(
    both: SparkSession, real_kafka: RealKafka, tmp_path: Path
) -> None:
    topic = f"moving-{uuid.uuid4().hex[:8]}"
    create_topic(real_kafka.bootstrap, topic, partitions=2)
    seen: list[list[tuple[int, int]]] = []

    def collect(frame: DataFrame, _: int) -> None:
        seen.append(sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect()))

    def run(kind: str) -> None:
        reader = both.readStream.format(kind).option("kafka.bootstrap.servers", real_kafka.bootstrap)
        reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
        query = reader.load().writeStream.foreachBatch(collect).option("checkpointLocation", str(tmp_path)).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    for turn, kind in enumerate(("kafka", "ottla", "ottla")):
        found = [NewRecord(None, b"%d" % turn, 1_600_000_000_000)] * 3
        for partition in (0, 1):
            write_batches(real_kafka.bootstrap, topic, [bytes(build_batch(found))], partition=partition)
        run(kind)
    assert seen == [[(p, 3 * turn + n) for p in (0, 1) for n in range(3)] for turn in range(3)]


def test_the_sink_writes_what_the_official_sink_writes(both: SparkSession, real_kafka: RealKafka) -> None:
    frame = both.sql(
        "select cast(id as string) as key, cast(cast(id * 7 as string) as binary) as value, cast(id % 2 as int) as partition, "
        "array(struct('h' as key, cast('x' as binary) as value)) as headers from range(20)"
    )
    written = {}
    for kind in ("kafka", "ottla"):
        topic = f"written-{kind}-{uuid.uuid4().hex[:6]}"
        create_topic(real_kafka.bootstrap, topic, partitions=2)
        writer = frame.coalesce(1).write.format(kind).option("kafka.bootstrap.servers", real_kafka.bootstrap)
        writer.option("topic", topic).mode("append").save()
        found = read(both, "kafka", real_kafka, subscribe=topic, includeHeaders="true")
        written[kind] = rows(found.select("key", "value", "partition", "offset", "headers", "topic").drop("timestamp"))
    strip = [[tuple(row)[:5] for row in written[kind]] for kind in ("kafka", "ottla")]
    assert strip[0] == strip[1]


@pytest.mark.parametrize(
    ("kind", "batch_error", "stream_error"),
    [
        (
            "kafka",
            "offset 7 is (after the ending|greater than the resolved end) offset 3",
            "offset was changed from 7 to 3",
        ),
        ("ottla", "offset 7 is beyond the end of the log, 3", "offset 7 is beyond the end of the log, 3"),
    ],
)
def test_a_start_beyond_the_end_of_the_log_fails_in_both(
    both: SparkSession, real_kafka: RealKafka, tmp_path: Path, kind: str, batch_error: str, stream_error: str
) -> None:
    topic = f"short-{uuid.uuid4().hex[:8]}"
    create_topic(real_kafka.bootstrap, topic)
    write_batches(real_kafka.bootstrap, topic, [bytes(build_batch([NewRecord(None, b"x", 0)] * 3))])
    starting = {"subscribe": topic, "startingOffsets": f'{{"{topic}": {{"0": 7}}}}'}
    with pytest.raises((PySparkException, Py4JError), match=batch_error):
        read(both, kind, real_kafka, **starting).collect()
    reader = both.readStream.format(kind).option("kafka.bootstrap.servers", real_kafka.bootstrap).options(**starting)
    checkpoint = str(tmp_path / "checkpoint")
    query = reader.load().writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    with pytest.raises(PySparkException, match=stream_error):
        query.processAllAvailable()
    query.stop()
