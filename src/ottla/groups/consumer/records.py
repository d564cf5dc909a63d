"""Encodes and decodes the records of a consumer group in `__consumer_offsets`, in Kafka's formats (KIP-848).

    key version 3   the group's epoch, and the hash of its topics' metadata
                4   the metadata of its topics: written by Kafka 4.0, which had no hash; deleted when the group changes
                5   what a member asked for
                6   the epoch of the target assignment, and when it was computed
                7   a member's part of the target
                8   what a member has
                16  the topics that match a regular expression

A tombstone deletes. Values have version 0; what Kafka added later is in tagged fields.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple, assert_never
from uuid import UUID

from ottla.groups.assignors.spec import Partitions
from ottla.groups.consumer.member import AssignedPartitions, ClassicProtocol, ConsumerMember, MemberState
from ottla.groups.modern.records import GroupMetadata, TargetMember, TargetMetadata
from ottla.groups.records import MalformedOffsetsRecord
from ottla.internal_topics.record_fields import RecordFieldReader
from ottla.internal_topics.topic_log import KeyValue
from ottla.wire.errors import MalformedRequest
from ottla.wire.primitives import bytes_writer, string_writer, write_length, write_uuid, write_uvarint


class ConsumerRecordType(IntEnum):
    """Lists the versions of the keys."""

    GROUP_METADATA = 3
    PARTITION_METADATA = 4
    MEMBER_METADATA = 5
    TARGET_ASSIGNMENT_METADATA = 6
    TARGET_ASSIGNMENT_MEMBER = 7
    CURRENT_MEMBER_ASSIGNMENT = 8
    REGULAR_EXPRESSION = 16


_WITH_NAME = frozenset(
    {
        ConsumerRecordType.MEMBER_METADATA,
        ConsumerRecordType.TARGET_ASSIGNMENT_MEMBER,
        ConsumerRecordType.CURRENT_MEMBER_ASSIGNMENT,
        ConsumerRecordType.REGULAR_EXPRESSION,
    }
)
"""The keys that name a member or a regular expression after the group."""

_KEY_VERSIONS = frozenset(ConsumerRecordType)
_VALUE_VERSION = 0
_VERSION_BYTES = _VALUE_VERSION.to_bytes(2, "big")
_TAG = 0
"""Number of the only tagged field of each value that has one."""


class ConsumerRecordKey(NamedTuple):
    """Holds a decoded key."""

    kind: ConsumerRecordType
    group_id: str
    name: str = ""  # of a member or a regular expression


class ResolvedRegex(NamedTuple):
    """Holds the topics that match a regular expression."""

    topics: frozenset[str]
    version: int  # of the topics' image that they were resolved with; meaningless after a restart
    wall_ms: int


class ConsumerCurrentAssignment(NamedTuple):
    """Holds the value of what a member has."""

    epoch: int
    previous_epoch: int
    state: MemberState
    assigned: AssignedPartitions
    pending_revocation: AssignedPartitions


def current_of(member: ConsumerMember) -> ConsumerCurrentAssignment:
    """Return what a member has."""
    return ConsumerCurrentAssignment(
        member.epoch, member.previous_epoch, member.state, member.assigned, member.pending_revocation
    )


NO_CURRENT = current_of(ConsumerMember(member_id=""))
"""The assignment of a member before it gets anything."""


class TopicsMetadata(NamedTuple):
    """Stands for the metadata of topics, which is not used."""


ConsumerRecordValue = (
    GroupMetadata
    | TopicsMetadata
    | ConsumerMember
    | TargetMetadata
    | TargetMember
    | ConsumerCurrentAssignment
    | ResolvedRegex
    | None
)
"""A decoded value. None: a tombstone."""

ConsumerRecord = tuple[ConsumerRecordKey, ConsumerRecordValue]


# ---- Encoding

_text = string_writer(flexible=True, nullable=False)
_maybe_text = string_writer(flexible=True, nullable=True)
_key_text = string_writer(flexible=False, nullable=False)
_blob = bytes_writer(flexible=True, nullable=False)


def key(kind: ConsumerRecordType, group_id: str, name: str = "") -> bytes:
    """Encode a key."""
    out = bytearray(kind.to_bytes(2, "big"))
    _key_text(out, group_id)
    if kind in _WITH_NAME:
        _key_text(out, name)
    return bytes(out)


def encode(record: ConsumerRecord) -> KeyValue:
    """Encode a record."""
    (kind, group_id, name), value = record
    match value:
        case None:
            return key(kind, group_id, name), None
        case GroupMetadata():
            return group_metadata(group_id, value)
        case TargetMetadata():
            return target_metadata(group_id, value)
        case TargetMember(partitions):
            return target_member(group_id, name, partitions)
        case ConsumerMember():
            return member_metadata(group_id, value)
        case ConsumerCurrentAssignment():
            return current_assignment(group_id, name, value)
        case ResolvedRegex():
            return regular_expression(group_id, name, value)
        case TopicsMetadata():
            raise AssertionError("the metadata of topics is deleted only")
        case _:
            assert_never(value)


def group_metadata(group_id: str, metadata: GroupMetadata) -> KeyValue:
    """Encode the group's epoch."""
    out = bytearray(_VERSION_BYTES + struct.pack(">i", metadata.epoch))
    _write_tag(out, struct.pack(">q", metadata.metadata_hash) if metadata.metadata_hash else None)
    return key(ConsumerRecordType.GROUP_METADATA, group_id), bytes(out)


