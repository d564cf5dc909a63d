"""Encodes and decodes the records of `__consumer_offsets` in Kafka's binary formats, which lag monitors read too.

Every key and value begins with an int16 version. Written are what Kafka 4.4 writes: OffsetCommitKey 1 with
OffsetCommitValue 4 (1 where the client set its own retention), GroupMetadataKey 2 with GroupMetadataValue 3. Read are
all versions Kafka ever wrote. Record types of newer protocols (KIP-848, share groups) are skipped: a directory written
by Apache Kafka must load.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ottla.core.ids import NO_TOPIC_ID, TopicPartition
from ottla.groups.classic.events import GroupSnapshot
from ottla.groups.classic.records import GROUP_KEY_VERSION, read_group
from ottla.groups.offsets import NEVER_MS, NO_LEADER_EPOCH, Change, CommittedOffset
from ottla.internal_topics.record_fields import RecordFieldReader
from ottla.wire.errors import MalformedRequest
from ottla.wire.primitives import read_uuid, string_writer, write_uuid, write_uvarint

OFFSET_KEY_VERSION = 1
OFFSET_VALUE_VERSION, EXPIRING_OFFSET_VALUE_VERSION = 4, 1
_OFFSET_KEY_VERSIONS = (0, 1)
_VALUE_VERSION_MAX = 4
_FLEXIBLE_VALUE = 4

_TAG_TOPIC_ID = 0
_UUID_BYTES = 16


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


def offset_key(group_id: str, partition: TopicPartition) -> bytes:
    """Encode an OffsetCommitKey."""
    out = bytearray(OFFSET_KEY_VERSION.to_bytes(2, "big"))
    write_string = string_writer(flexible=False, nullable=False)
    write_string(out, group_id)
    write_string(out, partition.topic)
    out += partition.partition.to_bytes(4, "big")
    return bytes(out)


def offset_value(committed: CommittedOffset) -> bytes:
    """Encode an OffsetCommitValue; one with its own expiry as version 1, the only one with that field."""
    expires = committed.expires_wall_ms != NEVER_MS
    version = EXPIRING_OFFSET_VALUE_VERSION if expires else OFFSET_VALUE_VERSION
    out = bytearray(struct.pack(">hq", version, committed.offset))
    if not expires:
        out += struct.pack(">i", committed.leader_epoch)
    string_writer(flexible=not expires, nullable=False)(out, committed.metadata)
    out += struct.pack(">q", committed.committed_wall_ms)
    if expires:
        out += struct.pack(">q", committed.expires_wall_ms)
    elif committed.topic_id == NO_TOPIC_ID:
        write_uvarint(out, 0)  # no tagged fields
    else:
        for number in (1, _TAG_TOPIC_ID, _UUID_BYTES):
            write_uvarint(out, number)
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
