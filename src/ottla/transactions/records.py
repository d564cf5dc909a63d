"""Encodes and decodes the records of `__transaction_state` in Kafka's binary formats.

Written are what Kafka 4 writes with transaction.version 2: TransactionLogKey 0 and TransactionLogValue 1. Read are all
versions that Kafka ever wrote. A null value deletes the transactional id.
"""

from __future__ import annotations

import struct
from itertools import groupby
from typing import NamedTuple

from ottla.core.ids import TopicPartition
from ottla.transactions.metadata import NO_PRODUCER_ID, TransactionMetadata, TransactionState, TransactionVersion
from ottla.wire.errors import MalformedRequest
from ottla.wire.primitives import (
    read_length,
    read_tagged_fields,
    string_reader,
    string_writer,
    write_length,
    write_uvarint,
)

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


def decode(key: bytes, value: bytes | None) -> TransactionRecord | None:
    """Decode a record; None if it is of an unknown type. Raises `MalformedTransactionRecord`."""
    try:
        (version,) = struct.unpack_from(">h", key)
        if version != KEY_VERSION:
            return None
        transactional_id, _ = string_reader(flexible=False, nullable=False)(key, 2)
        return TransactionRecord(
            str(transactional_id), None if value is None else _TransactionValueReader(value).metadata()
        )
    except (MalformedRequest, struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise MalformedTransactionRecord(f"key {key[:64].hex()}: {error}") from error


class _TransactionValueReader:
    """Reads the fields of a value one by one."""

    __slots__ = ("_at", "_data", "_flexible")

    def __init__(self, data: bytes) -> None:
        self._data, self._at, self._flexible = data, 0, False

    def metadata(self) -> TransactionMetadata:
        version, producer_id, epoch, timeout_ms, status = self._unpack(_HEAD)
        if not 0 <= version <= VALUE_VERSION:
            raise MalformedRequest(f"a value of version {version}")
        self._flexible = version >= _FLEXIBLE_VALUE
        partitions = self._partitions()
        updated_ms, started_ms = self._unpack(_TIMES)
        tags = self._tags()
        return TransactionMetadata(
            producer_id=producer_id,
            producer_epoch=epoch,
            timeout_ms=timeout_ms,
            state=TransactionState(status),
            partitions=partitions,
            updated_wall_ms=updated_ms,
            started_wall_ms=started_ms,
            previous_producer_id=_number(tags.get(_TAG_PREVIOUS_PRODUCER_ID), NO_PRODUCER_ID),
            next_producer_id=_number(tags.get(_TAG_NEXT_PRODUCER_ID), NO_PRODUCER_ID),
            client_version=TransactionVersion(_number(tags.get(_TAG_CLIENT_VERSION), 0)),
        )

    def _unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        found: tuple[int, ...] = layout.unpack_from(self._data, self._at)
        self._at += layout.size
        return found

    def _partitions(self) -> frozenset[TopicPartition]:
        found: set[TopicPartition] = set()
        for _ in range(self._count()):
            topic, self._at = string_reader(self._flexible, nullable=False)(self._data, self._at)
            for _ in range(self._count()):
                (index,) = self._unpack(_INT32)
                found.add(TopicPartition(str(topic), index))
            self._tags()
        return frozenset(found)

    def _count(self) -> int:
        found, self._at = read_length(self._data, self._at, self._flexible)
        if found > len(self._data):
            raise MalformedRequest(f"{found} elements in {len(self._data)} bytes")
        return found  # -1 stands for null

    def _tags(self) -> dict[int, bytes]:
        """Read the tagged fields by number; none before the flexible versions."""
        if not self._flexible:
            return {}
        found, self._at = read_tagged_fields(self._data, self._at)
        return found


def _number(raw: bytes | None, default: int) -> int:
    return default if raw is None else int.from_bytes(raw, "big", signed=True)
