"""Reading a range while brokers come and go, and what is made of answers that lie."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.client.addresses import parse_addresses
from ottla.client.cluster import ClientOptions
from ottla.client.errors import CannotConnect
from ottla.core.errors import CorruptMessage, KafkaError, RequestTimedOut
from ottla.pipeline.connector.decoding import Batches, decode
from ottla.pipeline.connector.offset_counts import OffsetCounts
from ottla.pipeline.connector.options import BrokerOptions, ReadOptions
from ottla.pipeline.connector.range_reader import DataLoss, PartitionRange, RangeReader, TopicRecreated
from ottla.records.builder import NewRecord, build_batch
from tests.conftest import Broker
from tests.support.ottla_process import OttlaProcess
from tests.support.topics import create_topic, delete_topic, write_batches

RECORDS, PER_BATCH = 600, 20


def reading(bootstrap: str, *, retry_s: float = 30.0, **more: Any) -> ReadOptions:
    return ReadOptions(BrokerOptions(parse_addresses(bootstrap), ClientOptions(retry_s=retry_s)), **more)


def filled(bootstrap: str) -> str:
    topic = f"range-{uuid.uuid4().hex[:8]}"
    create_topic(bootstrap, topic)
    batches = [
        bytes(build_batch([NewRecord(None, b"%d" % n, 1_700_000_000_000) for n in range(at, at + PER_BATCH)]))
        for at in range(0, RECORDS, PER_BATCH)
    ]
    write_batches(bootstrap, topic, batches)
    return topic


def values(batches: Batches) -> list[bytes]:
    found = decode(batches, topic="t", partition=0, first_offset=0, end_offset=1 << 40, names=("value",))
    return [value for piece in found for value in piece.column("value").to_pylist()]


@pytest.mark.external
def test_a_broker_that_is_killed_and_comes_back_is_read_on(tmp_path: Path) -> None:
    server = OttlaProcess(tmp_path / "broker").start()
    try:
        topic = filled(server.bootstrap)
        reader = RangeReader(reading(server.bootstrap, fetch_bytes=300), PartitionRange(topic, 0, 0, RECORDS))
        read: list[bytes] = []
        for turn, batches in enumerate(reader.batches()):
            found = values(batches)
            read += found
            reader.count_decoded(batches, len(found))
            if turn in {1, 5, 9}:
                server.kill()
                server.start()
        assert read == [b"%d" % n for n in range(RECORDS)]
        assert reader.offset_counts == OffsetCounts(records=RECORDS)
    finally:
        server.stop()


@pytest.mark.external
def test_a_broker_that_does_not_come_back_ends_the_reading_in_bounded_time(tmp_path: Path) -> None:
    server = OttlaProcess(tmp_path / "broker").start()
    topic = filled(server.bootstrap)
    reader = RangeReader(reading(server.bootstrap, retry_s=1.0, fetch_bytes=300), PartitionRange(topic, 0, 0, RECORDS))
    batches = reader.batches()
    next(batches)
    server.kill()
    with pytest.raises((CannotConnect, KafkaError)):
        list(batches)
    with pytest.raises(CannotConnect):
        list(RangeReader(reading(server.bootstrap, retry_s=0.2), PartitionRange(topic, 0, 0, 1)).batches())


@pytest.mark.external
def test_an_end_that_the_log_never_reaches_is_an_error(broker: Broker) -> None:
    topic = filled(broker.bootstrap)
    how = reading(broker.bootstrap, retry_s=0.5, fetch_wait_ms=50)
    with pytest.raises(
        RequestTimedOut, match=r"nothing comes from offset 600 on; what can be read ends at 600, and 601"
    ):
        list(RangeReader(how, PartitionRange(topic, 0, 0, RECORDS + 1)).batches())


@pytest.mark.external
def test_a_start_after_the_log_end_is_data_loss(broker: Broker) -> None:
    topic = filled(broker.bootstrap)
    wanted = PartitionRange(topic, 0, RECORDS + 5, RECORDS + 9)
    with pytest.raises(DataLoss, match="offset 605 is after the end of the log"):
        list(RangeReader(reading(broker.bootstrap), wanted).batches())
    reader = RangeReader(reading(broker.bootstrap, fail_on_data_loss=False), wanted)
    assert list(reader.batches()) == []
    assert reader.offset_counts == OffsetCounts(lost=4)


@pytest.mark.external
def test_a_topic_recreated_between_plan_and_task_is_detected(broker: Broker) -> None:
    topic = filled(broker.bootstrap)
    delete_topic(broker.bootstrap, topic)
    create_topic(broker.bootstrap, topic)
    wanted = PartitionRange(topic, 0, 0, 5, topic_id="AAAAAAAAAAAAAAAAAAAAAQ")
    with pytest.raises(TopicRecreated, match="it was recreated"):
        list(RangeReader(reading(broker.bootstrap), wanted).batches())
    reader = RangeReader(reading(broker.bootstrap, fail_on_data_loss=False), wanted)
    assert list(reader.batches()) == []
    assert reader.offset_counts == OffsetCounts(lost=5)


def answer(records: bytes) -> Any:
    return SimpleNamespace(records=records, aborted_transactions=None, high_watermark=100, last_stable_offset=100)


def test_a_batch_with_a_wrong_checksum_is_refused_unless_checks_are_disabled() -> None:
    broken = bytearray(build_batch([NewRecord(None, b"value")]))
    broken[-2] ^= 1
    how = reading("a:1")
    reader = RangeReader(how, PartitionRange("t", 0, 0, 10))
    with pytest.raises(CorruptMessage, match="t-0: the batch at offset 0 does not match its checksum"):
        reader._walk(answer(bytes(broken)), 0)
    assert reader.offset_counts == OffsetCounts(), "an answer that failed counts for nothing"
    assert (
        RangeReader(replace(how, check_crcs=False), PartitionRange("t", 0, 0, 10))
        ._walk(answer(bytes(broken)), 0)
        .batches
    )


def test_a_partial_batch_at_the_end_of_a_response_is_read_by_the_next_fetch() -> None:
    first = bytes(build_batch([NewRecord(None, b"one")]))
    second = bytes(build_batch([NewRecord(None, b"two")], base_offset=1))
    reader = RangeReader(reading("a:1"), PartitionRange("t", 0, 0, 10))
    walked = reader._walk(answer(first + second[:-3]), 0)
    assert walked.next_offset == 1
    assert values(walked.batches) == [b"one"]
