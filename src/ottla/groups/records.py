"""Encodes and decodes the records of `__consumer_offsets` in Kafka's binary formats, which lag monitors read too.

Every key and value begins with an int16 version. Written are what Kafka 4.4 writes: OffsetCommitKey 1 with
OffsetCommitValue 4 (1 where the client set its own retention), GroupMetadataKey 2 with GroupMetadataValue 3. Read are
all versions Kafka ever wrote. Record types of newer protocols (KIP-848, share groups) are skipped: a directory written
by Apache Kafka must load.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from ottla.core.ids import NO_TOPIC_ID, TopicPartition
from ottla.groups.classic.events import GroupSnapshot
from ottla.groups.classic.records import GROUP_KEY_VERSION, read_group
from ottla.groups.offsets import NEVER_MS, NO_LEADER_EPOCH, Change, CommittedOffset
from ottla.internal_topics.record_fields import RecordFieldReader
from ottla.internal_topics.topic_log import KeyValue
from ottla.wire.errors import MalformedRequest
from ottla.wire.primitives import read_uuid, string_writer, write_uuid

OFFSET_KEY_VERSION = 1
OFFSET_VALUE_VERSION, EXPIRING_OFFSET_VALUE_VERSION = 4, 1
_OFFSET_KEY_VERSIONS = (0, 1)
_VALUE_VERSION_MAX = 4
_FLEXIBLE_VALUE = 4

_TAG_TOPIC_ID = 0
_UUID_BYTES = 16
_TOPIC_ID_TAG = bytes((1, _TAG_TOPIC_ID, _UUID_BYTES))  # one tagged field, its number and its size
_NO_TAGS = b"\x00"
_OFFSET_KEY_HEAD = OFFSET_KEY_VERSION.to_bytes(2, "big")
_write_string = string_writer(flexible=False, nullable=False)
_write_compact_string = string_writer(flexible=True, nullable=False)

_OFFSET_AND_EPOCH, _TIME = struct.Struct(">qi"), struct.Struct(">q")
_FIXED_BYTES = 15  # version, offset, leader epoch, and one byte for the length of the metadata


class MalformedOffsetsRecord(ValueError):
    """Reports a record of `__consumer_offsets` in an unknown format."""


class OffsetRecord(NamedTuple):
    """Holds an offset of a group; None deletes it."""

    group_id: str
    partition: TopicPartition
    committed: CommittedOffset | None


class GroupRecord(NamedTuple):
    """Holds a classic group; None deletes it."""

    group_id: str
    snapshot: GroupSnapshot | None


class ForeignRecord(NamedTuple):
    """Stands for a record of another type, for example of a KIP-848 group."""

    key_version: int


class GroupChange(NamedTuple):
    """Holds offsets of a group, of records that follow each other in the log."""

    group_id: str
    change: dict[TopicPartition, CommittedOffset | None]


class OffsetRecordReader:
    """Decodes the records of one partition as it is loaded. What many of them have in common is decoded once.

    Records of offsets in the form that Kafka 4 and Ottla write are read here, and given as one change where they are of
    one group and follow each other; all others are given as they are, for `decode`.
    """

    __slots__ = ("_partitions", "_topic_ids")

    def __init__(self) -> None:
        self._partitions: dict[bytes, TopicPartition] = {}
        self._topic_ids: dict[bytes, UUID] = {}

    def read(self, pairs: Sequence[KeyValue]) -> list[GroupChange | KeyValue]:
        """Return the changes of groups, and the other records, in the order of the log."""
        found: list[GroupChange | KeyValue] = []
        prefix, change = b"", dict[TopicPartition, CommittedOffset | None]()  # of the last change
        for key, value in pairs:
            end = _end_of_group(key)
            where = self._partition(key, end) if end else None
            try:
                committed = None if where is None or value is None else self._offset(value)
                if where is None or (committed is None and value is not None):
                    found.append((key, value))
                    prefix = b""
                    continue
                if key[:end] != prefix or where in change:  # a tombstone deletes what came before it
                    prefix, change = key[:end], {}
                    found.append(GroupChange(prefix[4:].decode(), change))
                change[where] = committed
            except UnicodeDecodeError:
                found.append((key, value))
                prefix = b""
        return found

    def _partition(self, key: bytes, at: int) -> TopicPartition | None:
        rest = key[at:]
        known = self._partitions.get(rest)
        if known is None:
            try:
                record = decode(key, None)
            except MalformedOffsetsRecord:
                return None
            assert isinstance(record, OffsetRecord), "the version of the key is that of an offset"
            known = self._partitions[rest] = record.partition
        return known

    def _offset(self, value: bytes) -> CommittedOffset | None:
        """Decode a value of version 4, None if it has another version or an unusual form."""
        size = len(value)
        if size < _FIXED_BYTES + 9 or value[0] or value[1] != OFFSET_VALUE_VERSION or not 0 < value[14] < 0x80:
            return None
        at = _FIXED_BYTES + value[14] - 1  # the length of the metadata is one more, and one byte if it is short
        if size == at + 9 and not value[at + 8]:
            topic_id = NO_TOPIC_ID
        elif size == at + 8 + len(_TOPIC_ID_TAG) + _UUID_BYTES and value.startswith(_TOPIC_ID_TAG, at + 8):
            raw = value[at + 8 + len(_TOPIC_ID_TAG) :]
            known = self._topic_ids.get(raw)
            if known is None:
                known = self._topic_ids[raw] = read_uuid(raw, 0)[0]
            topic_id = known
        else:
            return None
        offset: int
        leader_epoch: int
        committed_ms: int
        offset, leader_epoch = _OFFSET_AND_EPOCH.unpack_from(value, 2)
        (committed_ms,) = _TIME.unpack_from(value, at)
        metadata = value[_FIXED_BYTES:at].decode() if at > _FIXED_BYTES else ""
        return CommittedOffset(offset, leader_epoch, metadata, committed_ms, NEVER_MS, topic_id)


def _end_of_group(key: bytes) -> int:
    """Return where the group's id ends in the key of an offset, 0 if it is no such key."""
    if len(key) < 4 or key[0] or key[1] > OFFSET_KEY_VERSION:
        return 0
    end = 4 + (key[2] << 8 | key[3])
    return end if end <= len(key) else 0


