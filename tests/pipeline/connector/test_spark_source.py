"""`format("ottla")` as a user meets it: batches and streams on a real Spark, from a real broker."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from ottla.records.builder import NewRecord, build_batch
from tests.conftest import Broker
from tests.support.topics import create_topic, delete_topic, write_batches

pytestmark = [pytest.mark.spark, pytest.mark.slow]
VERSION = tuple(map(int, pyspark.__version__.split(".")[:2]))
PARTITIONS, EACH = 3, 40
LINES_OF_AN_ERROR_MAX = 7
"""Spark's own lines, one place in the code, and the message."""
T0 = 1_600_000_000_000


def fill(broker: Broker, topic: str, *, first: int = 0) -> None:
    """EACH more records in every partition, one second apart; two per batch."""
    for partition in range(PARTITIONS):
        batches = []
        for at in range(first, first + EACH, 2):
            found = [
                NewRecord(b"%d-%d" % (partition, n), b"v%d" % n, T0 + n * 1000, [("h", b"x")] if n % 2 else [])
                for n in (at, at + 1)
            ]
            batches.append(bytes(build_batch(found, codec=at % 5)))
        write_batches(broker.bootstrap, topic, batches, partition=partition)


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"in-{uuid.uuid4().hex[:10]}"
    create_topic(broker.bootstrap, name, partitions=PARTITIONS)
    fill(broker, name)
    return name


def batch(spark: SparkSession, broker: Broker, topic: str, **options: Any) -> DataFrame:
    reader = spark.read.format("ottla").option("kafka.bootstrap.servers", broker.bootstrap)
    return reader.option("subscribe", topic).options(**options).load()


def stream(spark: SparkSession, broker: Broker, topic: str, **options: Any) -> DataStreamReader:
    reader = spark.readStream.format("ottla").option("kafka.bootstrap.servers", broker.bootstrap)
    return reader.option("subscribe", topic).option("startingOffsets", "earliest").options(**options)


def coordinates(frame: DataFrame) -> set[tuple[int, int]]:
    found = [(row.partition, row.offset) for row in frame.select("partition", "offset").collect()]
    assert len(found) == len(set(found))
    return set(found)


def everything(end: int = EACH, first: int = 0) -> set[tuple[int, int]]:
    return {(p, n) for p in range(PARTITIONS) for n in range(first, end)}


@pytest.mark.oldest_spark
def test_a_topic_is_a_data_frame_without_any_import(spark: SparkSession, broker: Broker, topic: str) -> None:
    found = batch(spark, broker, topic, includeHeaders="true")
    assert found.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]
    assert coordinates(found) == everything()
    row = found.where("partition = 1 and offset = 7").selectExpr("*", "unix_millis(timestamp) ms").first()
    assert row is not None
    assert (bytes(row.key), bytes(row.value), row.topic, row.ms, row.timestampType) == (
        b"1-7",
        b"v7",
        topic,
        T0 + 7000,
        0,
    )
    assert [(h.key, bytes(h.value)) for h in row.headers] == [("h", b"x")]
    assert found.where("headers is null").count() == PARTITIONS * EACH // 2


@pytest.mark.oldest_spark
def test_only_the_requested_columns_are_returned(spark: SparkSession, broker: Broker, topic: str) -> None:
    assert batch(spark, broker, topic, columns="offset,partition").columns == ["offset", "partition"]
    reader = spark.read.format("ottla").schema("value binary, offset long")
    found = reader.option("kafka.bootstrap.servers", broker.bootstrap).option("subscribe", topic).load()
    assert sorted(row.offset for row in found.collect()) == sorted([*range(EACH)] * PARTITIONS)
    assert batch(spark, broker, topic, columns="timestampType").distinct().collect()[0][0] == 0


@pytest.mark.oldest_spark
def test_ranges_are_cut_over_the_tasks(spark: SparkSession, broker: Broker, topic: str) -> None:
    for options, tasks in (({}, 3), ({"minPartitions": "7"}, 7), ({"maxRecordsPerPartition": "15"}, 9)):
        found = batch(spark, broker, topic, **options)
        assert found.rdd.getNumPartitions() == tasks
        assert coordinates(found) == everything()


