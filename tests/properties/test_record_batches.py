"""Batches: what the builder makes, the scanner reads back; what foreign clients make, it reads too."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from ottla.core.errors import CorruptMessage
from ottla.records.batch import BatchHeader, split, stamp, stamp_log_append_time
from ottla.records.batch_faults import is_checksum_right
from ottla.records.builder import NewRecord, build_batch
from ottla.records.record_reader import Record, read_columns, read_records
from tests.support.examples import examples

CODECS = range(5)
CODEC_IDS = ["none", "gzip", "snappy", "lz4", "zstd"]
every_codec = pytest.mark.parametrize("codec", CODECS, ids=CODEC_IDS)
some = settings(max_examples=examples(40), deadline=None)

headers = st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=5))), max_size=3)
nullable = st.one_of(st.none(), st.binary(max_size=200))
times = st.integers(0, 2**42)
new_records = st.lists(st.builds(NewRecord, nullable, nullable, times, headers), min_size=1, max_size=20)


@every_codec
@some
@given(records=new_records, base_offset=st.integers(0, 2**60))
def test_a_built_batch_is_scanned_back(codec: int, records: list[NewRecord], base_offset: int) -> None:
    batch = build_batch(records, base_offset=base_offset, codec=codec)
    expected = [Record(base_offset + i, r.timestamp_ms, r.key, r.value, list(r.headers)) for i, r in enumerate(records)]
    assert list(read_records(batch)) == expected

    header = BatchHeader(batch)
    assert is_checksum_right(batch, header)
    assert header.codec == codec
    assert header.record_count == len(records)
    assert header.last_offset == base_offset + len(records) - 1
    assert header.max_timestamp == max(r.timestamp_ms for r in records)


@every_codec
@some
@given(records=new_records)
def test_a_built_batch_is_read_by_two_foreign_clients(codec: int, records: list[NewRecord]) -> None:
    batch = bytes(build_batch(records, codec=codec))
    for foreign in (AiokafkaBatch(bytearray(batch)), KafkaPythonBatch(batch)):
        assert foreign.validate_crc()
        found = [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in foreign]
        assert found == [(i, r.timestamp_ms, r.key, r.value, list(r.headers)) for i, r in enumerate(records)]


@every_codec
@pytest.mark.parametrize("builder", [AiokafkaBuilder, KafkaPythonBuilder], ids=["aiokafka", "kafka-python"])
@some
@given(records=new_records)
def test_a_batch_built_by_a_foreign_client_is_scanned(codec: int, builder: Any, records: list[NewRecord]) -> None:
    building = builder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for i, record in enumerate(records):
        building.append(i, record.timestamp_ms, record.key, record.value, list(record.headers))
    batch = memoryview(bytes(building.build()))
    (only,) = split(batch)
    assert is_checksum_right(batch, only[1])
    assert [record[1:] for record in read_records(batch)] == [
        (r.timestamp_ms, r.key, r.value, list(r.headers)) for r in records
    ]


@some
@given(batches=st.lists(new_records, max_size=5), cut=st.integers(0, 60), length=st.integers(0, 60))
def test_columns_hold_the_records_of_a_range_and_no_others(
    batches: list[list[NewRecord]], cut: int, length: int
) -> None:
    buffer, everything, next_offset = bytearray(), [], 0
    for i, records in enumerate(batches):
        built = build_batch(records, base_offset=next_offset, codec=i % 5)
        everything += list(read_records(built))
        buffer += built
        next_offset += len(records)
    found = read_columns(buffer, from_offset=cut, end_offset=cut + length)
    expected = [record for record in everything if cut <= record.offset < cut + length]
    assert [Record(*row) for row in zip(*found, strict=True)] == expected

    assert read_columns(buffer, want=["value"]).values == [record.value for record in everything]
    assert read_columns(buffer, want=["value"]).keys == []


def test_control_batches_are_no_users_records() -> None:
    marker = build_batch([NewRecord(b"\0\0\0\1", b"\0\0\0\0\0\0", 5)], control=True, transactional=True)
    batch = build_batch([NewRecord(b"k", b"v", 5)], base_offset=1)
    assert list(read_columns(marker + batch).offsets) == [1]
    assert [record.key for record in read_records(marker)] == [b"\0\0\0\1"]


def test_batches_that_a_reader_does_not_want_are_passed_over() -> None:
    mine = build_batch([NewRecord(b"k", b"mine")], producer_id=1)
    theirs = build_batch([NewRecord(b"k", b"theirs")], base_offset=1, producer_id=2)
    found = read_columns(mine + theirs, include=lambda header: header.producer_id == 2)
    assert found.values == [b"theirs"]


@every_codec
def test_a_stamped_batch_keeps_its_checksum(codec: int) -> None:
    batch = build_batch([NewRecord(b"k", b"v", 7)], codec=codec)
    stamp(batch, 0, base_offset=900, leader_epoch=3)
    header = BatchHeader(batch)
    assert is_checksum_right(batch, header)
    assert (header.base_offset, header.partition_leader_epoch) == (900, 3)
    assert [record.offset for record in read_records(batch)] == [900]


@every_codec
def test_log_append_time_stands_for_every_records_time(codec: int) -> None:
    before = build_batch([NewRecord(b"a", b"1", 7), NewRecord(b"b", b"2", 9)], codec=codec)
    batch = bytearray(b"other bytes") + before
    stamp_log_append_time(batch, 11, 1234)
    view = memoryview(batch)[11:]
    assert is_checksum_right(view, BatchHeader(batch, 11))
    assert BatchHeader(batch, 11).log_append_time
    assert [record.timestamp_ms for record in read_records(view)] == [1234, 1234]
    assert batch[:11] == b"other bytes"


def test_records_that_compaction_removed_leave_gaps() -> None:
    kept = [Record(12, 5, b"a", b"1", []), Record(17, 5, b"b", b"2", [])]
    batch = build_batch(kept, base_offset=10, last_offset=19)
    assert list(read_records(batch)) == kept
    assert BatchHeader(batch).last_offset == 19


@pytest.mark.parametrize("cut", [1, 11, 12, 60, 61, 62, -1])
def test_a_batch_cut_short_is_corrupt(cut: int) -> None:
    batch = build_batch([NewRecord(b"key", b"value")])
    with pytest.raises(CorruptMessage):
        list(split(memoryview(batch)[:cut]))


@pytest.mark.parametrize(
    ("at", "value"), [(8, b"\xff\xff\xff\xff"), (8, b"\x7f\xff\xff\xff"), (8, b"\0\0\0\1"), (16, b"\1"), (16, b"\3")]
)
def test_a_length_or_magic_that_cannot_be_is_corrupt(at: int, value: bytes) -> None:
    batch = build_batch([NewRecord(b"key", b"value")])
    batch[at : at + len(value)] = value
    with pytest.raises(CorruptMessage):
        list(split(batch))


@some
@given(st.data())
def test_flipped_bytes_are_found_by_the_checksum(data: st.DataObject) -> None:
    batch = build_batch([NewRecord(b"key", b"value" * 20)])
    at = data.draw(st.integers(21, len(batch) - 1))
    batch[at] ^= data.draw(st.integers(1, 255))
    assert not is_checksum_right(batch, BatchHeader(batch))


@every_codec
@some
@given(st.data())
def test_scanning_flipped_bytes_gives_records_or_corrupt_message(codec: int, data: st.DataObject) -> None:
    batch = build_batch([NewRecord(b"key", b"value" * 20, 5, [("h", b"x")])] * 3, codec=codec)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(57, len(batch) - 1))
        batch[at] = data.draw(st.integers(0, 255))
    try:
        list(read_records(batch))
    except CorruptMessage:
        pass
