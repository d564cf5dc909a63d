"""Encodes and decodes the records of a share group in `__consumer_offsets`, in Kafka's formats (KIP-932).

    key version 10  what a member asked for
                11  the group's epoch, and the hash of its topics' metadata
                12  the epoch of the target assignment, and when it was computed
                13  a member's part of the target
                14  what a member has
                15  the partitions that have a share state

A tombstone deletes. Values have version 0.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, assert_never
from uuid import UUID

from ottla.groups.assignors.spec import NO_PARTITIONS, Partitions
from ottla.groups.modern.records import GroupMetadata, TargetMember, TargetMetadata
from ottla.groups.records import MalformedOffsetsRecord
from ottla.internal_topics.record_fields import RecordFieldReader
from ottla.internal_topics.topic_log import KeyValue
from ottla.wire.errors import MalformedRequest
from ottla.wire.primitives import string_writer, write_length, write_uuid, write_uvarint


class ShareRecordType(IntEnum):
    """Lists the versions of the keys."""

    MEMBER_METADATA = 10
    GROUP_METADATA = 11
    TARGET_ASSIGNMENT_METADATA = 12
    TARGET_ASSIGNMENT_MEMBER = 13
    CURRENT_MEMBER_ASSIGNMENT = 14
    STATE_PARTITION_METADATA = 15


_WITH_MEMBER = frozenset(
    {
        ShareRecordType.MEMBER_METADATA,
        ShareRecordType.TARGET_ASSIGNMENT_MEMBER,
        ShareRecordType.CURRENT_MEMBER_ASSIGNMENT,
    }
)
"""The keys that name a member after the group."""

_KEY_VERSIONS = frozenset(ShareRecordType)
_VERSION_BYTES = b"\0\0"
_TAG = 0
_STABLE = 0
"""The state of every member: a share group gives partitions without waiting for another member to release them."""

_text = string_writer(flexible=True, nullable=False)
_maybe_text = string_writer(flexible=True, nullable=True)
_key_text = string_writer(flexible=False, nullable=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareMember:
    """Holds one member: what it asked for, and what it has."""

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    epoch: int = 0
    previous_epoch: int = 0
    assigned: Partitions = field(default_factory=lambda: NO_PARTITIONS)


class ShareRecordKey(NamedTuple):
    """Holds a decoded key."""

    kind: ShareRecordType
    group_id: str
    member_id: str = ""


class ShareCurrentAssignment(NamedTuple):
    """Holds the value of what a member has."""

    epoch: int
    previous_epoch: int
    assigned: Partitions


def current_of(member: ShareMember) -> ShareCurrentAssignment:
    """Return what a member has."""
    return ShareCurrentAssignment(member.epoch, member.previous_epoch, member.assigned)


class StatePartitions(NamedTuple):
    """Holds the value of the partitions that have a share state; others are initialized when a member needs them."""

    initialized: Mapping[UUID, tuple[str, frozenset[int]]]  # by topic id: its name and partitions


ShareRecordValue = (
    GroupMetadata | ShareMember | TargetMetadata | TargetMember | ShareCurrentAssignment | StatePartitions | None
)
"""A decoded value. None: a tombstone."""

ShareRecord = tuple[ShareRecordKey, ShareRecordValue]

NO_CURRENT = ShareCurrentAssignment(0, 0, NO_PARTITIONS)
"""The assignment of a member before it gets anything."""


# ---- Encoding


def key(kind: ShareRecordType, group_id: str, member_id: str = "") -> bytes:
    """Encode a key."""
    out = bytearray(kind.to_bytes(2, "big"))
    _key_text(out, group_id)
    if kind in _WITH_MEMBER:
        _key_text(out, member_id)
    return bytes(out)


def encode(record: ShareRecord) -> KeyValue:
    """Encode a record."""
    (kind, group_id, member_id), value = record
    match value:
        case None:
            return key(kind, group_id, member_id), None
        case GroupMetadata():
            return group_metadata(group_id, value)
        case TargetMetadata():
            return target_metadata(group_id, value)
        case TargetMember(partitions):
            return target_member(group_id, member_id, partitions)
        case ShareMember():
            return member_metadata(group_id, value)
        case ShareCurrentAssignment():
            return current_assignment(group_id, member_id, value)
        case StatePartitions():
            return state_partitions(group_id, value)
        case _:
            assert_never(value)


def group_metadata(group_id: str, metadata: GroupMetadata) -> KeyValue:
    """Encode the group's epoch."""
    value = _VERSION_BYTES + struct.pack(">iq", metadata.epoch, metadata.metadata_hash) + b"\0"
    return key(ShareRecordType.GROUP_METADATA, group_id), value


def member_metadata(group_id: str, member: ShareMember) -> KeyValue:
    """Encode what a member asked for."""
    out = bytearray(_VERSION_BYTES)
    _maybe_text(out, member.rack_id)
    _text(out, member.client_id)
    _text(out, member.client_host)
    write_length(out, len(member.topics), flexible=True)
    for topic in sorted(member.topics):
        _text(out, topic)
    write_uvarint(out, 0)
    return key(ShareRecordType.MEMBER_METADATA, group_id, member.member_id), bytes(out)