def test_a_batch_begins_and_ends_at_the_given_offsets(spark: SparkSession, broker: Broker, topic: str) -> None:
    offsets = {topic: {"0": 5, "1": -2, "2": 39}}
    found = coordinates(batch(spark, broker, topic, startingOffsets=json.dumps(offsets)))
    assert found == {(0, n) for n in range(5, EACH)} | {(1, n) for n in range(EACH)} | {(2, 39)}
    timed = batch(spark, broker, topic, startingTimestamp=str(T0 + 9500), endingTimestamp=str(T0 + 12_000))
    assert coordinates(timed) == {(p, n) for p in range(PARTITIONS) for n in (10, 11)}
    late = json.dumps({topic: {str(p): T0 + 10**9 for p in range(PARTITIONS)}})
    options = {"startingOffsetsByTimestamp": late, "startingOffsetsByTimestampStrategy": "latest"}
    assert batch(spark, broker, topic, **options).count() == 0
    for how, picked in (
        ({"assign": json.dumps({topic: [2]})}, {(2, n) for n in range(EACH)}),
        ({"subscribePattern": topic[:-1] + "."}, everything()),
    ):
        reader = spark.read.format("ottla").option("kafka.bootstrap.servers", broker.bootstrap)
        assert coordinates(reader.options(**how).load()) == picked


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    """A session that passes the filters of queries to Python sources, if its version can."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield spark
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.parametrize(
    ("condition", "tasks", "expected"),
    [
        ("true", 3, everything()),
        ("partition = 1", 1, {(1, n) for n in range(EACH)}),
        pytest.param(
            "partition in (0, 2) and offset between 5 and 7",
            2,
            {(p, n) for p in (0, 2) for n in (5, 6, 7)},
            marks=pytest.mark.oldest_spark,
        ),
        ("partition != 1 and not offset >= 2", 2, {(p, n) for p in (0, 2) for n in (0, 1)}),
        (f"timestamp >= timestamp_millis({T0 + 37_500})", 3, {(p, n) for p in range(PARTITIONS) for n in (38, 39)}),
        pytest.param(f"timestamp > timestamp_millis({T0 + 39_000})", 1, set(), marks=pytest.mark.oldest_spark),
        ("offset in (3, 9) and topic like 'in-%'", 3, {(p, n) for p in range(PARTITIONS) for n in (3, 9)}),
        ("offset = 3 or offset = 9", 3, {(p, n) for p in range(PARTITIONS) for n in (3, 9)}),
        ("topic = 'another'", 1, set()),
        ("cast(value as string) = 'v3'", 3, {(p, 3) for p in range(PARTITIONS)}),
    ],
)
def test_filters_restrict_what_is_read_where_spark_passes_them(
    pushing: SparkSession, broker: Broker, topic: str, condition: str, tasks: int, expected: set[tuple[int, int]]
) -> None:
    found = batch(pushing, broker, topic).where(condition)
    assert coordinates(found) == expected
    assert found.rdd.getNumPartitions() == (tasks if VERSION >= (4, 1) else PARTITIONS)


@pytest.mark.oldest_spark
def test_a_filter_on_offsets_does_not_read_the_others(pushing: SparkSession, broker: Broker, topic: str) -> None:
    """With few offsets to a task, the number of tasks shows how many are read."""
    found = batch(pushing, broker, topic, maxRecordsPerPartition="8").where("partition = 2 and offset > 23")
    assert coordinates(found) == {(2, n) for n in range(24, EACH)}
    assert found.rdd.getNumPartitions() == (2 if VERSION >= (4, 1) else PARTITIONS * EACH // 8)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        pytest.param(
            {"maxOffsetPerTrigger": "5"},
            "maxoffsetpertrigger: no such option; did you mean maxOffsetsPerTrigger\\?",
            marks=pytest.mark.oldest_spark,
        ),
        ({"assign": '{"t": [0]}'}, "subscribe: assign is given too"),
        ({"startingOffsets": "latest"}, "startingOffsets: a batch that began at the latest"),
        ({"kafka.auto.offset.reset": "earliest"}, "kafka.auto.offset.reset: use startingOffsets"),
        ({"kafka.session.timeouts": "1"}, "kafka.session.timeouts: no such setting"),
        ({"startingOffsets": '{"other": {"0": 1}}'}, "startingOffsets: it must name all partitions"),
        ({"minPartitions": "many"}, "minPartitions: 'many' is no whole number"),
        ({"startingTimestamp": str(T0 + 10**9)}, "startingTimestamp: no record of .* is that late"),
        ({"columns": "offset,size"}, "columns: size is none of"),
    ],
)
def test_an_option_that_is_wrong_is_named(
    spark: SparkSession, broker: Broker, topic: str, options: dict[str, str], why: str
) -> None:
    with pytest.raises(PySparkException, match=why) as raised:
        batch(spark, broker, topic, **options).count()
    assert len(str(raised.value).splitlines()) <= LINES_OF_AN_ERROR_MAX


def test_a_topic_that_is_not_there_is_named_at_once(spark: SparkSession, broker: Broker) -> None:
    with pytest.raises(PySparkException, match="there is no topic nowhere") as raised:
        batch(spark, broker, "nowhere").count()
    assert len(str(raised.value).splitlines()) <= LINES_OF_AN_ERROR_MAX


# ---- Streams


class Collected:
    """What a stream's micro-batches held, in order."""

    def __init__(self) -> None:
        self.batches: list[list[tuple[int, int]]] = []

    def __call__(self, frame: DataFrame, _: int) -> None:
        self.batches.append([(row.partition, row.offset) for row in frame.select("partition", "offset").collect()])

    @property
    def coordinates(self) -> set[tuple[int, int]]:
        found = [record for batch in self.batches for record in batch]
        assert len(found) == len(set(found)), "a record came twice"
        return set(found)


