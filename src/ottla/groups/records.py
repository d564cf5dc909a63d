"""Encodes and decodes the records of `__consumer_offsets` in Kafka's binary formats, which lag monitors read too.

Every key and value begins with an int16 version. Written are what Kafka 4.3 writes: OffsetCommitKey 1 with
OffsetCommitValue 4 (1 where the client set its own retention), GroupMetadataKey 2 with GroupMetadataValue 3. Read are
all versions Kafka ever wrote. Record types of newer protocols (KIP-848, share groups) are skipped: a directory written
by Apache Kafka must load.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ottla.core.ids import NO_TOPIC_ID, TopicPartition
from ottla.groups.events import GroupSnapshot, MemberSnapshot
from ottla.groups.offsets import NEVER_MS, NO_LEADER_EPOCH, Change, CommittedOffset
from ottla.wire.errors import MalformedRequest
from ottla.wire.primitives import (
    bytes_reader,
    bytes_writer,
    read_length,
    read_uuid,
    read_uvarint,
    string_reader,
    string_writer,
    write_uuid,
    write_uvarint,
)

OFFSET_KEY_VERSION, GROUP_KEY_VERSION = 1, 2
OFFSET_VALUE_VERSION, EXPIRING_OFFSET_VALUE_VERSION = 4, 1
GROUP_VALUE_VERSION = 3
_OFFSET_KEY_VERSIONS = (0, 1)
_VALUE_VERSION_MAX = 4
_FLEXIBLE_VALUE = 4
_MEMBERS_MAX = 1_000_000

_TAG_TOPIC_ID = 0
_UUID_BYTES = 16


class MalformedRecord(ValueError):
    """Reports a record of `__consumer_offsets` in an unknown format."""


class OffsetRecord(NamedTuple):
    """Holds an offset of a group; None deletes it."""

    group_id: str
    partition: TopicPartition
    committed: CommittedOffset | None


class GroupRecord(NamedTuple):
    """Holds a group; None deletes it."""

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


def group_key(group_id: str) -> bytes:
    """Encode a GroupMetadataKey."""
    out = bytearray(GROUP_KEY_VERSION.to_bytes(2, "big"))
    string_writer(flexible=False, nullable=False)(out, group_id)
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


def group_value(snapshot: GroupSnapshot) -> bytes:
    """Encode a GroupMetadataValue."""
    out = bytearray(GROUP_VALUE_VERSION.to_bytes(2, "big"))
    text, maybe_text = string_writer(flexible=False, nullable=False), string_writer(flexible=False, nullable=True)
    write_bytes = bytes_writer(flexible=False, nullable=False)
    text(out, snapshot.protocol_type)
    out += struct.pack(">i", snapshot.generation)
    maybe_text(out, snapshot.protocol)
    maybe_text(out, snapshot.leader)
    out += struct.pack(">qi", snapshot.state_since_wall_ms, len(snapshot.members))
    for member in snapshot.members:
        text(out, member.member_id)
        maybe_text(out, member.instance_id)
        text(out, member.client_id)
        text(out, member.client_host)
        out += struct.pack(">ii", member.rebalance_timeout_ms, member.session_timeout_ms)
        write_bytes(out, member.subscription)
        write_bytes(out, member.assignment)
    return bytes(out)


def decode(key: bytes, value: bytes | None) -> OffsetRecord | GroupRecord | ForeignRecord:
    """Decode a record. Raises `MalformedRecord`."""
    try:
        reader = _Reader(key)
        version = reader.int16()
        if version in _OFFSET_KEY_VERSIONS:
            group_id, topic, index = reader.text(), reader.text(), reader.int32()
            return OffsetRecord(group_id, TopicPartition(topic, index), _offset(value) if value is not None else None)
        if version == GROUP_KEY_VERSION:
            return GroupRecord(reader.text(), _group(value) if value is not None else None)
        return ForeignRecord(version)
    except (MalformedRequest, struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedRecord(f"key {key[:64].hex()}: {error}") from error


class _Reader:
    """Reads the fields of a record one by one."""

    __slots__ = ("_at", "_data", "_flexible")

    def __init__(self, data: bytes) -> None:
        self._data, self._at, self._flexible = data, 0, False

    def version(self) -> int:
        version = self.int16()
        if not 0 <= version <= _VALUE_VERSION_MAX:
            raise MalformedRequest(f"a value of version {version}")
        self._flexible = version >= _FLEXIBLE_VALUE
        return version

    def _number(self, code: str, size: int) -> int:
        (number,) = struct.unpack_from(code, self._data, self._at)
        self._at += size
        return int(number)

    def int16(self) -> int:
        return self._number(">h", 2)

    def int32(self) -> int:
        return self._number(">i", 4)

    def int64(self) -> int:
        return self._number(">q", 8)

    def maybe_text(self) -> str | None:
        found, self._at = string_reader(self._flexible, nullable=True)(self._data, self._at)
        return None if found is None else str(found)

    def text(self) -> str:
        found, self._at = string_reader(self._flexible, nullable=False)(self._data, self._at)
        return str(found)

    def blob(self) -> bytes:
        found, self._at = bytes_reader(self._flexible, nullable=False)(self._data, self._at)
        return bytes(found)

    def count(self) -> int:
        found, self._at = read_length(self._data, self._at, self._flexible)
        if not 0 <= found <= min(_MEMBERS_MAX, len(self._data)):
            raise MalformedRequest(f"{found} members in {len(self._data)} bytes")
        return found

    def tags(self) -> dict[int, bytes]:
        """Read the tagged fields by number; none before the flexible versions."""
        if not self._flexible:
            return {}
        count, self._at = read_uvarint(self._data, self._at)
        found: dict[int, bytes] = {}
        for _ in range(count):
            tag, self._at = read_uvarint(self._data, self._at)
            size, self._at = read_uvarint(self._data, self._at)
            if self._at + size > len(self._data):
                raise MalformedRequest("a tagged field extends beyond the end")
            found[tag] = self._data[self._at : self._at + size]
            self._at += size
        return found


def _offset(value: bytes) -> CommittedOffset:
    reader = _Reader(value)
    version = reader.version()
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else NO_LEADER_EPOCH
    metadata, committed_ms = reader.text(), reader.int64()
    expires_ms = reader.int64() if version == EXPIRING_OFFSET_VALUE_VERSION else NEVER_MS
    raw_id = reader.tags().get(_TAG_TOPIC_ID)
    topic_id = read_uuid(raw_id, 0)[0] if raw_id is not None else NO_TOPIC_ID
    return CommittedOffset(offset, leader_epoch, metadata, committed_ms, expires_ms, topic_id)


def _group(value: bytes) -> GroupSnapshot:
    reader = _Reader(value)
    version = reader.version()
    protocol_type, generation = reader.text(), reader.int32()
    protocol, leader = reader.maybe_text(), reader.maybe_text()
    since_ms = reader.int64() if version >= 2 else -1
    members = tuple(_member(reader, version) for _ in range(reader.count()))
    reader.tags()
    return GroupSnapshot(
        protocol_type=protocol_type,
        generation=generation,
        protocol=protocol,
        leader=leader,
        state_since_wall_ms=since_ms,
        members=members,
    )


def _member(reader: _Reader, version: int) -> MemberSnapshot:
    member_id = reader.text()
    instance_id = reader.maybe_text() if version >= 3 else None
    client_id, client_host = reader.text(), reader.text()
    rebalance_ms = reader.int32() if version >= 1 else None
    session_ms = reader.int32()
    subscription, assignment = reader.blob(), reader.blob()
    reader.tags()
    return MemberSnapshot(
        member_id=member_id,
        instance_id=instance_id,
        client_id=client_id,
        client_host=client_host,
        rebalance_timeout_ms=session_ms if rebalance_ms is None else rebalance_ms,
        session_timeout_ms=session_ms,
        subscription=subscription,
        assignment=assignment,
    )
