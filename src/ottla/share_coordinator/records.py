"""Encodes and decodes the records of `__share_group_state` in Kafka's binary formats.

Every key begins with an int16 type: 0 is a ShareSnapshot, the whole state of a share partition, and 1 a ShareUpdate,
a change of it. Every value begins with the int16 version 0. A snapshot without a value deletes the state.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from ottla.core.ids import id_text
from ottla.internal_topics.topic_log import KeyValue
from ottla.share_coordinator.states import RecordState, StateBatch
from ottla.wire.errors import MalformedRequest
from ottla.wire.primitives import (
    read_length,
    read_uuid,
    read_uvarint,
    string_reader,
    string_writer,
    write_length,
    write_uuid,
    write_uvarint,
)

SNAPSHOT_TYPE, UPDATE_TYPE = 0, 1
_VERSION = 0
_COMPLETE_COUNT_TAG = 0
UNKNOWN_COUNT = -1

_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
_SNAPSHOT_HEAD = struct.Struct(">hiiiqqq")
_UPDATE_HEAD = struct.Struct(">hiiq")
_BATCH = struct.Struct(">qqbh")


class MalformedStateRecord(ValueError):
    """Reports a record of `__share_group_state` in an unknown format."""


class SharePartitionKey(NamedTuple):
    """Names a share partition."""

    group_id: str
    topic_id: UUID
    partition: int

    @property
    def text(self) -> str:
        """Return the text whose hash determines the coordinator: group, topic id and partition."""
        return f"{self.group_id}:{id_text(self.topic_id)}:{self.partition}"


class Snapshot(NamedTuple):
    """Holds the whole state of a share partition."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int = UNKNOWN_COUNT
    created_wall_ms: int = 0
    written_wall_ms: int = 0
    batches: tuple[StateBatch, ...] = ()


class Update(NamedTuple):
    """Holds a change of the state of a share partition."""

    snapshot_epoch: int
    leader_epoch: int
    start_offset: int  # -1: unchanged
    delivery_complete_count: int = UNKNOWN_COUNT
    batches: tuple[StateBatch, ...] = ()


class StateRecord(NamedTuple):
    """Holds a record of a share partition; None as content deletes the state."""

    key: SharePartitionKey
    content: Snapshot | Update | None


def _key(record_type: int, key: SharePartitionKey) -> bytes:
    out = bytearray(_INT16.pack(record_type))
    string_writer(flexible=False, nullable=False)(out, key.group_id)
    write_uuid(out, key.topic_id)
    out += _INT32.pack(key.partition)
    return bytes(out)


def encode(record: StateRecord) -> KeyValue:
    """Encode a record."""
    match record.content:
        case Snapshot():
            return _key(SNAPSHOT_TYPE, record.key), _snapshot_value(record.content)
        case Update():
            return _key(UPDATE_TYPE, record.key), _update_value(record.content)
        case None:
            return _key(SNAPSHOT_TYPE, record.key), None


def _snapshot_value(snapshot: Snapshot) -> bytes:
    out = bytearray(
        _SNAPSHOT_HEAD.pack(
            _VERSION,
            snapshot.snapshot_epoch,
            snapshot.state_epoch,
            snapshot.leader_epoch,
            snapshot.start_offset,
            snapshot.created_wall_ms,
            snapshot.written_wall_ms,
        )
    )
    _write_tail(out, snapshot.batches, snapshot.delivery_complete_count)
    return bytes(out)


def _update_value(update: Update) -> bytes:
    out = bytearray(_UPDATE_HEAD.pack(_VERSION, update.snapshot_epoch, update.leader_epoch, update.start_offset))
    _write_tail(out, update.batches, update.delivery_complete_count)
    return bytes(out)


def _write_tail(out: bytearray, batches: Sequence[StateBatch], complete_count: int) -> None:
    write_length(out, len(batches), True)
    for batch in batches:
        out += _BATCH.pack(batch.first, batch.last, batch.state, batch.delivery_count)
        write_uvarint(out, 0)  # no tagged fields
    if complete_count == UNKNOWN_COUNT:
        write_uvarint(out, 0)
        return
    for number in (1, _COMPLETE_COUNT_TAG, _INT32.size):
        write_uvarint(out, number)
    out += _INT32.pack(complete_count)


def decode(key: bytes, value: bytes | None) -> StateRecord:
    """Decode a record. Raises `MalformedStateRecord`."""
    try:
        (record_type,) = _INT16.unpack_from(key)
        group_id, at = string_reader(flexible=False, nullable=False)(key, _INT16.size)
        topic_id, at = read_uuid(key, at)
        (partition,) = _INT32.unpack_from(key, at)
        name = SharePartitionKey(str(group_id), topic_id, partition)
        if record_type not in (SNAPSHOT_TYPE, UPDATE_TYPE):
            raise MalformedStateRecord(f"A record has the unknown type {record_type}.")
        if value is None:
            return StateRecord(name, None)
        return StateRecord(name, _snapshot(value) if record_type == SNAPSHOT_TYPE else _update(value))
    except (MalformedRequest, struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise MalformedStateRecord(f"key {key[:64].hex()}: {error}") from error


def _snapshot(value: bytes) -> Snapshot:
    version, snapshot_epoch, state_epoch, leader_epoch, start, created_ms, written_ms = _SNAPSHOT_HEAD.unpack_from(
        value
    )
    batches, complete_count = _read_tail(value, version, _SNAPSHOT_HEAD.size)
    return Snapshot(snapshot_epoch, state_epoch, leader_epoch, start, complete_count, created_ms, written_ms, batches)


def _update(value: bytes) -> Update:
    version, snapshot_epoch, leader_epoch, start = _UPDATE_HEAD.unpack_from(value)
    batches, complete_count = _read_tail(value, version, _UPDATE_HEAD.size)
    return Update(snapshot_epoch, leader_epoch, start, complete_count, batches)


def _read_tail(value: bytes, version: int, at: int) -> tuple[tuple[StateBatch, ...], int]:
    if version != _VERSION:
        raise MalformedStateRecord(f"A value has the unknown version {version}.")
    count, at = read_length(value, at, True)
    if not 0 <= count <= len(value) // _BATCH.size:
        raise MalformedStateRecord(f"A value of {len(value)} bytes announces {count} batches.")
    batches = []
    for _ in range(count):
        first, last, state, delivery_count = _BATCH.unpack_from(value, at)
        at = _skip_tags(value, at + _BATCH.size)[0]
        batches.append(StateBatch(first, last, RecordState(state), delivery_count))
    _, complete_count = _skip_tags(value, at)
    return tuple(batches), complete_count


def _skip_tags(value: bytes, at: int) -> tuple[int, int]:
    """Read tagged fields; returns the place after them and the delivery complete count."""
    complete_count = UNKNOWN_COUNT
    count, at = read_uvarint(value, at)
    for _ in range(count):
        tag, at = read_uvarint(value, at)
        size, at = read_uvarint(value, at)
        if at + size > len(value):
            raise MalformedStateRecord("A tagged field extends beyond the end of its value.")
        if tag == _COMPLETE_COUNT_TAG and size == _INT32.size:
            (complete_count,) = _INT32.unpack_from(value, at)
        at += size
    return at, complete_count
