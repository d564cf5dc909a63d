"""Bytes of `__transaction_state`, as Apache Kafka writes and reads them."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ottla.core.ids import TopicPartition
from ottla.internal_topics.partitioning import partition_of
from ottla.transactions import records
from ottla.transactions.metadata import TransactionMetadata, TransactionState, TransactionVersion
from ottla.transactions.records import MalformedTransactionRecord, TransactionRecord

LOG: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "golden" / "transaction_state.json").read_text(encoding="utf-8")
)["log"]
EMPTY = TransactionMetadata(
    producer_id=5,
    producer_epoch=0,
    timeout_ms=60_000,
    state=TransactionState.EMPTY,
    updated_wall_ms=1_795_246_990_576,
    previous_producer_id=5,
)
PREPARED = replace(
    EMPTY,
    state=TransactionState.PREPARE_COMMIT,
    producer_epoch=32767,
    next_producer_id=6,
    partitions=frozenset({TopicPartition("web", 1), TopicPartition("web", 0), TopicPartition("a", 7)}),
    started_wall_ms=1_795_246_990_000,
    client_version=TransactionVersion.TV_2,
)


@pytest.mark.parametrize("metadata", [EMPTY, PREPARED, replace(EMPTY, previous_producer_id=-1)])
def test_a_state_is_read_as_it_was_written(metadata: TransactionMetadata) -> None:
    key, value = records.transaction_key("app"), records.transaction_value(metadata)
    assert records.decode(key, value) == TransactionRecord("app", metadata)


def test_no_value_deletes_the_id() -> None:
    assert records.decode(records.transaction_key("app"), None) == TransactionRecord("app", None)


def test_a_record_of_another_type_is_not_ours() -> None:
    assert records.decode(b"\0\x09\0\x03app", b"") is None


def old_value(partitions: bytes, state: int) -> bytes:
    """Version 0, which Kafka before 4.0 wrote."""
    return struct.pack(">hqhib", 0, 5, 3, 60_000, state) + partitions + struct.pack(">qq", 20, 10)


def test_the_records_of_older_kafkas_are_read() -> None:
    web = b"\0\0\0\x01" + b"\0\x03web" + b"\0\0\0\x02" + b"\0\0\0\0" + b"\0\0\0\x01"
    found = records.decode(records.transaction_key("app"), old_value(web, 1))
    assert found == TransactionRecord(
        "app",
        TransactionMetadata(
            producer_id=5,
            producer_epoch=3,
            timeout_ms=60_000,
            state=TransactionState.ONGOING,
            updated_wall_ms=20,
            started_wall_ms=10,
            partitions=frozenset({TopicPartition("web", 0), TopicPartition("web", 1)}),
        ),
    )
    empty = records.decode(records.transaction_key("app"), old_value(b"\xff\xff\xff\xff", 0))
    assert empty is not None
    assert empty.metadata is not None
    assert empty.metadata.partitions == frozenset()


def test_unknown_tagged_fields_are_skipped() -> None:
    value = records.transaction_value(replace(EMPTY, previous_producer_id=-1))
    assert value.endswith(b"\0")
    newer = value[:-1] + b"\x01\x03\x02\0\x07"  # tag 3, NextProducerEpoch of KIP-939
    found = records.decode(records.transaction_key("app"), newer)
    assert found == TransactionRecord("app", replace(EMPTY, previous_producer_id=-1))


VALUE = records.transaction_value(PREPARED)


@pytest.mark.parametrize(
    "value", [b"", b"\0\x02" + VALUE[2:], VALUE[:-1], VALUE[:20], b"\0\x01" + VALUE[2:16] + b"\x09"]
)
def test_malformed_records_are_reported(value: bytes) -> None:
    with pytest.raises(MalformedTransactionRecord):
        records.decode(records.transaction_key("app"), value)


def test_every_cut_is_reported_or_read() -> None:
    for size in range(len(VALUE)):
        with pytest.raises(MalformedTransactionRecord):
            records.decode(records.transaction_key("app"), VALUE[:size])


@pytest.mark.parametrize("entry", LOG, ids=range(len(LOG)))
def test_records_of_kafka_are_written_again_byte_for_byte(entry: dict[str, Any]) -> None:
    found = records.decode(bytes.fromhex(entry["key"]), bytes.fromhex(entry["value"]))
    assert found is not None
    assert found.metadata is not None
    assert records.transaction_key(found.transactional_id).hex() == entry["key"]
    written = records.transaction_value(found.metadata)
    if len(found.metadata.partitions) > 1:  # in the order of Java's hash codes there
        assert sorted(written) == sorted(bytes.fromhex(entry["value"]))
    else:
        assert written.hex() == entry["value"]
    assert partition_of(found.transactional_id, 3) == entry["partition"]


def test_kafka_wrote_every_state_that_stays() -> None:
    found = [records.decode(bytes.fromhex(entry["key"]), bytes.fromhex(entry["value"])) for entry in LOG]
    states = {one.metadata.state for one in found if one is not None and one.metadata is not None}
    assert states == set(TransactionState) - {TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE}
