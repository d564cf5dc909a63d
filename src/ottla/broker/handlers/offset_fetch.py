"""OffsetFetch (key 9), versions 1 to 10.

What it does
  Returns the committed offsets of a group, partition by partition: -1 where nothing was committed, and everywhere for
  an unknown group. A null list of topics (v2 and newer) asks for all. From v8 many groups at once.

What it does not do
  Nothing is left out.

Versions
  v2   all topics; an error for the whole request
  v5   leader epoch (KIP-320)
  v6   flexible encoding
  v7   require_stable: UNSTABLE_OFFSET_COMMIT for an offset that an open transaction commits (KIP-447)
  v8   many groups (KIP-709)
  v9   member id and epoch, which groups of the consumer protocol check (KIP-848)
  v10  topic ids instead of names
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import NamedTuple

from ottla.broker.coordinators import naming_work
from ottla.broker.requests.authorization import Access
from ottla.broker.requests.elements import Each, InParts, collect, collect_awaited
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation, ResourceType
from ottla.core.errors import ErrorCode, KafkaError
from ottla.core.ids import NO_TOPIC_ID, TopicPartition
from ottla.groups.offsets import CommittedOffset, GroupOffsets
from ottla.metadata_store.cluster_view import ClusterView, TopicView
from ottla.wire.generated.offset_fetch import (
    MESSAGES,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

GROUP_ERROR_SINCE, MANY_GROUPS_SINCE, TOPIC_IDS_SINCE = 2, 8, 10
NOTHING = CommittedOffset(-1)

DESCRIBE = Access(AclOperation.DESCRIBE, ResourceType.GROUP, "each group")
DESCRIBE_TOPIC = Access(
    AclOperation.DESCRIBE,
    ResourceType.TOPIC,
    "each topic",
    refusal="`TOPIC_AUTHORIZATION_FAILED`; left out where none are named",
)

WORK = 3
"""Units of work of one group."""


class _Fetched(NamedTuple):
    """The durable offsets of a group, and the partitions that open transactions commit."""

    offsets: GroupOffsets
    unstable: Collection[TopicPartition]


async def handle(request: Request, body: OffsetFetchRequest) -> OffsetFetchResponse:
    """Fetch each group separately."""
    if request.api_version >= MANY_GROUPS_SINCE:
        one = partial(_group, body.require_stable)
        return OffsetFetchResponse(groups=await collect_awaited(request, body.groups, one, work=_work))
    view = request.services.cluster.current
    topics = None
    if body.topics is not None:
        topics = await collect(request, Each(body.topics, _newer_topic), view)
    asked = OffsetFetchRequestGroup(group_id=body.group_id, topics=topics)
    (group,) = await collect_awaited(request, [asked], partial(_group, body.require_stable), view, work=_work)
    if group.error_code and request.api_version < GROUP_ERROR_SINCE:
        failed: Each[OffsetFetchRequestTopics, OffsetFetchResponseTopics] = Each(
            topics or [], partial(_failed_topic, group.error_code)
        )
        group.topics = await collect(request, failed, view)
    older: Each[OffsetFetchResponseTopics, OffsetFetchResponseTopic] = Each(group.topics, _older_topic)
    return OffsetFetchResponse(error_code=group.error_code, topics=await collect(request, older, view))


def _work(asked: OffsetFetchRequestGroup) -> int:
    return WORK + naming_work(asked.group_id)


async def _group(
    require_stable: bool, request: Request, asked: OffsetFetchRequestGroup, view: ClusterView
) -> OffsetFetchResponseGroup | InParts[OffsetFetchResponseGroup]:
    groups = request.services.coordinators.groups
    response = OffsetFetchResponseGroup(group_id=asked.group_id)
    try:
        if DESCRIBE.denies(request, asked.group_id):
            raise DESCRIBE.error
        if require_stable:
            await groups.wait_until_written(asked.group_id)
        offsets = groups.fetch(asked.group_id, member_id=asked.member_id, member_epoch=asked.member_epoch)
    except KafkaError as error:
        response.error_code = error.code
        return response
    topics = asked.topics
    if topics is None:
        topics = await _all_topics(request, offsets, view)
    fetched = _Fetched(offsets, offsets.in_transactions() if require_stable else frozenset())
    return InParts(response, Each(topics, partial(_topic, fetched), into=response.topics))


async def _all_topics(request: Request, offsets: GroupOffsets, view: ClusterView) -> list[OffsetFetchRequestTopics]:
    """Return everything the group committed; where the answer has only ids, a topic without one is left out."""
    topics: dict[str, OffsetFetchRequestTopics] = {}
    await collect(request, Each(list(offsets.items()), partial(_add_partition, topics)), view)
    return await collect(request, Each(list(topics.values()), _describable), view)


def _describable(
    request: Request, topic: OffsetFetchRequestTopics, _view: ClusterView
) -> OffsetFetchRequestTopics | None:
    return None if DESCRIBE_TOPIC.denies(request, topic.name, log_if_denied=False) else topic


def _add_partition(
    topics: dict[str, OffsetFetchRequestTopics],
    request: Request,
    committed: tuple[TopicPartition, CommittedOffset],
    view: ClusterView,
) -> None:
    where, offset = committed
    topic = view.topics.get(where.topic)
    if not _is_current(topic, offset) or (topic is None and request.api_version >= TOPIC_IDS_SINCE):
        return
    named = topics.get(where.topic)
    if named is None:
        topic_id = NO_TOPIC_ID if topic is None else topic.topic_id
        named = topics[where.topic] = OffsetFetchRequestTopics(topic_id=topic_id, name=where.topic)
    named.partition_indexes.append(where.partition)


def _is_current(topic: TopicView | None, committed: CommittedOffset) -> bool:
    """Return whether an offset was not committed into an older topic of the same name."""
    return topic is None or committed.topic_id in {NO_TOPIC_ID, topic.topic_id}


def _topic(
    fetched: _Fetched, request: Request, asked: OffsetFetchRequestTopics, view: ClusterView
) -> InParts[OffsetFetchResponseTopics]:
    if request.api_version >= TOPIC_IDS_SINCE:
        topic = view.topic_by_id.get(asked.topic_id.bytes)
        if topic is None:
            return _failed_topic(ErrorCode.UNKNOWN_TOPIC_ID, request, asked, view)
        name = topic.name
    else:
        topic, name = view.topics.get(asked.name), asked.name
    if DESCRIBE_TOPIC.denies(request, name):
        return _failed_topic(DESCRIBE_TOPIC.error.code, request, asked, view)
    result = OffsetFetchResponseTopics(topic_id=asked.topic_id, name=asked.name)
    one = partial(_partition, fetched, name, topic)
    return InParts(result, Each(asked.partition_indexes, one, into=result.partitions))


def _partition(
    fetched: _Fetched, name: str, topic: TopicView | None, _request: Request, index: int, _view: ClusterView
) -> OffsetFetchResponsePartitions:
    where = TopicPartition(name, index)
    if where in fetched.unstable:
        return _result(index, NOTHING, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    committed = fetched.offsets.get(where)
    return _result(index, committed if committed is not None and _is_current(topic, committed) else NOTHING)


def _failed_topic(
    error: int, _request: Request, asked: OffsetFetchRequestTopics, _view: ClusterView
) -> InParts[OffsetFetchResponseTopics]:
    result = OffsetFetchResponseTopics(topic_id=asked.topic_id, name=asked.name)
    return InParts(result, Each(asked.partition_indexes, partial(_failed_partition, error), into=result.partitions))


def _failed_partition(error: int, _request: Request, index: int, _view: ClusterView) -> OffsetFetchResponsePartitions:
    return _result(index, NOTHING, error)


def _result(index: int, committed: CommittedOffset, error: int = 0) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        error_code=error,
    )


# ---- Before many groups could be asked for


def _newer_topic(_request: Request, topic: OffsetFetchRequestTopic, _view: ClusterView) -> OffsetFetchRequestTopics:
    return OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)


def _older_topic(
    _request: Request, topic: OffsetFetchResponseTopics, _view: ClusterView
) -> InParts[OffsetFetchResponseTopic]:
    result = OffsetFetchResponseTopic(name=topic.name)
    return InParts(result, Each(topic.partitions, _older_partition, into=result.partitions))


def _older_partition(
    _request: Request, partition: OffsetFetchResponsePartitions, _view: ClusterView
) -> OffsetFetchResponsePartition:
    return OffsetFetchResponsePartition(
        partition_index=partition.partition_index,
        committed_offset=partition.committed_offset,
        committed_leader_epoch=partition.committed_leader_epoch,
        metadata=partition.metadata,
        error_code=partition.error_code,
    )


HANDLER = Awaited(MESSAGES, handle, access=(DESCRIBE, DESCRIBE_TOPIC))