def run(reader: DataStreamReader, checkpoint: Path, into: Callable[[DataFrame, int], None], **trigger: Any) -> None:
    """Until nothing is left, then stop; with a trigger that ends by itself, until it does."""
    writer = reader.load().writeStream.foreachBatch(into).option("checkpointLocation", str(checkpoint))
    query = (writer.trigger(**trigger) if trigger else writer).start()
    try:
        if trigger:
            assert query.awaitTermination(120)
        else:
            query.processAllAvailable()
    finally:
        query.stop()


@pytest.mark.oldest_spark
def test_a_stream_respects_its_limit_per_trigger_and_continues_after_a_restart(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    collected = Collected()
    reader = stream(spark, broker, topic, maxOffsetsPerTrigger="50")
    run(reader, tmp_path, collected)
    assert [len(one) for one in collected.batches] == [50, 50, 20]
    assert collected.coordinates == everything()
    fill(broker, topic, first=EACH)
    run(reader, tmp_path, collected)
    assert [len(one) for one in collected.batches] == [50, 50, 20, 50, 50, 20]
    assert collected.coordinates == everything(2 * EACH)


@pytest.mark.oldest_spark
def test_a_stream_with_available_now_ends_at_the_log_end(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    collected = Collected()
    run(stream(spark, broker, topic), tmp_path, collected, availableNow=True)
    assert collected.coordinates == everything()
    fill(broker, topic, first=EACH)
    run(stream(spark, broker, topic, minPartitions="5"), tmp_path, collected, availableNow=True)
    assert collected.coordinates == everything(2 * EACH)


@pytest.mark.skipif(VERSION < (4, 2), reason="PySpark before 4.2 asks a Python source once with AvailableNow")
def test_a_stream_with_available_now_reads_in_micro_batches_up_to_the_end_at_its_start(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    collected = Collected()

    def with_more_in_the_meantime(frame: DataFrame, number: int) -> None:
        if number == 0:
            fill(broker, topic, first=EACH)
        collected(frame, number)

    reader = stream(spark, broker, topic, maxOffsetsPerTrigger="50", minOffsetsPerTrigger="45")
    run(reader, tmp_path, with_more_in_the_meantime, availableNow=True)
    assert [len(one) for one in collected.batches] == [50, 50, 20]
    assert collected.coordinates == everything()
    run(reader, tmp_path, collected, availableNow=True)
    assert [len(one) for one in collected.batches] == [50, 50, 20] * 2
    assert collected.coordinates == everything(2 * EACH)


@pytest.mark.skipif(VERSION < (4, 2), reason="PySpark before 4.2 passes no read limits")
def test_a_stream_with_the_trigger_once_ignores_its_limit_and_reports_the_end_of_the_log(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    collected = Collected()
    writer = stream(spark, broker, topic, maxOffsetsPerTrigger="50").load().writeStream.foreachBatch(collected)
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(once=True).start()
    assert query.awaitTermination(120)
    assert [len(one) for one in collected.batches] == [PARTITIONS * EACH]
    (source,) = next(p for p in query.recentProgress if p["numInputRows"])["sources"]
    assert json.loads(str(source["latestOffset"]).replace("'", '"'))["offsets"][topic] == dict.fromkeys("012", EACH)


def test_a_stream_begins_at_the_end_by_default_and_finds_new_topics(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    name = f"some-{uuid.uuid4().hex[:8]}"
    create_topic(broker.bootstrap, f"{name}-a", partitions=PARTITIONS)
    fill(broker, f"{name}-a")
    collected = Collected()
    reader = spark.readStream.format("ottla").option("kafka.bootstrap.servers", broker.bootstrap)
    reader = reader.option("subscribePattern", f"{name}-.*")
    run(reader, tmp_path, collected)
    fill(broker, f"{name}-a", first=EACH)
    run(reader, tmp_path, collected)
    assert collected.coordinates == everything(2 * EACH, first=EACH)
    create_topic(broker.bootstrap, f"{name}-b", partitions=PARTITIONS)
    fill(broker, f"{name}-b")
    run(reader, tmp_path, collected)
    assert collected.coordinates == everything(2 * EACH)


@pytest.fixture
def read_topic(spark: SparkSession, broker: Broker, topic: str, tmp_path: Path) -> tuple[str, Collected]:
    """A topic that a stream has read once."""
    collected = Collected()
    run(stream(spark, broker, topic), tmp_path, collected)
    assert collected.coordinates == everything()
    collected.batches.clear()
    return topic, collected


def test_a_recreated_topic_ends_the_stream_or_is_read_from_its_beginning(
    spark: SparkSession, broker: Broker, read_topic: tuple[str, Collected], tmp_path: Path
) -> None:
    topic, collected = read_topic
    delete_topic(broker.bootstrap, topic)
    create_topic(broker.bootstrap, topic, partitions=PARTITIONS)
    fill(broker, topic)
    fill(broker, topic, first=EACH)
    with pytest.raises(PySparkException, match=r"it was deleted and recreated .*failOnDataLoss=false"):
        run(stream(spark, broker, topic), tmp_path, collected)
    assert collected.batches == []
    run(stream(spark, broker, topic, failOnDataLoss="false"), tmp_path, collected)
    assert collected.coordinates == everything(2 * EACH)


def test_records_deleted_before_they_were_read_end_the_stream_or_are_skipped(
    spark: SparkSession, broker: Broker, read_topic: tuple[str, Collected], tmp_path: Path
) -> None:
    import asyncio

    from ottla.client.addresses import parse_addresses
    from ottla.client.cluster import Cluster
    from ottla.client.offsets import delete_records
    from ottla.core.ids import TopicPartition

    topic, collected = read_topic
    fill(broker, topic, first=EACH)

    async def delete() -> None:
        async with await Cluster.connect(parse_addresses(broker.bootstrap)) as cluster:
            await delete_records(cluster, {TopicPartition(topic, p): EACH + 10 for p in range(PARTITIONS)})

    asyncio.run(delete())
    with pytest.raises(PySparkException, match="records were deleted before they were read: offsets 40 to 49"):
        run(stream(spark, broker, topic), tmp_path, collected)
    run(stream(spark, broker, topic, failOnDataLoss="false"), tmp_path, collected)
    assert collected.coordinates == everything(2 * EACH, first=EACH + 10)


@pytest.mark.oldest_spark
@pytest.mark.parametrize("trigger", [{}, {"availableNow": True}])
def test_a_streams_position_is_shown_to_lag_monitors(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path, trigger: dict[str, Any]
) -> None:
    import asyncio

    from ottla.client.addresses import parse_addresses
    from ottla.client.cluster import Cluster
    from ottla.client.groups import committed_offsets

    group = f"stream-{uuid.uuid4().hex[:6]}"
    run(stream(spark, broker, topic, lagGroup=group, maxOffsetsPerTrigger="60"), tmp_path, Collected(), **trigger)

    async def committed() -> dict[Any, Any]:
        async with await Cluster.connect(parse_addresses(broker.bootstrap)) as cluster:
            return await committed_offsets(cluster, group)

    shown = {tp.partition: found.offset for tp, found in asyncio.run(committed()).items()}
    of_one_batch = trigger and VERSION < (4, 2)  # that batch is the whole query, and Spark asks for nothing after it
    assert shown == dict.fromkeys(range(PARTITIONS), 0 if of_one_batch else EACH)
