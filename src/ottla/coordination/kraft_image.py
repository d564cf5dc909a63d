"""What a KRaft cluster looks like after its metadata log: the records in, topics and settings out.

The rules are Kafka's (TopicDelta, PartitionRegistration.merge, ConfigurationsDelta): a change of leader adds one to the
leader epoch, every change adds one to the partition epoch, a removed topic takes its settings along, and records inside
a transaction (KIP-868) count only once it ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from ottla.coordination.kraft_records import (
    NO_LEADER_CHANGE,
    Config,
    FeatureLevel,
    MalformedMetadata,
    Other,
    Partition,
    PartitionChange,
    ProducerIds,
    Record,
    RecordType,
    RemoveTopic,
    ResourceType,
    Topic,
    decode,
)

_OF_ONE_LIFE = frozenset(
    {
        RecordType.REGISTER_BROKER, RecordType.UNREGISTER_BROKER, RecordType.FENCE_BROKER, RecordType.UNFENCE_BROKER,
        RecordType.BROKER_REGISTRATION_CHANGE, RecordType.NO_OP, RecordType.ZK_MIGRATION_STATE,
        RecordType.REGISTER_CONTROLLER, RecordType.CLEAR_ELR,
    }
)  # fmt: skip
"""Records about stopped processes, of no use after an import."""


class KraftPartition(NamedTuple):
    """One partition as the controller last had it."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int  # -1: none
    leader_epoch: int
    partition_epoch: int
    directories: tuple[UUID, ...]
    eligible_leaders: tuple[int, ...]  # not in sync any more, but known to hold every acknowledged record (KIP-966)

    def holds_everything(self, node_id: int) -> bool:
        """Whether a broker's replica has every record that was acknowledged."""
        return node_id in self.isr or node_id in self.eligible_leaders


class KraftTopic(NamedTuple):
    """One topic."""

    name: str
    topic_id: UUID
    partitions: dict[int, KraftPartition]


class KraftImage:
    """Topics, settings and the rest after the records replayed so far."""

    def __init__(self) -> None:
        self.topics: dict[UUID, KraftTopic] = {}
        self.configs: dict[tuple[int, str], dict[str, str]] = {}  # (ResourceType, name) -> settings
        self.features: dict[str, int] = {}
        self.next_producer_id = 0
        self.carried: list[Other] = []  # what is not understood here: permissions, quotas, credentials, in order
        self._waiting: list[Record] | None = None  # the records of a transaction that has not ended

    def config(self, kind: ResourceType, name: str) -> Mapping[str, str]:
        """What was set for an entity."""
        return self.configs.get((kind, name), {})

    def replay(self, value: bytes) -> None:
        """Take one record into account. Raises MalformedMetadata."""
        record = decode(value)
        if isinstance(record, Other):
            match record.number:
                case RecordType.BEGIN_TRANSACTION:
                    self._waiting = []
                    return
                case RecordType.ABORT_TRANSACTION:
                    self._waiting = None
                    return
                case RecordType.END_TRANSACTION:
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
            case Topic(name=name, topic_id=topic_id):
                self.topics[topic_id] = KraftTopic(name, topic_id, {})
            case Partition():
                self._topic(record.topic_id).partitions[record.partition] = KraftPartition(
                    tuple(record.replicas), tuple(record.isr), record.leader, record.leader_epoch,
                    record.partition_epoch, tuple(record.directories), tuple(record.eligible_leaders or ()),
                )  # fmt: skip
            case PartitionChange():
                self._change(record)
            case RemoveTopic(topic_id=topic_id):
                self.configs.pop((ResourceType.TOPIC, self._topic(topic_id).name), None)
                del self.topics[topic_id]
            case Config():
                self._set(record)
            case FeatureLevel(name=name, level=level):
                if level:
                    self.features[name] = level
                else:
                    self.features.pop(name, None)
            case ProducerIds(next_producer_id=next_id):
                self.next_producer_id = max(self.next_producer_id, next_id)
            case Other(number, _):
                if number not in _OF_ONE_LIFE:
                    self.carried.append(record)

    def _topic(self, topic_id: UUID) -> KraftTopic:
        found = self.topics.get(topic_id)
        if found is None:
            raise MalformedMetadata(f"a record of topic {topic_id}, which is not there")
        return found

    def _change(self, record: PartitionChange) -> None:
        partitions = self._topic(record.topic_id).partitions
        old = partitions.get(record.partition)
        if old is None:
            raise MalformedMetadata(f"a change of partition {record.partition}, which is not there")
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

    def _set(self, record: Config) -> None:
        entity = (record.resource_type, record.resource_name)
        values = self.configs.setdefault(entity, {})
        if record.value is None:
            values.pop(record.name, None)
        else:
            values[record.name] = record.value
        if not values:
            del self.configs[entity]
