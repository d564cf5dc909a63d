"""Reading a topic: batches to Arrow, and ranges from a broker."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import Counter

import pyarrow as pa
import pytest

from ottla.client.addresses import parse_addresses
from ottla.client.audit import ProducedCounter
from ottla.client.cluster import Cluster
from ottla.client.offsets import OffsetBounds
from ottla.pipeline.connector.offset_client import OffsetClient
from ottla.pipeline.connector.offset_counts import OffsetCounts
from ottla.pipeline.offset_range import OffsetRange
from ottla.pipeline.produce import Outgoing, _with_librdkafka, _with_ottla, ensure_topic
from ottla.pipeline.source import BrokerReader, Brokers, TopicState, decode, topic_state
from ottla.pipeline.topic_reader import RECORDS
from ottla.records.batch import BatchHeader, split
from ottla.records.builder import build_batch
from ottla.records.record_reader import Record
from tests.conftest import Broker


def state_of(bootstrap: str, topic: str) -> TopicState:
    with contextlib.closing(OffsetClient(Brokers(bootstrap).read_options)) as offset_client:
        return topic_state(offset_client, topic)


def batch(first: int, count: int, *, codec: int = 0, control: bool = False) -> bytes:
    records = [
        Record(
            first + n,
            -1 if n == 1 else 1000 + n,
            None if n == 2 else b"k%d" % n,
            None if n == 3 else b"v%d" % n,
            [("h", b"x")],
        )
        for n in range(count)
    ]
    if control:
        records = [Record(first, 0, b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00\x00", [])]
    return bytes(
        build_batch(
            records,
            base_offset=first,
            codec=codec,
            control=control,
            transactional=control,
            producer_id=5 if control else -1,
            producer_epoch=0 if control else -1,
        )
    )


def walked(data: bytes) -> list[tuple[memoryview, BatchHeader]]:
    view = memoryview(data)
    return [(view[at : at + header.size_bytes], header) for at, header in split(view)]


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_batches_become_columns_whatever_their_codec(codec: int) -> None:
    (found,) = decode(walked(batch(10, 5, codec=codec) + batch(20, 1)), "t", OffsetRange(3, 0, 100))
    assert found.schema == RECORDS
    rows = found.to_pylist()
    assert [row["offset"] for row in rows] == [10, 11, 12, 13, 14, 20]
    assert {row["partition"] for row in rows} == {3}
    assert [row["key"] for row in rows] == [b"k0", b"k1", None, b"k3", b"k4", b"k0"]
    assert [row["value"] for row in rows] == [b"v0", b"v1", b"v2", None, b"v4", b"v0"]
    times = found.column("record_time").cast(pa.int64()).to_pylist()
    assert times[0] == 1_000_000
    assert times[2:5] == [1_002_000, 1_003_000, 1_004_000]


def test_records_outside_the_range_are_left_out() -> None:
    (found,) = decode(walked(batch(10, 5) + batch(16, 5)), "t", OffsetRange(0, 12, 18))
    assert found.column("offset").to_pylist() == [12, 13, 14, 16, 17]


def test_headers_come_where_they_are_asked_for() -> None:
    (found,) = decode(walked(batch(0, 2)), "t", OffsetRange(0, 0, 2), headers=True)
    assert found.column("headers").to_pylist() == [[{"key": "h", "value": b"x"}]] * 2


@pytest.fixture(params=["librdkafka", "ottla's own client"])
def filled_topic(request: pytest.FixtureRequest, broker: Broker) -> str:
    topic = f"lines-{uuid.uuid4().hex[:8]}"
    assert ensure_topic(broker.bootstrap, topic, partitions=3, config={}) == 3
    assert ensure_topic(broker.bootstrap, topic, partitions=7, config={}) == 3, "it was there already"
    records = [Outgoing(n % 2, b"key-%d" % n, b"value-%d" % n) for n in range(5000)]
    progressed: Counter[str] = Counter()

    def progress(count: int) -> None:
        progressed["answered"] += count

    counter = ProducedCounter("me")
    if request.param == "librdkafka":
        produced = _with_librdkafka(broker.bootstrap, topic, records, progress, counter)
    else:
        produced = asyncio.run(_with_ottla(broker.bootstrap, topic, records, progress, counter))
    counts = list(counter.reports())
    assert {(c.topic, c.partition, c.first_offset) for c in counts if c.first_offset == 0} == {
        (topic, 0, 0),
        (topic, 1, 0),
    }
    assert sum(count.count for count in counts) == 5000
    assert all(count.bucket_ms > 0 for count in counts)
    assert (produced.acknowledged, produced.first_failure) == ({0: 2500, 1: 2500}, None)
    assert progressed["answered"] == 5000
    return topic


@pytest.mark.external
def test_produced_records_are_read_back_by_ranges(broker: Broker, filled_topic: str) -> None:
    state = state_of(broker.bootstrap, filled_topic)
    assert state.bounds == {0: OffsetBounds(0, 2500), 1: OffsetBounds(0, 2500), 2: OffsetBounds(0, 0)}
    assert state.topic_id
    reader = BrokerReader(Brokers(broker.bootstrap), filled_topic)
    values: list[bytes] = []
    offset_counts = OffsetCounts()
    for first, end in ((0, 1), (1, 999), (999, 2500)):
        for found in reader.read(OffsetRange(1, first, end), offset_counts):
            values += found.column("value").to_pylist()
    assert offset_counts == OffsetCounts(records=2500)
    assert values == [b"value-%d" % n for n in range(1, 5000, 2)]


@pytest.mark.external
def test_a_recreated_topic_has_another_id(broker: Broker, filled_topic: str) -> None:
    from ottla.client.admin import delete_topics

    before = state_of(broker.bootstrap, filled_topic).topic_id

    async def delete() -> None:
        async with await Cluster.connect(parse_addresses(broker.bootstrap)) as cluster:
            await delete_topics(cluster, [filled_topic])

    asyncio.run(delete())  # the functions of the pipeline run loops of their own
    ensure_topic(broker.bootstrap, filled_topic, partitions=3, config={})
    assert state_of(broker.bootstrap, filled_topic).topic_id != before
