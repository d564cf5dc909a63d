"""Encodes and decodes the record of a classic group: GroupMetadataKey 2, GroupMetadataValue 3 (read: 0 to 4)."""

from __future__ import annotations

import struct

from ottla.groups.classic.events import GroupSnapshot, MemberSnapshot
from ottla.internal_topics.record_fields import RecordFieldReader
from ottla.wire.primitives import bytes_writer, string_writer

GROUP_KEY_VERSION = 2
GROUP_VALUE_VERSION = 3
_VALUE_VERSION_MAX = _FLEXIBLE_VALUE = 4


def group_key(group_id: str) -> bytes:
    """Encode a GroupMetadataKey."""
    out = bytearray(GROUP_KEY_VERSION.to_bytes(2, "big"))
    string_writer(flexible=False, nullable=False)(out, group_id)
    return bytes(out)


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


def read_group(value: bytes) -> GroupSnapshot:
    """Decode a GroupMetadataValue."""
    reader = RecordFieldReader(value)
    version = reader.version(_VALUE_VERSION_MAX, flexible=_FLEXIBLE_VALUE)
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


def _member(reader: RecordFieldReader, version: int) -> MemberSnapshot:
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