def target_metadata(group_id: str, metadata: TargetMetadata) -> KeyValue:
    """Encode the epoch of the target assignment."""
    out = bytearray(_VERSION_BYTES + struct.pack(">i", metadata.epoch))
    for number in (1, _TAG, 8):
        write_uvarint(out, number)
    out += struct.pack(">q", metadata.wall_ms)
    return key(ShareRecordType.TARGET_ASSIGNMENT_METADATA, group_id), bytes(out)


def target_member(group_id: str, member_id: str, partitions: Partitions) -> KeyValue:
    """Encode a member's part of the target."""
    out = bytearray(_VERSION_BYTES)
    _write_topics(out, partitions)
    write_uvarint(out, 0)
    return key(ShareRecordType.TARGET_ASSIGNMENT_MEMBER, group_id, member_id), bytes(out)


def current_assignment(group_id: str, member_id: str, current: ShareCurrentAssignment) -> KeyValue:
    """Encode what a member has."""
    out = bytearray(_VERSION_BYTES + struct.pack(">iib", current.epoch, current.previous_epoch, _STABLE))
    _write_topics(out, current.assigned)
    write_uvarint(out, 0)
    return key(ShareRecordType.CURRENT_MEMBER_ASSIGNMENT, group_id, member_id), bytes(out)


def state_partitions(group_id: str, states: StatePartitions) -> KeyValue:
    """Encode the partitions that have a share state. Topics that are being initialized or deleted are not written."""
    out = bytearray(_VERSION_BYTES)
    write_length(out, 0, flexible=True)
    write_length(out, len(states.initialized), flexible=True)
    for topic_id in sorted(states.initialized):
        name, indexes = states.initialized[topic_id]
        write_uuid(out, topic_id)
        _text(out, name)
        _write_indexes(out, indexes)
        write_uvarint(out, 0)
    write_length(out, 0, flexible=True)
    write_uvarint(out, 0)
    return key(ShareRecordType.STATE_PARTITION_METADATA, group_id), bytes(out)


def _write_topics(out: bytearray, partitions: Partitions) -> None:
    write_length(out, len(partitions), flexible=True)
    for topic_id in sorted(partitions):
        write_uuid(out, topic_id)
        _write_indexes(out, partitions[topic_id])
        write_uvarint(out, 0)


def _write_indexes(out: bytearray, indexes: Iterable[int]) -> None:
    ordered = sorted(indexes)
    write_length(out, len(ordered), flexible=True)
    out += struct.pack(f">{len(ordered)}i", *ordered)


# ---- Decoding


def is_share_group(raw_key: bytes) -> bool:
    """Return whether a key belongs to a share group."""
    return int.from_bytes(raw_key[:2], "big") in _KEY_VERSIONS


def decode(raw_key: bytes, value: bytes | None) -> tuple[ShareRecordKey, ShareRecordValue]:
    """Decode a record. Raises `MalformedOffsetsRecord`."""
    try:
        reader = RecordFieldReader(raw_key)
        kind = ShareRecordType(reader.int16())
        group_id = reader.text()
        name = ShareRecordKey(kind, group_id, reader.text() if kind in _WITH_MEMBER else "")
        return name, None if value is None else _decoded(name, RecordFieldReader(value))
    except (MalformedRequest, struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedOffsetsRecord(f"key {raw_key[:64].hex()}: {error}") from error


def _decoded(name: ShareRecordKey, reader: RecordFieldReader) -> ShareRecordValue:
    reader.version(0, flexible=0)
    if name.kind is ShareRecordType.TARGET_ASSIGNMENT_METADATA:
        epoch, tagged = reader.int32(), reader.tags().get(_TAG)
        return TargetMetadata(epoch, 0 if tagged is None else int(struct.unpack(">q", tagged)[0]))
    value = _value(name, reader)
    reader.tags()
    return value


def _value(name: ShareRecordKey, reader: RecordFieldReader) -> ShareRecordValue:
    match name.kind:
        case ShareRecordType.GROUP_METADATA:
            return GroupMetadata(reader.int32(), reader.int64())
        case ShareRecordType.MEMBER_METADATA:
            return ShareMember(
                member_id=name.member_id,
                rack_id=reader.maybe_text(),
                client_id=reader.text(),
                client_host=reader.text(),
                topics=frozenset(reader.text() for _ in range(reader.count())),
            )
        case ShareRecordType.TARGET_ASSIGNMENT_MEMBER:
            return TargetMember(_topics(reader))
        case ShareRecordType.CURRENT_MEMBER_ASSIGNMENT:
            epoch, previous_epoch, _ = reader.int32(), reader.int32(), reader.int8()
            return ShareCurrentAssignment(epoch, previous_epoch, _topics(reader))
        case ShareRecordType.STATE_PARTITION_METADATA:
            _named_topics(reader)  # those being initialized: they are initialized again
            states = StatePartitions(_named_topics(reader))
            for _ in range(reader.count()):  # those being deleted
                reader.uuid(), reader.text(), reader.tags()
            return states
        case _:
            return None


def _topics(reader: RecordFieldReader) -> Partitions:
    found = {}
    for _ in range(reader.count()):
        topic_id = reader.uuid()
        found[topic_id] = frozenset(reader.int32() for _ in range(reader.count()))
        reader.tags()
    return found


def _named_topics(reader: RecordFieldReader) -> dict[UUID, tuple[str, frozenset[int]]]:
    found = {}
    for _ in range(reader.count()):
        topic_id, name = reader.uuid(), reader.text()
        found[topic_id] = (name, frozenset(reader.int32() for _ in range(reader.count())))
        reader.tags()
    return found
