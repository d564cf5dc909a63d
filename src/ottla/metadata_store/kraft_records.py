"""Encodes and decodes the records of `__cluster_metadata`, the metadata log of a KRaft cluster.

A record's value is three unsigned varints (frame version 1, the record's number, its version) and a message in
Kafka's flexible encoding; the key is null. Decoded are the records that topics, settings, ACLs and producer ids come
from; written are the few an export needs. Everything else keeps its bytes (`OpaqueRecord`), so that it can be carried
from one log to the next unread. Source: `common/metadata/*.json` in Kafka 4.4's metadata jar, and MetadataRecordSerde.

>>> decode(encode(RemoveTopicRecord(topic_id=NO_ID)))
RemoveTopicRecord(topic_id=UUID('00000000-0000-0000-0000-000000000000'))
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from types import MappingProxyType
from typing import ClassVar, NamedTuple
from uuid import UUID

from ottla.core.ids import NO_TOPIC_ID as NO_ID
from ottla.wire.compiled_codec import TypeCodec, struct_codec
from ottla.wire.errors import MalformedRequest
from ottla.wire.primitives import read_uvarint, write_uvarint
from ottla.wire.schema import Field, Shape, Wire

_FRAME_VERSION = 1
NO_LEADER_CHANGE = -2


class MetadataRecordType(IntEnum):
    """Lists the numbers of all records that Kafka 4.4 knows."""

    REGISTER_BROKER = 0
    UNREGISTER_BROKER = 1
    TOPIC = 2
    PARTITION = 3
    CONFIG = 4
    PARTITION_CHANGE = 5
    FENCE_BROKER = 7
    UNFENCE_BROKER = 8
    REMOVE_TOPIC = 9
    DELEGATION_TOKEN = 10
    USER_SCRAM_CREDENTIAL = 11
    FEATURE_LEVEL = 12
    CLIENT_QUOTA = 14
    PRODUCER_IDS = 15
    BROKER_REGISTRATION_CHANGE = 17
    ACCESS_CONTROL_ENTRY = 18
    REMOVE_ACCESS_CONTROL_ENTRY = 19
    NO_OP = 20
    ZK_MIGRATION_STATE = 21
    REMOVE_USER_SCRAM_CREDENTIAL = 22
    BEGIN_TRANSACTION = 23
    END_TRANSACTION = 24
    ABORT_TRANSACTION = 25
    REMOVE_DELEGATION_TOKEN = 26
    REGISTER_CONTROLLER = 27
    CLEAR_ELR = 28
    UNREGISTER_CONTROLLER = 29


class MalformedMetadata(ValueError):
    """Bytes in a metadata log that are no record of Kafka's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """A topic begins."""

    name: str = ""
    topic_id: UUID = NO_ID

    WIRE: ClassVar[Wire] = (Field("name", "string"), Field("topic_id", "uuid"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRecord:
    """A partition begins, or (in a snapshot) is as it is."""

    partition: int = -1
    topic_id: UUID = NO_ID
    replicas: list[int] = field(default_factory=list)
    isr: list[int] = field(default_factory=list)
    removing_replicas: list[int] = field(default_factory=list)
    adding_replicas: list[int] = field(default_factory=list)
    leader: int = -1
    leader_recovery_state: int = 0
    leader_epoch: int = -1
    partition_epoch: int = -1
    directories: list[UUID] = field(default_factory=list)  # of each replica, in their order (v1+, KIP-858)
    eligible_leaders: list[int] | None = None  # v2+, KIP-966
    last_known_leaders: list[int] | None = None  # v2+

    WIRE: ClassVar[Wire] = (
        Field("partition", "int32"),
        Field("topic_id", "uuid"),
        Field("replicas", "int32", array=True),
        Field("isr", "int32", array=True),
        Field("removing_replicas", "int32", array=True),
        Field("adding_replicas", "int32", array=True),
        Field("leader", "int32"),
        Field("leader_recovery_state", "int8", tag=0),
        Field("leader_epoch", "int32"),
        Field("partition_epoch", "int32"),
        Field("directories", "uuid", array=True, since=1),
        Field("eligible_leaders", "int32", array=True, since=2, null_since=2, tag=1),
        Field("last_known_leaders", "int32", array=True, since=2, null_since=2, tag=2),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChangeRecord:
    """Changes a partition: a field that is None (for the leader: `NO_LEADER_CHANGE`) stays as it is."""

    partition: int = -1
    topic_id: UUID = NO_ID
    isr: list[int] | None = None
    leader: int = NO_LEADER_CHANGE
    replicas: list[int] | None = None
    removing_replicas: list[int] | None = None
    adding_replicas: list[int] | None = None
    leader_recovery_state: int = -1
    directories: list[UUID] | None = None
    eligible_leaders: list[int] | None = None
    last_known_leaders: list[int] | None = None

    WIRE: ClassVar[Wire] = (
        Field("partition", "int32"),
        Field("topic_id", "uuid"),
        Field("isr", "int32", array=True, null_since=0, tag=0),
        Field("leader", "int32", tag=1),
        Field("replicas", "int32", array=True, null_since=0, tag=2),
        Field("removing_replicas", "int32", array=True, null_since=0, tag=3),
        Field("adding_replicas", "int32", array=True, null_since=0, tag=4),
        Field("leader_recovery_state", "int8", tag=5),
        Field("eligible_leaders", "int32", array=True, since=2, null_since=2, tag=6),
        Field("last_known_leaders", "int32", array=True, since=2, null_since=2, tag=7),
        Field("directories", "uuid", array=True, since=1, null_since=1, tag=8),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTopicRecord:
    """A topic ends, with its partitions and settings."""

    topic_id: UUID = NO_ID

    WIRE: ClassVar[Wire] = (Field("topic_id", "uuid"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRecord:
    """Sets or (None) removes one setting of one entity. An empty broker name means all brokers."""

    resource_type: int = 0
    resource_name: str = ""
    name: str = ""
    value: str | None = None

    WIRE: ClassVar[Wire] = (
        Field("resource_type", "int8"),
        Field("resource_name", "string"),
        Field("name", "string"),
        Field("value", "string", null_since=0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLevelRecord:
    """A feature of the cluster, `metadata.version` among them, and its level; 0 takes it away."""

    name: str = ""
    level: int = 0

    WIRE: ClassVar[Wire] = (Field("name", "string"), Field("level", "int16"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsRecord:
    """A broker got a block of producer ids; the next block begins with `next_producer_id`."""

    broker: int = 0
    broker_epoch: int = -1
    next_producer_id: int = 0

    WIRE: ClassVar[Wire] = (
        Field("broker", "int32"),
        Field("broker_epoch", "int64"),
        Field("next_producer_id", "int64"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessControlEntryRecord:
    """An ACL begins; the codes are those of core/acls.py."""

    id: UUID = NO_ID
    resource_type: int = 0
    resource_name: str = ""
    pattern_type: int = 0
    principal: str = ""
    host: str = ""
    operation: int = 0
    permission_type: int = 0

    WIRE: ClassVar[Wire] = (
        Field("id", "uuid"),
        Field("resource_type", "int8"),
        Field("resource_name", "string"),
        Field("pattern_type", "int8"),
        Field("principal", "string"),
        Field("host", "string"),
        Field("operation", "int8"),
        Field("permission_type", "int8"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveAccessControlEntryRecord:
    """An ACL ends."""

    id: UUID = NO_ID

    WIRE: ClassVar[Wire] = (Field("id", "uuid"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaEntityPart:
    """A part of what a quota is of: its type, and its name or (None) the default."""

    entity_type: str = ""
    entity_name: str | None = None

    WIRE: ClassVar[Wire] = (Field("entity_type", "string"), Field("entity_name", "string", null_since=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuotaRecord:
    """Sets or removes one quota of one entity."""

    entity: list[QuotaEntityPart] = field(default_factory=list)
    key: str = ""
    value: float = 0.0
    remove: bool = False

    WIRE: ClassVar[Wire] = (
        Field("entity", QuotaEntityPart, array=True),
        Field("key", "string"),
        Field("value", "float64"),
        Field("remove", "bool"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UserScramCredentialRecord:
    """A user has, or has another, SCRAM credential of a mechanism."""

    name: str = ""
    mechanism: int = 0
    salt: bytes = field(default=b"", repr=False)
    stored_key: bytes = field(default=b"", repr=False)
    server_key: bytes = field(default=b"", repr=False)
    iterations: int = 0

    WIRE: ClassVar[Wire] = (
        Field("name", "string"),
        Field("mechanism", "int8"),
        Field("salt", "bytes"),
        Field("stored_key", "bytes"),
        Field("server_key", "bytes"),
        Field("iterations", "int32"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveUserScramCredentialRecord:
    """A user has no SCRAM credential of a mechanism any more."""

    name: str = ""
    mechanism: int = 0

    WIRE: ClassVar[Wire] = (Field("name", "string"), Field("mechanism", "int8"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationTokenRecord:
    """A delegation token exists, or has another time of expiration. Principals are TYPE:NAME."""

    owner: str = ""
    requester: str = ""
    renewers: list[str] = field(default_factory=list)
    issue_timestamp: int = 0
    max_timestamp: int = 0
    expiration_timestamp: int = 0
    token_id: str = ""

    WIRE: ClassVar[Wire] = (
        Field("owner", "string"),
        Field("requester", "string"),
        Field("renewers", "string", array=True),
        Field("issue_timestamp", "int64"),
        Field("max_timestamp", "int64"),
        Field("expiration_timestamp", "int64"),
        Field("token_id", "string"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveDelegationTokenRecord:
    """A delegation token ends."""

    token_id: str = ""

    WIRE: ClassVar[Wire] = (Field("token_id", "string"),)


class OpaqueRecord(NamedTuple):
    """A record that is not decoded: its number, and all of its value."""

    number: int
    raw: bytes


Record = (
    TopicRecord
    | PartitionRecord
    | PartitionChangeRecord
    | RemoveTopicRecord
    | ConfigRecord
    | FeatureLevelRecord
    | ProducerIdsRecord
    | AccessControlEntryRecord
    | RemoveAccessControlEntryRecord
    | ClientQuotaRecord
    | UserScramCredentialRecord
    | RemoveUserScramCredentialRecord
    | DelegationTokenRecord
    | RemoveDelegationTokenRecord
    | OpaqueRecord
)


class _Kind(NamedTuple):
    shape: type[Shape]
    version_max: int
    written: int  # the version `encode` writes


_KINDS: Mapping[int, _Kind] = MappingProxyType(
    {
        MetadataRecordType.TOPIC: _Kind(TopicRecord, 0, 0),
        MetadataRecordType.PARTITION: _Kind(
            PartitionRecord, 2, 1
        ),  # 2 needs a feature that a cluster may not have (KIP-966)
        MetadataRecordType.PARTITION_CHANGE: _Kind(PartitionChangeRecord, 2, 1),
        MetadataRecordType.REMOVE_TOPIC: _Kind(RemoveTopicRecord, 0, 0),
        MetadataRecordType.CONFIG: _Kind(ConfigRecord, 0, 0),
        MetadataRecordType.FEATURE_LEVEL: _Kind(FeatureLevelRecord, 0, 0),
        MetadataRecordType.PRODUCER_IDS: _Kind(ProducerIdsRecord, 0, 0),
        MetadataRecordType.ACCESS_CONTROL_ENTRY: _Kind(AccessControlEntryRecord, 0, 0),
        MetadataRecordType.REMOVE_ACCESS_CONTROL_ENTRY: _Kind(RemoveAccessControlEntryRecord, 0, 0),
        MetadataRecordType.CLIENT_QUOTA: _Kind(ClientQuotaRecord, 0, 0),
        MetadataRecordType.USER_SCRAM_CREDENTIAL: _Kind(UserScramCredentialRecord, 0, 0),
        MetadataRecordType.REMOVE_USER_SCRAM_CREDENTIAL: _Kind(RemoveUserScramCredentialRecord, 0, 0),
        MetadataRecordType.DELEGATION_TOKEN: _Kind(DelegationTokenRecord, 0, 0),
        MetadataRecordType.REMOVE_DELEGATION_TOKEN: _Kind(RemoveDelegationTokenRecord, 0, 0),
    }
)


@cache
def _plan(number: int, version: int) -> TypeCodec:
    return struct_codec(_KINDS[number].shape, version=version, flexible=True)


def decode(value: bytes) -> Record:
    """Decode the value of one record. Raises MalformedMetadata, also for an unsupported version of a known record."""
    try:
        frame, at = read_uvarint(value, 0)
        number, at = read_uvarint(value, at)
        version, at = read_uvarint(value, at)
        if frame != _FRAME_VERSION:
            raise MalformedMetadata(f"a metadata record of frame version {frame}")
        kind = _KINDS.get(number)
        if kind is None:
            return OpaqueRecord(number, value)
        if version > kind.version_max:
            raise MalformedMetadata(
                f"{MetadataRecordType(number).name} of version {version}; known is {kind.version_max}"
            )
        record, end = _plan(number, version).read(value, at)
    except (MalformedRequest, struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedMetadata(f"a metadata record that cannot be read: {error}") from error
    if end != len(value):
        raise MalformedMetadata(f"{len(value) - end} bytes after a metadata record")
    decoded: Record = record
    return decoded


def encode(record: Record, *, version: int | None = None) -> bytes:
    """Encode a record, by default in the version that every Kafka 4 reads."""
    if isinstance(record, OpaqueRecord):
        return record.raw
    number = next(number for number, kind in _KINDS.items() if isinstance(record, kind.shape))
    version = _KINDS[number].written if version is None else version
    out = bytearray()
    for head in (_FRAME_VERSION, number, version):
        write_uvarint(out, head)
    _plan(number, version).write(out, record)
    return bytes(out)