def offset_key(group_id: str, partition: TopicPartition) -> bytes:
    """Encode an OffsetCommitKey."""
    out = bytearray(_OFFSET_KEY_HEAD)
    _write_string(out, group_id)
    _write_string(out, partition.topic)
    out += partition.partition.to_bytes(4, "big")
    return bytes(out)


def offset_value(committed: CommittedOffset) -> bytes:
    """Encode an OffsetCommitValue; one with its own expiry as version 1, the only one with that field."""
    expires = committed.expires_wall_ms != NEVER_MS
    version = EXPIRING_OFFSET_VALUE_VERSION if expires else OFFSET_VALUE_VERSION
    if expires:
        out = bytearray(struct.pack(">hq", version, committed.offset))
        _write_string(out, committed.metadata)
    else:
        out = bytearray(struct.pack(">hqi", version, committed.offset, committed.leader_epoch))
        _write_compact_string(out, committed.metadata)
    out += struct.pack(">q", committed.committed_wall_ms)
    if expires:
        out += struct.pack(">q", committed.expires_wall_ms)
    elif committed.topic_id == NO_TOPIC_ID:
        out += _NO_TAGS
    else:
        out += _TOPIC_ID_TAG
        write_uuid(out, committed.topic_id)
    return bytes(out)


def offset_pairs(group_id: str, change: Change) -> list[tuple[bytes, bytes | None]]:
    """Encode a change of a group's offsets as records; a deleted offset as a tombstone."""
    return [
        (offset_key(group_id, partition), None if committed is None else offset_value(committed))
        for partition, committed in change.items()
    ]


def decode(key: bytes, value: bytes | None) -> OffsetRecord | GroupRecord | ForeignRecord:
    """Decode a record. Raises `MalformedOffsetsRecord`."""
    try:
        reader = RecordFieldReader(key)
        version = reader.int16()
        if version in _OFFSET_KEY_VERSIONS:
            group_id, topic, index = reader.text(), reader.text(), reader.int32()
            return OffsetRecord(group_id, TopicPartition(topic, index), _offset(value) if value is not None else None)
        if version == GROUP_KEY_VERSION:
            return GroupRecord(reader.text(), read_group(value) if value is not None else None)
        return ForeignRecord(version)
    except (MalformedRequest, struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedOffsetsRecord(f"key {key[:64].hex()}: {error}") from error


def _offset(value: bytes) -> CommittedOffset:
    reader = RecordFieldReader(value)
    version = reader.version(_VALUE_VERSION_MAX, flexible=_FLEXIBLE_VALUE)
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else NO_LEADER_EPOCH
    metadata, committed_ms = reader.text(), reader.int64()
    expires_ms = reader.int64() if version == EXPIRING_OFFSET_VALUE_VERSION else NEVER_MS
    raw_id = reader.tags().get(_TAG_TOPIC_ID)
    topic_id = read_uuid(raw_id, 0)[0] if raw_id is not None else NO_TOPIC_ID
    return CommittedOffset(offset, leader_epoch, metadata, committed_ms, expires_ms, topic_id)
