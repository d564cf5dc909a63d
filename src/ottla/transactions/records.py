"""Encodes and decodes the records of `__transaction_state` in Kafka's binary formats.

Written are what Kafka 4 writes with transaction.version 2: TransactionLogKey 0 and TransactionLogValue 1. Read are all
versions that Kafka ever wrote. A null value deletes the transactional id.
"""

from __future__ import annotations

import struct
from itertools import groupby
from typing import NamedTuple

from ottla.core.ids import NO_PRODUCER_ID, TopicPartition
from ottla.internal_topics.record_fields import RecordFieldReader
from ottla.internal_topics.topic_log import KeyValue
from ottla.transactions.metadata import TransactionMetadata, TransactionState, TransactionVersion
from ottla.wire.errors import MalformedRequest
from ottla.wire.primitives import string_writer, write_length, write_uvarint

KEY_VERSION = 0
VALUE_VERSION = 1
_FLEXIBLE_VALUE = 1

_TAG_PREVIOUS_PRODUCER_ID, _TAG_NEXT_PRODUCER_ID, _TAG_CLIENT_VERSION = 0, 1, 2

_HEAD = struct.Struct(">hqhib")
_TIMES = struct.Struct(">qq")
_INT32 = struct.Struct(">i")


class MalformedTransactionRecord(ValueError):
    """Reports a record of `__transaction_state` in an unknown format."""


class TransactionRecord(NamedTuple):
    """Holds the state of a transactional id; None deletes it."""

    transactional_id: str
    metadata: TransactionMetadata | None


def transaction_key(transactional_id: str) -> bytes:
    """Encode a TransactionLogKey."""
    out = bytearray(KEY_VERSION.to_bytes(2, "big"))
    string_writer(flexible=False, nullable=False)(out, transactional_id)
    return bytes(out)


def transaction_value(metadata: TransactionMetadata) -> bytes:
    """Encode a TransactionLogValue."""
    out = bytearray(
        _HEAD.pack(
            VALUE_VERSION, metadata.producer_id, metadata.producer_epoch, metadata.timeout_ms, metadata.state.value
        )
    )
    if metadata.state is TransactionState.EMPTY:
        write_length(out, -1, flexible=True)
    else:
        _write_partitions(out, metadata.partitions)
    out += _TIMES.pack(metadata.updated_wall_ms, metadata.started_wall_ms)
    tags: list[tuple[int, bytes]] = []
    if metadata.previous_producer_id != NO_PRODUCER_ID:
        tags.append((_TAG_PREVIOUS_PRODUCER_ID, metadata.previous_producer_id.to_bytes(8, "big")))
    if metadata.next_producer_id != NO_PRODUCER_ID:
        tags.append((_TAG_NEXT_PRODUCER_ID, metadata.next_producer_id.to_bytes(8, "big")))
    if metadata.client_version is not TransactionVersion.TV_0:
        tags.append((_TAG_CLIENT_VERSION, metadata.client_version.to_bytes(2, "big")))
    write_uvarint(out, len(tags))
    for tag, value in tags:
        write_uvarint(out, tag)
        write_uvarint(out, len(value))
        out += value
    return bytes(out)


def _write_partitions(out: bytearray, partitions: frozenset[TopicPartition]) -> None:
    by_topic = [
        (topic, [found.partition for found in group])
        for topic, group in groupby(sorted(partitions), key=lambda found: found.topic)
    ]
    write_text = string_writer(flexible=True, nullable=False)
    write_length(out, len(by_topic), flexible=True)
    for topic, indexes in by_topic:
        write_text(out, topic)
        write_length(out, len(indexes), flexible=True)
        for index in indexes:
            out += _INT32.pack(index)
        write_uvarint(out, 0)  # no tagged fields


def encode(record: TransactionRecord) -> KeyValue:
    """Encode a record."""
    value = None if record.metadata is None else transaction_value(record.metadata)
    return transaction_key(record.transactional_id), value


def decode(key: bytes, value: bytes | None) -> TransactionRecord | None:
    """Decode a record; None if it is of an unknown type. Raises `MalformedTransactionRecord`."""
    try:
        reader = RecordFieldReader(key)
        if reader.int16() != KEY_VERSION:
            return None
        return TransactionRecord(reader.text(), None if value is None else _metadata(RecordFieldReader(value)))
    except (MalformedRequest, struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise MalformedTransactionRecord(f"key {key[:64].hex()}: {error}") from error


def _metadata(reader: RecordFieldReader) -> TransactionMetadata:
    reader.version(VALUE_VERSION, flexible=_FLEXIBLE_VALUE)
    producer_id, epoch, timeout_ms = reader.int64(), reader.int16(), reader.int32()
    state = TransactionState(reader.int8())
    partitions = _partitions(reader)
    updated_ms, started_ms = reader.int64(), reader.int64()
    tags = reader.tags()
    return TransactionMetadata(
        producer_id=producer_id,
        producer_epoch=epoch,
        timeout_ms=timeout_ms,
        state=state,
        partitions=partitions,
        updated_wall_ms=updated_ms,
        started_wall_ms=started_ms,
        previous_producer_id=_number(tags.get(_TAG_PREVIOUS_PRODUCER_ID), NO_PRODUCER_ID),
        next_producer_id=_number(tags.get(_TAG_NEXT_PRODUCER_ID), NO_PRODUCER_ID),
        client_version=TransactionVersion(_number(tags.get(_TAG_CLIENT_VERSION), 0)),
    )


def _partitions(reader: RecordFieldReader) -> frozenset[TopicPartition]:
    found: set[TopicPartition] = set()
    for _ in range(reader.count(nullable=True)):
        topic = reader.text()
        for _ in range(reader.count()):
            found.add(TopicPartition(topic, reader.int32()))
        reader.tags()
    return frozenset(found)


def _number(raw: bytes | None, default: int) -> int:
    return default if raw is None else int.from_bytes(raw, "big", signed=True)
