"""Whole topics through Spark, counted against what was produced: transactions, codecs, compaction, a real access log.

Small here; `make large` has five million records of 200 B.
"""

from __future__ import annotations

import gzip
import os
import uuid
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from ottla.client.addresses import parse_addresses
from ottla.core.ids import TopicPartition
from ottla.pipeline.connector.offset_client import OffsetClient
from ottla.pipeline.connector.offset_counts import OffsetCounts
from ottla.pipeline.connector.options import BrokerOptions, ReadOptions
from ottla.pipeline.connector.range_reader import PartitionRange
from ottla.pipeline.source import BrokerReader, Brokers
from tests.support.processes import until
from tests.support.real_kafka import RealKafka
from tests.support.topics import create_topic

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.external, pytest.mark.timeout(3600)]
RECORDS = int(os.environ.get("OTTLA_RECORDS", "40000"))
PARTITIONS, SIZE, PER_TRANSACTION = 4, 200, 2000
ACCESS_LOG = Path(__file__).resolve().parents[3] / "examples" / "access.log.gz"


@dataclass
class Written:
    """What a reader of committed records must find: how many in each partition, and a sum over their values."""

    counts: Counter[int] = field(default_factory=Counter)
    sums: Counter[int] = field(default_factory=Counter)

    def add(self, partition: int, value: bytes) -> None:
        self.counts[partition] += 1
        self.sums[partition] += zlib.crc32(value)

    def as_rows(self) -> list[tuple[int, int, int]]:
        return sorted((p, count, self.sums[p]) for p, count in self.counts.items())


def producer(kafka: RealKafka, **settings: Any) -> Producer:
    return Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 20, "log_level": 0, **settings})


def send(writer: Producer, topic: str, key: bytes | None, value: bytes, partition: int) -> None:
    while True:
        try:
            writer.produce(topic, value, key, partition=partition)
            return
        except BufferError:
            writer.poll(0.1)


def padded(number: int) -> bytes:
    return b"%0*d" % (SIZE, number)


def found_by_spark(spark: SparkSession, kafka: RealKafka, topic: str) -> list[tuple[int, int, int]]:
    reader = spark.read.format("ottla").option("kafka.bootstrap.servers", kafka.bootstrap).option("subscribe", topic)
    frame = reader.option("kafka.isolation.level", "read_committed").option("minPartitions", "6").load()
    rows = frame.groupBy("partition").count()
    summed = frame.selectExpr("partition", "crc32(value) crc").groupBy("partition").sum("crc").collect()
    sums = {row[0]: row[1] for row in summed}
    offsets = frame.select("partition", "offset").distinct().groupBy("partition").count().collect()
    counts = {row[0]: row[1] for row in rows.collect()}
    assert {row[0]: row[1] for row in offsets} == counts, "an offset came twice"
    return sorted((p, count, sums[p]) for p, count in counts.items())


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_every_committed_record_of_many_transactions_is_read_once(
    spark: SparkSession, real_kafka: RealKafka, codec: str
) -> None:
    topic = f"large-{codec}-{uuid.uuid4().hex[:6]}"
    create_topic(real_kafka.bootstrap, topic, partitions=PARTITIONS)
    writer = producer(real_kafka, **{"transactional.id": topic, "compression.type": codec})
    writer.init_transactions(60)
    written, aborted = Written(), 0
    for at in range(0, RECORDS, PER_TRANSACTION):
        writer.begin_transaction()
        is_aborted = at // PER_TRANSACTION % 5 == 3
        for number in range(at, min(at + PER_TRANSACTION, RECORDS)):
            value = padded(number)
            send(writer, topic, None, value, number % PARTITIONS)
            if not is_aborted:
                written.add(number % PARTITIONS, value)
        writer.flush(120)
        (writer.abort_transaction if is_aborted else writer.commit_transaction)(60)
        aborted += is_aborted
    assert aborted > 0
    assert found_by_spark(spark, real_kafka, topic) == written.as_rows()


def test_the_holes_of_a_compacted_topic_are_accounted_for(spark: SparkSession, real_kafka: RealKafka) -> None:
    topic = f"holes-{uuid.uuid4().hex[:6]}"
    config = {"cleanup.policy": "compact", "segment.bytes": str(1 << 20), "min.cleanable.dirty.ratio": "0.01"}
    create_topic(real_kafka.bootstrap, topic, partitions=PARTITIONS, config=config)
    writer = producer(real_kafka)
    last: dict[tuple[int, bytes], bytes] = {}
    for number in range(RECORDS):
        key, value = b"%d" % (number % 997 if number % 10 else number), padded(number)
        send(writer, topic, key, value, number % PARTITIONS)
        last[number % PARTITIONS, key] = value
    writer.flush(120)
    how = ReadOptions(BrokerOptions(parse_addresses(real_kafka.bootstrap)))

    def offset_counts() -> OffsetCounts:
        total = OffsetCounts()
        for partition in range(PARTITIONS):
            for _ in read(real_kafka, topic, partition, ends[TopicPartition(topic, partition)], total):
                pass
        return total

    offset_client = OffsetClient(how)
    bounds = offset_client.bounds([TopicPartition(topic, partition) for partition in range(PARTITIONS)])
    offset_client.close()
    ends = {tp: span.end_offset for tp, span in bounds.items()}
    if RECORDS * SIZE > PARTITIONS * 4 << 20:  # enough for closed segments, which alone are compacted
        until(lambda: offset_counts().compacted > 0, timeout_s=300, what="compaction")
    total = offset_counts()
    assert total.offsets == RECORDS == sum(ends.values())
    assert total.records + total.compacted == RECORDS
    reader = spark.read.format("ottla").option("kafka.bootstrap.servers", real_kafka.bootstrap)
    frame = reader.option("subscribe", topic).load()
    frame.createOrReplaceTempView("holes")
    newest = spark.sql(
        "select partition, key, max_by(value, offset) value from holes group by partition, key"
    ).collect()
    assert {(row.partition, bytes(row.key)): bytes(row.value) for row in newest} == last


def read(kafka: RealKafka, topic: str, partition: int, end: int, offset_counts: OffsetCounts) -> Iterator[Any]:
    from ottla.pipeline.offset_range import OffsetRange

    wanted = PartitionRange(topic, partition, 0, end)
    yield from BrokerReader(Brokers(kafka.bootstrap), topic).read(
        OffsetRange(partition, wanted.first_offset, end), offset_counts
    )


def test_a_real_access_log_comes_back_line_by_line(spark: SparkSession, real_kafka: RealKafka) -> None:
    topic = f"access-{uuid.uuid4().hex[:6]}"
    create_topic(real_kafka.bootstrap, topic, partitions=PARTITIONS)
    writer, written = producer(real_kafka, **{"compression.type": "gzip"}), Written()
    with gzip.open(ACCESS_LOG) as file:
        for number, line in enumerate(file):
            send(writer, topic, None, line, number % PARTITIONS)
            written.add(number % PARTITIONS, line)
    writer.flush(120)
    assert sum(written.counts.values()) == 10_000
    assert found_by_spark(spark, real_kafka, topic) == written.as_rows()
