"""TxnOffsetCommit (key 28), versions 0 to 6.

What it does
  Stores how far a group has read as part of a producer's transaction: the offsets are durable before it answers, and
  become visible, or are dropped, with the transaction's marker. The transaction coordinator is asked first whether the
  group's partition of __consumer_offsets belongs to the transaction (KIP-890).

What it does not do
  Nothing is left out.

Versions
  v2   leader epoch (KIP-320)
  v3   flexible encoding; member id, generation and instance id, which are checked as in OffsetCommit (KIP-447)
  v4   TRANSACTION_ABORTABLE (KIP-890)
  v5   adds the group's partition to the transaction, so that AddOffsetsToTxn is not needed (KIP-890)
  v6   topic ids instead of names; GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH instead of ILLEGAL_GENERATION (KIP-1319)
"""

from __future__ import annotations

from functools import partial

from ottla.broker.remote.transaction_verification import NewBatch, TransactionSupportedOperation
from ottla.broker.requests.authorization import Access, on_group, on_transactional_id
from ottla.broker.requests.elements import Each, InParts
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation, ResourceType
from ottla.core.errors import CoordinatorNotAvailable, ErrorCode, GroupIdNotFound, InvalidGroupId, KafkaError, error_for
from ottla.core.ids import OFFSETS_TOPIC, TopicPartition
from ottla.groups.machine import Commit
from ottla.groups.offsets import CommittedOffset
from ottla.internal_topics.topic_log import ProducerIdentity
from ottla.metadata_store.cluster_view import ClusterView, TopicView
from ottla.records.batch import NO_SEQUENCE
from ottla.wire.generated.txn_offset_commit import (
    MESSAGES,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

LOADING_SINCE, ABORTABLE_SINCE, ADDS_PARTITION_SINCE, TOPIC_IDS_SINCE = 2, 4, 5, 6
READ = Access(AclOperation.READ, ResourceType.TOPIC, "each topic")


async def handle(request: Request, body: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
    """Commit offsets; all that can be committed goes into one write."""
    now_ms = request.services.clock.wall_ms()
    each_of = request.services.slices.each
    by_id = request.api_version >= TOPIC_IDS_SINCE
    topics: list[
        tuple[TxnOffsetCommitRequestTopic, TopicView | None, ErrorCode]
    ] = []  # and the error of what is not committed
    offsets: dict[TopicPartition, CommittedOffset] = {}
    async for asked in each_of(body.topics):
        topic, otherwise = _topic(request, asked), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if topic is None and by_id:
            otherwise = ErrorCode.UNKNOWN_TOPIC_ID
        elif request.authorizer is not None and READ.denies(request, topic.name if topic is not None else asked.name):
            topic, otherwise = None, READ.error.code
        topics.append((asked, topic, otherwise))
        if topic is None:
            continue
        async for each in each_of(asked.partitions):
            if 0 <= each.partition_index < len(topic.partitions):
                offsets[TopicPartition(topic.name, each.partition_index)] = CommittedOffset(
                    each.committed_offset,
                    each.committed_leader_epoch,
                    each.committed_metadata or "",
                    now_ms,
                    topic_id=topic.topic_id,
                )
    outcomes = await _commit(request, body, offsets) if offsets else {}
    response = TxnOffsetCommitResponse()
    async for asked, topic, otherwise in each_of(topics):
        answered = TxnOffsetCommitResponseTopic(topic_id=asked.topic_id, name=asked.name)
        response.topics.append(answered)
        async for each in each_of(asked.partitions):
            index = each.partition_index
            code = otherwise if topic is None else outcomes.get(TopicPartition(topic.name, index), otherwise)
            answered.partitions.append(TxnOffsetCommitResponsePartition(partition_index=index, error_code=code))
    return response


def refuse(_request: Request, body: TxnOffsetCommitRequest, error: KafkaError) -> InParts[TxnOffsetCommitResponse]:
    """Answer each partition with an error."""
    response = TxnOffsetCommitResponse()
    return InParts(response, Each(body.topics, partial(_refused_topic, error), into=response.topics))


def _refused_topic(
    error: KafkaError, _request: Request, asked: TxnOffsetCommitRequestTopic, _view: ClusterView
) -> InParts[TxnOffsetCommitResponseTopic]:
    answered = TxnOffsetCommitResponseTopic(topic_id=asked.topic_id, name=asked.name)
    return InParts(answered, Each(asked.partitions, partial(_refused_partition, error), into=answered.partitions))


def _refused_partition(
    error: KafkaError, _request: Request, asked: TxnOffsetCommitRequestPartition, _view: ClusterView
) -> TxnOffsetCommitResponsePartition:
    return TxnOffsetCommitResponsePartition(partition_index=asked.partition_index, error_code=error.code)


def _topic(request: Request, asked: TxnOffsetCommitRequestTopic) -> TopicView | None:
    view = request.services.cluster.current
    if request.api_version >= TOPIC_IDS_SINCE:
        return view.topic_by_id.get(asked.topic_id.bytes)
    return view.topics.get(asked.name)


async def _commit(
    request: Request, body: TxnOffsetCommitRequest, offsets: dict[TopicPartition, CommittedOffset]
) -> dict[TopicPartition, ErrorCode]:
    commit = Commit(
        member_id=body.member_id,
        generation=body.generation_id,
        instance_id=body.group_instance_id,
        is_transactional=True,
    )
    try:
        if not body.group_id:
            raise InvalidGroupId
        producer = await _verified(request, body)
        return await request.services.coordinators.groups.commit(body.group_id, commit, offsets, producer)
    except KafkaError as error:
        return dict.fromkeys(offsets, _error_of(error, request.api_version))


async def _verified(request: Request, body: TxnOffsetCommitRequest) -> ProducerIdentity:
    """Have the transaction coordinator verify the group's partition. Raises KafkaError."""
    services = request.services
    if not services.coordinators.groups.led.exists:  # Kafka's verification does not find the partition
        raise CoordinatorNotAvailable(f"{OFFSETS_TOPIC} does not exist yet")
    services.coordinators.groups.check_ready(body.group_id)
    where = TopicPartition(OFFSETS_TOPIC, services.coordinators.groups.led.partition_for(body.group_id))
    producer_id, epoch = body.producer_id, body.producer_epoch
    verification = services.coordinators.transaction_verifier.begin(
        body.transactional_id,
        producer_id,
        epoch,
        [NewBatch(services.replicas.partition(where), NO_SEQUENCE)],
        _operation_of(request.api_version),
    )
    if where in verification.fenced:
        raise verification.fenced[where]
    if verification.is_required:
        await services.coordinators.transaction_verifier.verify(verification)
        if verification.error is not ErrorCode.NONE:
            raise error_for(verification.error)
    return ProducerIdentity(producer_id, epoch, verification.guards.get(where))


def _operation_of(version: int) -> TransactionSupportedOperation:
    if version >= ADDS_PARTITION_SINCE:
        return TransactionSupportedOperation.ADD_PARTITION
    return (
        TransactionSupportedOperation.GENERIC_ERROR
        if version >= ABORTABLE_SINCE
        else TransactionSupportedOperation.DEFAULT_ERROR
    )


def _error_of(error: KafkaError, version: int) -> ErrorCode:
    """Translate an error into one that the client's version of the protocol knows."""
    no_longer = isinstance(error, GroupIdNotFound) or error.code is ErrorCode.STALE_MEMBER_EPOCH
    if no_longer and version < TOPIC_IDS_SINCE:
        return ErrorCode.ILLEGAL_GENERATION
    code = error.code
    if code is ErrorCode.NETWORK_EXCEPTION:  # the verification's: clients retry, without looking for the coordinator
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < LOADING_SINCE:  # KAFKA-7296
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return code


HANDLER = Awaited(
    MESSAGES,
    handle,
    access=(on_transactional_id(AclOperation.WRITE), on_group(AclOperation.READ), READ),
    refuse=refuse,
    eager=True,
)
