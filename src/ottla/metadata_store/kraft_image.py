"""Replays the metadata log of a KRaft cluster into an image: topics, settings, security and producer ids.

The rules are Kafka's (TopicDelta, PartitionRegistration.merge, ConfigurationsDelta): a change of leader adds one to the
leader epoch, every change adds one to the partition epoch, the removal of a topic removes its settings, and records of
a transaction (KIP-868) are applied when it ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from ottla.core.acls import AclBinding, AclOperation, PatternType, PermissionType, ResourceType
from ottla.core.settings import ConfigResourceType
from ottla.metadata_store.kraft_records import (
    NO_LEADER_CHANGE,
    AccessControlEntryRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    FeatureLevelRecord,
    MalformedMetadata,
    MetadataRecordType,
    OpaqueRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    Record,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UserScramCredentialRecord,
    decode,
)

_PROCESS_RECORDS = frozenset(
    {
        MetadataRecordType.REGISTER_BROKER,
        MetadataRecordType.UNREGISTER_BROKER,
        MetadataRecordType.FENCE_BROKER,
        MetadataRecordType.UNFENCE_BROKER,
        MetadataRecordType.BROKER_REGISTRATION_CHANGE,
        MetadataRecordType.NO_OP,
        MetadataRecordType.ZK_MIGRATION_STATE,
        MetadataRecordType.REGISTER_CONTROLLER,
        MetadataRecordType.CLEAR_ELR,
        MetadataRecordType.UNREGISTER_CONTROLLER,
    }
)
"""Records about processes, which have all stopped before an import: ignored."""


QuotaParts = tuple[tuple[str, str | None], ...]
"""The entity of a quota: names by type, None for the default."""


class KraftPartition(NamedTuple):
    """The state of one partition."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int  # -1: none
    leader_epoch: int
    partition_epoch: int
    directories: tuple[UUID, ...]
    eligible_leaders: tuple[int, ...]  # not in sync, but with every acknowledged record (KIP-966)

    def holds_everything(self, node_id: int) -> bool:
        """Return whether a broker's replica has every acknowledged record."""
        return node_id in self.isr or node_id in self.eligible_leaders


class KraftTopic(NamedTuple):
    """The name, the id and the partitions of a topic."""

    name: str
    topic_id: UUID
    partitions: dict[int, KraftPartition]


