"""`format("ottla")` as a sink: written rows arrive, at secured clusters too, and a failed task neither loses nor repeats any."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.conftest import Broker
from tests.support.secured_kafka import PASSWORD, USER, start_secured_kafka
from tests.support.topics import ReadRow, create_topic, read_with_librdkafka

pytestmark = [pytest.mark.spark, pytest.mark.slow]
T0 = 1_600_000_000_000


def everything(broker: Broker, topic: str, partitions: int) -> list[ReadRow]:
    return [
        row
        for partition in range(partitions)
        for row in read_with_librdkafka(broker.bootstrap, topic, end_offset=1 << 40, partition=partition)
    ]


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"out-{uuid.uuid4().hex[:10]}"
    create_topic(broker.bootstrap, name, partitions=2)
    return name


@pytest.mark.oldest_spark
def test_keys_values_headers_times_and_partitions_arrive(spark: SparkSession, broker: Broker, topic: str) -> None:
    other = f"{topic}-other"
    create_topic(broker.bootstrap, other)
    frame = spark.sql(
        f"""select if(id = 0, '{other}', '{topic}') topic, cast(id as string) key,
            if(id = 3, null, cast(concat('v', id) as binary)) value,
            if(id in (1, 3), 1, null) partition, timestamp_millis({T0} + id) timestamp,
            if(id = 1, array(struct('h' as key, cast('x' as binary) as value), struct('n' as key, cast(null as binary) as value)), null) headers,
            'passed over' more from range(6)"""
    )
    frame.write.format("ottla").option("kafka.bootstrap.servers", broker.bootstrap).mode("append").save()
    rows = {row.key or b"": row for row in everything(broker, topic, 2)}
    assert sorted(rows) == [b"1", b"2", b"3", b"4", b"5"]
    assert [row.key for row in everything(broker, other, 1)] == [b"0"]
    assert rows[b"1"].headers == (("h", b"x"), ("n", None))
    assert rows[b"3"].value is None
    assert {row.timestamp_ms for row in rows.values()} == {T0 + n for n in range(1, 6)}
    (second,) = [row for row in everything(broker, topic, 2) if row.key == b"3"]
    assert second in read_with_librdkafka(broker.bootstrap, topic, end_offset=9, partition=1)


@pytest.mark.parametrize(
    ("frame", "options", "why"),
    [
        pytest.param("select 'v' value", {}, "topic: give the option topic", marks=pytest.mark.oldest_spark),
        ("select 'k' key", {"topic": "t"}, "value: the sink needs a column"),
        ("select 'v' value", {"topic": "t", "subscribe": "t"}, "subscribe: no such option"),
    ],
)
def test_invalid_rows_are_reported_before_anything_is_written(
    spark: SparkSession, broker: Broker, frame: str, options: dict[str, str], why: str
) -> None:
    writer = spark.sql(frame).write.format("ottla").option("kafka.bootstrap.servers", broker.bootstrap)
    with pytest.raises(PySparkException, match=why):
        writer.options(**options).mode("append").save()
    with pytest.raises(PySparkException, match="a log can only be appended to"):
        writer.options(**options).mode("overwrite").save()


@pytest.mark.oldest_spark
def test_a_task_whose_worker_is_killed_in_the_middle_writes_its_rows_once(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    """The rows come of a worker that kills its neighbour, the sink's, after it has given half of them. Once."""
    once = tmp_path / "killed"

    def half_and_kill(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for at in range(0, batch.num_rows, 100):
                yield batch.slice(at, 100)
                if at >= batch.num_rows // 2 and not once.exists():
                    once.touch()
                    daemon = str(os.getppid())
                    for entry in Path("/proc").iterdir():
                        if entry.name.isdigit() and entry.name != str(os.getpid()):
                            stat = (entry / "stat").read_text() if (entry / "stat").exists() else ""
                            if stat and stat.rpartition(")")[2].split()[1] == daemon:
                                os.kill(int(entry.name), signal.SIGKILL)

    rows = spark.range(0, 4000, 1, 2).selectExpr("cast(id as string) value").mapInArrow(half_and_kill, "value string")
    writer = rows.write.format("ottla").option("kafka.bootstrap.servers", broker.bootstrap).option("topic", topic)
    writer.option("kafka.batch.size", "500").mode("append").save()
    assert once.exists()
    found = [row.value or b"" for row in everything(broker, topic, 2)]
    assert sorted(found) == sorted(b"%d" % n for n in range(4000))


@pytest.mark.external
def test_topics_of_a_secured_cluster_are_written_and_read(
    spark: SparkSession, kafka_jars: Path, tmp_path: Path
) -> None:
    secured = start_secured_kafka(kafka_jars, tmp_path / "secured")
    try:
        create_topic(secured.kafka.bootstrap, "locked")
        jaas = "org.apache.kafka.common.security.scram.ScramLoginModule required"
        options = {
            "kafka.bootstrap.servers": secured.bootstrap("SASL_SSL"),
            "kafka.security.protocol": "SASL_SSL",
            "kafka.ssl.truststore.location": str(secured.papers.ca),
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.jaas.config": f'{jaas} username="{USER}" password="scram-512";',
        }
        frame = spark.range(50).selectExpr("cast(id as string) value")
        frame.write.format("ottla").options(**options, topic="locked").mode("append").save()
        read = spark.read.format("ottla").options(**options, subscribe="locked").load()
        assert sorted(int(bytes(row.value)) for row in read.collect()) == [*range(50)]
        wrong = {**options, "kafka.sasl.jaas.config": f'{jaas} username="{USER}" password="{PASSWORD[:1]}";'}
        with pytest.raises(PySparkException, match="authenticating as alice with SCRAM-SHA-512"):
            spark.read.format("ottla").options(**wrong, subscribe="locked").load().count()
    finally:
        secured.kafka.stop()
