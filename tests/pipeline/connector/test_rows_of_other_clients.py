"""The source's rows against those of confluent-kafka: any batches on Ottla, and transactions on a real Apache Kafka."""

from __future__ import annotations

import random
import uuid

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.client.addresses import parse_addresses
from ottla.core.ids import TopicPartition
from ottla.pipeline.connector.columns import COLUMNS
from ottla.pipeline.connector.decoding import decode
from ottla.pipeline.connector.offset_client import OffsetClient
from ottla.pipeline.connector.offset_counts import OffsetCounts
from ottla.pipeline.connector.options import BrokerOptions, ReadOptions
from ottla.pipeline.connector.range_reader import PartitionRange, RangeReader
from ottla.records.builder import NewRecord, build_batch
from tests.conftest import Broker
from tests.support.examples import examples
from tests.support.real_kafka import RealKafka
from tests.support.topics import ReadRow, create_topic, read_with_librdkafka, write_batches

pytestmark = pytest.mark.external
ALL = tuple(COLUMNS)
_bytes = st.none() | st.just(b"") | st.binary(max_size=20)
_names = st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=4
)  # librdkafka's C strings
records = st.builds(
    NewRecord,
    _bytes,
    _bytes,
    st.just(-1) | st.integers(0, 1_700_000_000_000),
    st.lists(st.tuples(_names | st.just("twice"), _bytes), max_size=4),
)


def reading(bootstrap: str, *, committed: bool = False, fetch_bytes: int = 1 << 20) -> ReadOptions:
    return ReadOptions(BrokerOptions(parse_addresses(bootstrap)), read_committed=committed, fetch_bytes=fetch_bytes)


def read_here(how: ReadOptions, topic: str, first: int, end: int) -> tuple[list[ReadRow], OffsetCounts]:
    reader = RangeReader(how, PartitionRange(topic, 0, first, end))
    rows = []
    for batches in reader.batches():
        count = 0
        for found in decode(batches, topic=topic, partition=0, first_offset=first, end_offset=end, names=ALL):
            count += found.num_rows
            rows += shown(found)
        reader.count_decoded(batches, count)
    return rows, reader.offset_counts


def shown(found: pa.RecordBatch) -> list[ReadRow]:
    times = found.column("timestamp").cast(pa.int64()).to_pylist()
    return [
        ReadRow(
            row["offset"],
            row["key"],
            row["value"],
            time // 1000,
            row["timestampType"] == 1,
            tuple((pair["key"], pair["value"]) for pair in row["headers"] or ()),
        )
        for row, time in zip(found.to_pylist(), times, strict=True)
    ]


def failure_kind_of(how: ReadOptions, topic: str) -> int:
    offset_client = OffsetClient(how)
    try:
        return offset_client.bounds([TopicPartition(topic, 0)])[TopicPartition(topic, 0)].end_offset
    finally:
        offset_client.close()


@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=st.lists(st.tuples(st.lists(records, min_size=1, max_size=12), st.integers(0, 4)), min_size=1, max_size=8),
    append_time=st.booleans(),
    fetch_bytes=st.sampled_from([1, 200, 1 << 20]),
    cut=st.integers(0, 30),
)
def test_any_mix_of_batches_gives_the_rows_that_librdkafka_gives(
    broker: Broker, batches: list[tuple[list[NewRecord], int]], append_time: bool, fetch_bytes: int, cut: int
) -> None:
    topic = f"mix-{uuid.uuid4().hex}"
    kind = "LogAppendTime" if append_time else "CreateTime"
    create_topic(broker.bootstrap, topic, config={"message.timestamp.type": kind})
    write_batches(broker.bootstrap, topic, [bytes(build_batch(found, codec=codec)) for found, codec in batches])
    count = sum(len(found) for found, _ in batches)
    expected = read_with_librdkafka(broker.bootstrap, topic, end_offset=count)
    assert len(expected) == count
    how = reading(broker.bootstrap, fetch_bytes=fetch_bytes)
    middle = min(cut, count)
    first, first_account = read_here(how, topic, 0, middle)
    rest, rest_account = read_here(how, topic, middle, count)
    assert first + rest == expected
    assert (first_account, rest_account) == (OffsetCounts(records=middle), OffsetCounts(records=count - middle))