class KraftImage:
    """Holds topics, settings and the rest as of the records replayed so far."""

    def __init__(self) -> None:
        self.topics: dict[UUID, KraftTopic] = {}
        self.configs: dict[tuple[int, str], dict[str, str]] = {}  # (ConfigResourceType, name) -> settings
        self.features: dict[str, int] = {}
        self.next_producer_id = 0
        self.acls: dict[UUID, AclBinding] = {}
        self.quotas: dict[QuotaParts, dict[str, float]] = {}  # by entity and key
        self.credentials: dict[tuple[str, int], UserScramCredentialRecord] = {}  # by user and mechanism
        self.tokens: dict[str, DelegationTokenRecord] = {}  # by id
        self.carried: list[OpaqueRecord] = []  # in order: what is not decoded
        self._waiting: list[Record] | None = None  # the records of a transaction that has not ended

    def config(self, kind: ConfigResourceType, name: str) -> Mapping[str, str]:
        """Return the settings of an entity."""
        return self.configs.get((kind, name), {})

    def replay(self, value: bytes) -> None:
        """Apply one record. Raises MalformedMetadata."""
        record = decode(value)
        if isinstance(record, OpaqueRecord):
            match record.number:
                case MetadataRecordType.BEGIN_TRANSACTION:
                    self._waiting = []
                    return
                case MetadataRecordType.ABORT_TRANSACTION:
                    self._waiting = None
                    return
                case MetadataRecordType.END_TRANSACTION:
                    waiting, self._waiting = self._waiting or [], None
                    for each in waiting:
                        self._apply(each)
                    return
        if self._waiting is None:
            self._apply(record)
        else:
            self._waiting.append(record)

    def _apply(self, record: Record) -> None:
        match record:
            case TopicRecord(name=name, topic_id=topic_id):
                self.topics[topic_id] = KraftTopic(name, topic_id, {})
            case PartitionRecord():
                self._topic(record.topic_id).partitions[record.partition] = KraftPartition(
                    tuple(record.replicas),
                    tuple(record.isr),
                    record.leader,
                    record.leader_epoch,
                    record.partition_epoch,
                    tuple(record.directories),
                    tuple(record.eligible_leaders or ()),
                )
            case PartitionChangeRecord():
                self._change(record)
            case RemoveTopicRecord(topic_id=topic_id):
                self.configs.pop((ConfigResourceType.TOPIC, self._topic(topic_id).name), None)
                del self.topics[topic_id]
            case ConfigRecord():
                self._set(record)
            case FeatureLevelRecord(name=name, level=level):
                if level:
                    self.features[name] = level
                else:
                    self.features.pop(name, None)
            case ProducerIdsRecord(next_producer_id=next_id):
                self.next_producer_id = max(self.next_producer_id, next_id)
            case AccessControlEntryRecord(id=acl_id):
                self.acls[acl_id] = _binding(record)
            case RemoveAccessControlEntryRecord(id=acl_id):
                if self.acls.pop(acl_id, None) is None:
                    raise MalformedMetadata(f"the removal of ACL {acl_id}, which does not exist")
            case ClientQuotaRecord():
                self._set_quota(record)
            case UserScramCredentialRecord(name=name, mechanism=mechanism):
                self.credentials[name, mechanism] = record
            case RemoveUserScramCredentialRecord(name=name, mechanism=mechanism):
                self.credentials.pop((name, mechanism), None)
            case DelegationTokenRecord(token_id=token_id):
                self.tokens[token_id] = record
            case RemoveDelegationTokenRecord(token_id=token_id):
                self.tokens.pop(token_id, None)
            case OpaqueRecord(number, _):
                if number not in _PROCESS_RECORDS:
                    self.carried.append(record)

    def _set_quota(self, record: ClientQuotaRecord) -> None:
        entity = tuple(sorted((part.entity_type, part.entity_name) for part in record.entity))
        if record.remove:
            self.quotas.get(entity, {}).pop(record.key, None)
        else:
            self.quotas.setdefault(entity, {})[record.key] = record.value

    def _topic(self, topic_id: UUID) -> KraftTopic:
        topic = self.topics.get(topic_id)
        if topic is None:
            raise MalformedMetadata(f"a record of topic {topic_id}, which does not exist")
        return topic

    def _change(self, record: PartitionChangeRecord) -> None:
        partitions = self._topic(record.topic_id).partitions
        old = partitions.get(record.partition)
        if old is None:
            raise MalformedMetadata(f"a change of partition {record.partition}, which does not exist")
        elects = record.leader != NO_LEADER_CHANGE
        partitions[record.partition] = KraftPartition(
            replicas=old.replicas if record.replicas is None else tuple(record.replicas),
            isr=old.isr if record.isr is None else tuple(record.isr),
            leader=record.leader if elects else old.leader,
            leader_epoch=old.leader_epoch + elects,
            partition_epoch=old.partition_epoch + 1,
            directories=old.directories if record.directories is None else tuple(record.directories),
            eligible_leaders=old.eligible_leaders
            if record.eligible_leaders is None
            else tuple(record.eligible_leaders),
        )

    def _set(self, record: ConfigRecord) -> None:
        entity = (record.resource_type, record.resource_name)
        values = self.configs.setdefault(entity, {})
        if record.value is None:
            values.pop(record.name, None)
        else:
            values[record.name] = record.value
        if not values:
            del self.configs[entity]


def _binding(record: AccessControlEntryRecord) -> AclBinding:
    """Return the ACL of a record. Raises MalformedMetadata if it says what is not known: it may deny something."""
    try:
        binding = AclBinding(
            ResourceType(record.resource_type),
            PatternType(record.pattern_type),
            record.resource_name,
            record.principal,
            record.host,
            AclOperation(record.operation),
            PermissionType(record.permission_type),
        )
    except ValueError as error:
        raise MalformedMetadata(f"an ACL that is not understood: {error}") from error
    if not binding.is_concrete:
        raise MalformedMetadata(f"an ACL that is not understood: {record}")
    return binding
