"""OffsetCommit (key 8), versions 2 to 10.

What it does
  Stores how far a group has read, durably before it answers. A member of a classic group must name its current
  generation, one of a consumer group its epoch; with an older epoch it may commit the partitions that it has had since
  (KIP-1251), others fail with STALE_MEMBER_EPOCH. A consumer that assigns partitions to itself, or an administrator,
  commits with generation -1 while the group is empty.

What it does not do
  Nothing is left out.

Versions
  v2-4 retention_time_ms: how long the offsets are kept; -1 leaves it to offsets.retention.minutes
  v6   leader epoch (KIP-320)
  v7   static members (KIP-345)
  v8   flexible encoding
  v9   GROUP_ID_NOT_FOUND instead of ILLEGAL_GENERATION for an unknown group (KIP-848)
  v10  topic ids instead of names
"""

from __future__ import annotations

from functools import partial

from ottla.broker.requests.authorization import Access, on_group
from ottla.broker.requests.elements import Each, InParts
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation, ResourceType
from ottla.core.errors import ErrorCode, KafkaError
from ottla.core.ids import TopicPartition
from ottla.groups.machine import Commit
from ottla.groups.offsets import NEVER_MS, CommittedOffset
from ottla.metadata_store.cluster_view import ClusterView, TopicView
from ottla.wire.generated.offset_commit import (
    MESSAGES,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

TOPIC_IDS_SINCE = 10
READ = Access(AclOperation.READ, ResourceType.TOPIC, "each topic")


async def handle(request: Request, body: OffsetCommitRequest) -> OffsetCommitResponse:
    """Commit offsets; all that can be committed goes into one write."""
    slices = request.services.slices
    now_ms = request.services.clock.wall_ms()
    expires_ms = now_ms + body.retention_time_ms if body.retention_time_ms >= 0 else NEVER_MS
    by_id = request.api_version >= TOPIC_IDS_SINCE
    topics: list[
        tuple[OffsetCommitRequestTopic, TopicView | None, ErrorCode]
    ] = []  # and the error of what is not committed
    offsets: dict[TopicPartition, CommittedOffset] = {}
    for asked in body.topics:
        topic, otherwise = _topic(request, asked), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if topic is None and by_id:
            otherwise = ErrorCode.UNKNOWN_TOPIC_ID
        elif request.authorizer is not None and READ.denies(request, topic.name if topic is not None else asked.name):
            topic, otherwise = None, READ.error.code
        topics.append((asked, topic, otherwise))
        if slices.spend():
            await slices.yield_to_loop()
        if topic is None:
            continue
        for each in asked.partitions:
            if 0 <= each.partition_index < len(topic.partitions):
                offsets[TopicPartition(topic.name, each.partition_index)] = CommittedOffset(
                    each.committed_offset,
                    each.committed_leader_epoch,
                    each.committed_metadata or "",
                    now_ms,
                    expires_ms,
                    topic.topic_id,
                )
            if slices.spend():
                await slices.yield_to_loop()
    outcomes = await _commit(request, body, offsets) if offsets else {}
    response = OffsetCommitResponse()
    for asked, topic, otherwise in topics:
        answered = OffsetCommitResponseTopic(topic_id=asked.topic_id, name=asked.name)
        response.topics.append(answered)
        for each in asked.partitions:
            index = each.partition_index
            code = otherwise if topic is None else outcomes.get(TopicPartition(topic.name, index), otherwise)
            answered.partitions.append(OffsetCommitResponsePartition(partition_index=index, error_code=code))
            if slices.spend():
                await slices.yield_to_loop()
    return response


def refuse(_request: Request, body: OffsetCommitRequest, error: KafkaError) -> InParts[OffsetCommitResponse]:
    """Answer each partition with an error."""
    response = OffsetCommitResponse()
    return InParts(response, Each(body.topics, partial(_refused_topic, error), into=response.topics))


def _refused_topic(
    error: KafkaError, _request: Request, asked: OffsetCommitRequestTopic, _view: ClusterView
) -> InParts[OffsetCommitResponseTopic]:
    answered = OffsetCommitResponseTopic(topic_id=asked.topic_id, name=asked.name)
    return InParts(answered, Each(asked.partitions, partial(_refused_partition, error), into=answered.partitions))


def _refused_partition(
    error: KafkaError, _request: Request, asked: OffsetCommitRequestPartition, _view: ClusterView
) -> OffsetCommitResponsePartition:
    return OffsetCommitResponsePartition(partition_index=asked.partition_index, error_code=error.code)


def _topic(request: Request, asked: OffsetCommitRequestTopic) -> TopicView | None:
    view = request.services.cluster.current
    if request.api_version >= TOPIC_IDS_SINCE:
        return view.topic_by_id.get(asked.topic_id.bytes)
    return view.topics.get(asked.name)


async def _commit(
    request: Request, body: OffsetCommitRequest, offsets: dict[TopicPartition, CommittedOffset]
) -> dict[TopicPartition, ErrorCode]:
    commit = Commit(
        member_id=body.member_id,
        generation=body.generation_id_or_member_epoch,
        instance_id=body.group_instance_id,
        api_version=request.api_version,
    )
    try:
        return await request.services.coordinators.groups.commit(body.group_id, commit, offsets)
    except KafkaError as error:
        code = error.code
    return dict.fromkeys(offsets, code)


HANDLER = Awaited(MESSAGES, handle, access=(on_group(AclOperation.READ), READ), refuse=refuse, eager=True)