def member_metadata(group_id: str, member: ConsumerMember) -> KeyValue:
    """Encode what a member asked for."""
    out = bytearray(_VERSION_BYTES)
    _maybe_text(out, member.instance_id)
    _maybe_text(out, member.rack_id)
    _text(out, member.client_id)
    _text(out, member.client_host)
    _write_texts(out, member.topics)
    _maybe_text(out, member.regex)
    out += struct.pack(">i", member.rebalance_timeout_ms)
    _maybe_text(out, member.assignor)
    _write_tag(out, None if member.classic is None else _classic(member.classic))
    return key(ConsumerRecordType.MEMBER_METADATA, group_id, member.member_id), bytes(out)


def _classic(classic: ClassicProtocol) -> bytes:
    out = bytearray(b"\1")  # a nullable structure that is present
    out += struct.pack(">i", classic.session_timeout_ms)
    write_length(out, len(classic.protocols), flexible=True)
    for name, metadata in classic.protocols:
        _text(out, name)
        _blob(out, metadata)
        write_uvarint(out, 0)
    write_uvarint(out, 0)
    return bytes(out)


def target_metadata(group_id: str, metadata: TargetMetadata) -> KeyValue:
    """Encode the epoch of the target assignment."""
    out = bytearray(_VERSION_BYTES + struct.pack(">i", metadata.epoch))
    _write_tag(out, struct.pack(">q", metadata.wall_ms) if metadata.wall_ms else None)
    return key(ConsumerRecordType.TARGET_ASSIGNMENT_METADATA, group_id), bytes(out)


def target_member(group_id: str, member_id: str, partitions: Partitions) -> KeyValue:
    """Encode a member's part of the target."""
    out = bytearray(_VERSION_BYTES)
    write_length(out, len(partitions), flexible=True)
    for topic_id in sorted(partitions):
        _write_partitions(out, topic_id, sorted(partitions[topic_id]))
        write_uvarint(out, 0)
    write_uvarint(out, 0)
    return key(ConsumerRecordType.TARGET_ASSIGNMENT_MEMBER, group_id, member_id), bytes(out)


def current_assignment(group_id: str, member_id: str, current: ConsumerCurrentAssignment) -> KeyValue:
    """Encode what a member has."""
    out = bytearray(_VERSION_BYTES + struct.pack(">iib", current.epoch, current.previous_epoch, current.state.value))
    for partitions in (current.assigned, current.pending_revocation):
        write_length(out, len(partitions), flexible=True)
        for topic_id in sorted(partitions):
            indexes = sorted(partitions[topic_id])
            _write_partitions(out, topic_id, indexes)
            epochs = [partitions[topic_id][index] for index in indexes]
            packed = bytearray()
            write_length(packed, len(epochs), flexible=True)
            packed += struct.pack(f">{len(epochs)}i", *epochs)
            _write_tag(out, bytes(packed))
    write_uvarint(out, 0)
    return key(ConsumerRecordType.CURRENT_MEMBER_ASSIGNMENT, group_id, member_id), bytes(out)


def regular_expression(group_id: str, regex: str, resolved: ResolvedRegex) -> KeyValue:
    """Encode the topics that match a regular expression."""
    out = bytearray(_VERSION_BYTES)
    _write_texts(out, resolved.topics)
    out += struct.pack(">qq", resolved.version, resolved.wall_ms)
    write_uvarint(out, 0)
    return key(ConsumerRecordType.REGULAR_EXPRESSION, group_id, regex), bytes(out)


def _write_texts(out: bytearray, texts: Iterable[str]) -> None:
    ordered = sorted(texts)
    write_length(out, len(ordered), flexible=True)
    for text in ordered:
        _text(out, text)


def _write_partitions(out: bytearray, topic_id: UUID, indexes: list[int]) -> None:
    write_uuid(out, topic_id)
    write_length(out, len(indexes), flexible=True)
    out += struct.pack(f">{len(indexes)}i", *indexes)


def _write_tag(out: bytearray, field: bytes | None) -> None:
    if field is None:
        write_uvarint(out, 0)
        return
    for number in (1, _TAG, len(field)):
        write_uvarint(out, number)
    out += field


# ---- Decoding


def is_consumer_group(raw_key: bytes) -> bool:
    """Return whether a key belongs to a consumer group."""
    return int.from_bytes(raw_key[:2], "big") in _KEY_VERSIONS