def write_transactions(bootstrap: str, topic: str, chance: random.Random) -> None:
    """Two transactional producers and one that is none, taking turns; about half of the transactions are aborted."""
    base = {"bootstrap.servers": bootstrap, "linger.ms": 1, "log_level": 0}
    codecs = ["none", "gzip", "snappy", "lz4", "zstd"]
    writers = [
        Producer({**base, "transactional.id": f"{topic}-{n}", "compression.type": chance.choice(codecs)})
        for n in (0, 1)
    ]
    plain = Producer({**base, "compression.type": chance.choice(codecs)})
    for writer in writers:
        writer.init_transactions(30)
    is_open = [False, False]
    for step in range(chance.randrange(10, 25)):
        which = chance.randrange(3)
        writer = plain if which == 2 else writers[which]
        if which < 2 and not is_open[which]:
            writer.begin_transaction()
            is_open[which] = True
        for n in range(chance.randrange(1, 6)):
            key = chance.choice([None, b"", b"k%d" % n])
            both: list[tuple[str, str | bytes | None]] = [("step", b"%d" % step), ("none", None)]
            headers = both[: chance.randrange(3)]
            writer.produce(topic, b"%d-%d" % (step, n), key, partition=0, headers=headers)
        writer.flush(30)
        if which < 2 and chance.random() < 0.5:
            (writer.abort_transaction if chance.random() < 0.5 else writer.commit_transaction)(30)
            is_open[which] = False
    for which, writer in enumerate(writers):
        if is_open[which]:
            (writer.abort_transaction if which else writer.commit_transaction)(30)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_transactions_are_read_as_librdkafka_reads_them_and_every_offset_is_accounted_for(
    real_kafka: RealKafka, seed: int
) -> None:
    topic = f"transactions-{seed}-{uuid.uuid4().hex[:6]}"
    create_topic(real_kafka.bootstrap, topic)
    write_transactions(real_kafka.bootstrap, topic, random.Random(seed))
    for committed in (False, True):
        for fetch_bytes in (1, 300, 1 << 20):
            how = reading(real_kafka.bootstrap, committed=committed, fetch_bytes=fetch_bytes)
            end = failure_kind_of(how, topic)
            expected = read_with_librdkafka(real_kafka.bootstrap, topic, end_offset=end, committed=committed)
            rows, offset_counts = read_here(how, topic, 0, end)
            assert rows == expected
            assert offset_counts.records == len(rows)
            assert offset_counts.offsets == end
            assert offset_counts.control > 0
            assert (offset_counts.aborted > 0) is committed
            assert (offset_counts.compacted, offset_counts.lost) == (0, 0)


def test_read_committed_ends_at_the_first_transaction_that_is_still_open(real_kafka: RealKafka) -> None:
    topic = f"open-{uuid.uuid4().hex[:6]}"
    create_topic(real_kafka.bootstrap, topic)
    plain = Producer({"bootstrap.servers": real_kafka.bootstrap, "log_level": 0})
    plain.produce(topic, b"before", partition=0)
    plain.flush(30)
    writer = Producer({"bootstrap.servers": real_kafka.bootstrap, "transactional.id": topic, "log_level": 0})
    writer.init_transactions(30)
    writer.begin_transaction()
    writer.produce(topic, b"open", partition=0)
    writer.flush(30)
    plain.produce(topic, b"after", partition=0)
    plain.flush(30)
    assert failure_kind_of(reading(real_kafka.bootstrap, committed=True), topic) == 1
    assert failure_kind_of(reading(real_kafka.bootstrap), topic) == 3
    writer.abort_transaction(30)
    rows, offset_counts = read_here(reading(real_kafka.bootstrap, committed=True), topic, 0, 4)
    assert [row.value for row in rows] == [b"before", b"after"]
    assert offset_counts == OffsetCounts(records=2, control=1, aborted=1)


@pytest.mark.slow
def test_compacted_offsets_are_distinguished_from_lost_ones(real_kafka: RealKafka) -> None:
    """Kafka's own cleaner at work: holes inside batches and between them, and records deleted at the front."""
    from tests.support.processes import until

    topic = f"compacted-{uuid.uuid4().hex[:6]}"
    config = {
        "cleanup.policy": "compact",
        "segment.ms": "1",
        "min.cleanable.dirty.ratio": "0.0",
        "min.compaction.lag.ms": "0",
    }
    create_topic(real_kafka.bootstrap, topic, config=config)
    cleaned: set[bytes] = set()  # the keys in the segments that are cleaned: all but the last one, which is open
    for turn in range(6):
        times = 10**12 + turn * 1000  # Kafka begins a new segment by the times of records
        keys = [b"k%d" % (n % 4 if n % 3 else turn * 10 + n) for n in range(12)]
        found = [NewRecord(key, b"%d" % n, times + n) for n, key in enumerate(keys)]
        write_batches(real_kafka.bootstrap, topic, [bytes(build_batch(found, codec=turn % 5))])
        if turn < 5:
            cleaned.update(keys)
    how = reading(real_kafka.bootstrap)
    # The cleaner may need several passes, and what is read below must not change any more.
    until(lambda: read_here(how, topic, 0, 72)[1].compacted == 60 - len(cleaned), timeout_s=90, what="compaction")
    rows, offset_counts = read_here(how, topic, 0, 72)
    assert rows == read_with_librdkafka(real_kafka.bootstrap, topic, end_offset=72)
    assert offset_counts == OffsetCounts(records=len(rows), compacted=72 - len(rows))
    for first in range(0, 72, 7):
        part, counts = read_here(how, topic, first, min(first + 5, 72))
        assert part == [row for row in rows if first <= row.offset < first + 5]
        assert counts.offsets == min(5, 72 - first)
