"""Validates and converts what ShareFetch and ShareAcknowledge have in common: members, sessions, acknowledgements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol
from uuid import UUID

from ottla.broker.requests.authorization import Access
from ottla.broker.requests.request import Request
from ottla.broker.services import Services
from ottla.core.acls import AclOperation, ResourceType
from ottla.core.errors import ErrorCode, InvalidRequest, KafkaError, UnknownTopicId
from ottla.replication.partition import Partition
from ottla.share_partitions.acknowledgements import AcknowledgementBatch, AcknowledgeType
from ottla.share_partitions.partition_manager import AcknowledgeResult
from ottla.share_partitions.sessions import SessionPartition, ShareSession

RENEW_SINCE = 2
"""The version with acknowledgements that renew the lock (KIP-1222)."""

_MEMBER_ID_CHARS_MAX = 36

INVALID_BATCH = AcknowledgeResult(ErrorCode.INVALID_REQUEST, "The acknowledgement batches are invalid.")

READ_GROUP = Access(AclOperation.READ, ResourceType.GROUP, "the group")
READ = Access(AclOperation.READ, ResourceType.TOPIC, "each topic")

Acknowledgements = dict[SessionPartition, Sequence[AcknowledgementBatch]]


class _Batch(Protocol):
    first_offset: int
    last_offset: int
    acknowledge_types: list[int]


class _Partition(Protocol):
    partition_index: int

    @property
    def acknowledgement_batches(self) -> Sequence[_Batch]: ...


class _Topic(Protocol):
    topic_id: UUID

    @property
    def partitions(self) -> Sequence[_Partition]: ...


def check_group_and_member(request: Request, group_id: str | None, member_id: str | None) -> tuple[str, str]:
    """Return the ids of a request. Raises InvalidRequest, and the error of a group that is denied."""
    if group_id is not None and READ_GROUP.denies(request, group_id):
        raise READ_GROUP.error
    return check_member(group_id, member_id)


def check_member(group_id: str | None, member_id: str | None) -> tuple[str, str]:
    """Return the ids of a request. Raises InvalidRequest."""
    if group_id is None:
        raise InvalidRequest("Invalid group id in the request.")
    if member_id is None or not member_id.strip() or len(member_id) > _MEMBER_ID_CHARS_MAX:
        raise InvalidRequest("Invalid member id in the request.")
    return group_id, member_id


def acknowledgements_of(
    topics: Iterable[_Topic], *, may_renew: bool
) -> tuple[Acknowledgements, dict[SessionPartition, AcknowledgeResult]]:
    """Convert the acknowledgements of a request; returns the valid ones, and an error for other partitions."""
    valid: Acknowledgements = {}
    refused: dict[SessionPartition, AcknowledgeResult] = {}
    for topic in topics:
        for partition in topic.partitions:
            if not partition.acknowledgement_batches:
                continue
            where = SessionPartition(topic.topic_id, partition.partition_index)
            batches = [
                AcknowledgementBatch(batch.first_offset, batch.last_offset, tuple(batch.acknowledge_types))
                for batch in partition.acknowledgement_batches
            ]
            if _are_valid(batches, may_renew=may_renew):
                valid[where] = batches
            else:
                refused[where] = INVALID_BATCH
    return valid, refused


def _are_valid(batches: Sequence[AcknowledgementBatch], *, may_renew: bool) -> bool:
    last_type = AcknowledgeType.RENEW if may_renew else AcknowledgeType.REJECT
    end = -1
    for batch in batches:
        if batch.first > batch.last or batch.first <= end:
            return False
        if len(batch.types) not in (1, batch.last - batch.first + 1):
            return False
        if not all(AcknowledgeType.GAP <= kind <= last_type for kind in batch.types):
            return False
        end = batch.last
    return True


def partition_of(request: Request, where: SessionPartition) -> Partition:
    """Return the partition that this broker leads. Raises the KafkaError to respond with."""
    services = request.services
    topic = services.cluster.current.topic_by_id.get(where.topic_id.bytes)
    if topic is None:
        raise UnknownTopicId
    if READ.denies(request, topic.name):
        raise READ.error
    partition = services.replicas.find(topic.name, where.partition)
    partition.check_serving()
    return partition


def leader_if_moved(services: Services, where: SessionPartition, error: ErrorCode) -> tuple[int, int]:
    """Return the leader and its epoch, if the error is that this broker is not it; otherwise -1 (KIP-951)."""
    topic = services.cluster.current.topic_by_id.get(where.topic_id.bytes)
    stale = error in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
    if not stale or topic is None or where.partition >= len(topic.partitions):
        return -1, -1
    partition = topic.partitions[where.partition]
    return partition.leader, partition.leader_epoch


async def acknowledge(
    request: Request, session: ShareSession, topics: Iterable[_Topic], *, renews: bool
) -> dict[SessionPartition, AcknowledgeResult]:
    """Acknowledge what a request names; returns the result of each partition once it is durable."""
    valid, results = acknowledgements_of(topics, may_renew=renews)
    for where in list(valid):
        try:
            partition_of(request, where)
        except KafkaError as error:
            del valid[where]
            results[where] = AcknowledgeResult(error.code, error.message)
    return results | await request.services.coordinators.share_partitions.acknowledge(session, valid)


def by_topic(results: Mapping[SessionPartition, AcknowledgeResult]) -> dict[UUID, list[SessionPartition]]:
    """Group partitions by their topic."""
    topics: dict[UUID, list[SessionPartition]] = {}
    for where in results:
        topics.setdefault(where.topic_id, []).append(where)
    return topics