def decode(raw_key: bytes, value: bytes | None) -> tuple[ConsumerRecordKey, ConsumerRecordValue]:
    """Decode a record. Raises `MalformedOffsetsRecord`."""
    try:
        reader = RecordFieldReader(raw_key)
        kind = ConsumerRecordType(reader.int16())
        group_id = reader.text()
        key = ConsumerRecordKey(kind, group_id, reader.text() if kind in _WITH_NAME else "")
        return key, None if value is None else _value(key, RecordFieldReader(value))
    except (MalformedRequest, struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedOffsetsRecord(f"key {raw_key[:64].hex()}: {error}") from error


def _value(key: ConsumerRecordKey, reader: RecordFieldReader) -> ConsumerRecordValue:
    reader.version(_VALUE_VERSION, flexible=_VALUE_VERSION)
    match key.kind:
        case ConsumerRecordType.GROUP_METADATA:
            epoch = reader.int32()
            return GroupMetadata(epoch, _number(reader.tags().get(_TAG)))
        case ConsumerRecordType.PARTITION_METADATA:
            return TopicsMetadata()
        case ConsumerRecordType.MEMBER_METADATA:
            return _member(reader, key.name)
        case ConsumerRecordType.TARGET_ASSIGNMENT_METADATA:
            epoch = reader.int32()
            return TargetMetadata(epoch, _number(reader.tags().get(_TAG)))
        case ConsumerRecordType.TARGET_ASSIGNMENT_MEMBER:
            target = TargetMember({topic_id: frozenset(indexes) for topic_id, indexes, _ in _topics(reader)})
            reader.tags()
            return target
        case ConsumerRecordType.CURRENT_MEMBER_ASSIGNMENT:
            current = _current(reader)
            reader.tags()
            return current
        case ConsumerRecordType.REGULAR_EXPRESSION:
            resolved = ResolvedRegex(frozenset(_texts(reader)), reader.int64(), reader.int64())
            reader.tags()
            return resolved


def _member(reader: RecordFieldReader, member_id: str) -> ConsumerMember:
    instance_id, rack_id = reader.maybe_text(), reader.maybe_text()
    client_id, client_host = reader.text(), reader.text()
    topics, regex = frozenset(_texts(reader)), reader.maybe_text() or ""
    rebalance_timeout_ms, assignor = reader.int32(), reader.maybe_text()
    classic = reader.tags().get(_TAG)
    return ConsumerMember(
        member_id=member_id,
        instance_id=instance_id,
        rack_id=rack_id,
        client_id=client_id,
        client_host=client_host,
        rebalance_timeout_ms=rebalance_timeout_ms,
        topics=topics,
        regex=regex,
        assignor=assignor,
        classic=None if classic is None else _classic_protocol(_flexible(classic)),
    )


def _classic_protocol(reader: RecordFieldReader) -> ClassicProtocol | None:
    if reader.int8() < 0:
        return None
    session_timeout_ms = reader.int32()
    protocols = []
    for _ in range(reader.count()):
        protocols.append((reader.text(), reader.blob()))
        reader.tags()
    return ClassicProtocol(session_timeout_ms, tuple(protocols))


def _current(reader: RecordFieldReader) -> ConsumerCurrentAssignment:
    epoch, previous_epoch, state = reader.int32(), reader.int32(), reader.int8()
    assigned, pending = (
        {
            # Kafka before 4.2 kept no epochs of partitions: the member's own is as strict as it was then.
            topic_id: dict(zip(indexes, [epoch] * len(indexes) if epochs is None else epochs, strict=True))
            for topic_id, indexes, epochs in _topics(reader)
        }
        for _ in range(2)
    )
    known = state in {each.value for each in MemberState}
    state_of = MemberState(state) if known else MemberState.UNKNOWN
    return ConsumerCurrentAssignment(epoch, previous_epoch, state_of, assigned, pending)


def _texts(reader: RecordFieldReader) -> list[str]:
    return [reader.text() for _ in range(reader.count())]


def _topics(reader: RecordFieldReader) -> list[tuple[UUID, list[int], list[int] | None]]:
    """Read topics with their partitions, and with the epochs of those if the record has them."""
    found = []
    for _ in range(reader.count()):
        topic_id, indexes = reader.uuid(), [reader.int32() for _ in range(reader.count())]
        tagged = reader.tags().get(_TAG)
        epochs = None
        if tagged is not None:
            nested = _flexible(tagged)
            epochs = [nested.int32() for _ in range(nested.count())]
            if len(epochs) != len(indexes):
                raise MalformedRequest(f"{len(epochs)} epochs for {len(indexes)} partitions")
        found.append((topic_id, indexes, epochs))
    return found


def _flexible(field: bytes) -> RecordFieldReader:
    """Return a reader of a tagged field."""
    reader = RecordFieldReader(_VERSION_BYTES + field)
    reader.version(_VALUE_VERSION, flexible=_VALUE_VERSION)
    return reader


def _number(raw: bytes | None) -> int:
    return 0 if raw is None else int(struct.unpack(">q", raw)[0])
