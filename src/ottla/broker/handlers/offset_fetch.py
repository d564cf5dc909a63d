"""OffsetFetch (key 9), versions 1 to 10.

What it does
  Says how far a group has read, partition by partition: -1 where nothing was committed, and everywhere for a group that
  is not known. A null list of topics (v2 and newer) asks for all. From v8 many groups at once.

What it does not do
  UNSTABLE_OFFSET_COMMIT: offsets are not committed in transactions yet, so each is stable as soon as it is durable.

Versions
  v2   all topics; an error for the whole request
  v5   leader epoch (KIP-320)
  v6   flexible encoding
  v7   require_stable (KIP-447)
  v8   many groups (KIP-709)
  v9   member id and epoch of KIP-848, which classic groups do not check
  v10  topic ids instead of names
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ottla.broker.context import RequestContext
from ottla.core.errors import ErrorCode, KafkaError
from ottla.core.ids import NO_TOPIC_ID, TopicPartition
from ottla.groups.offsets import CommittedOffset
from ottla.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
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

Offsets = Mapping[TopicPartition, CommittedOffset]


class _Wanted(NamedTuple):
    """One topic of the question, its name found."""

    asked: OffsetFetchRequestTopics
    name: str | None  # None: there is no topic of this id


def handle(ctx: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    """Each group by itself."""
    if ctx.api_version >= MANY_GROUPS_SINCE:
        return OffsetFetchResponse(groups=[_group(ctx, asked) for asked in request.groups])
    topics = None
    if request.topics is not None:
        topics = [OffsetFetchRequestTopics(name=t.name, partition_indexes=t.partition_indexes) for t in request.topics]
    one = _group(ctx, OffsetFetchRequestGroup(group_id=request.group_id, topics=topics))
    if one.error_code and ctx.api_version < GROUP_ERROR_SINCE:
        one.topics = [_all_failed(asked, one.error_code) for asked in topics or []]
    return OffsetFetchResponse(
        error_code=one.error_code, topics=[_as_older_versions_say(topic) for topic in one.topics]
    )


def _group(ctx: RequestContext, asked: OffsetFetchRequestGroup) -> OffsetFetchResponseGroup:
    try:
        offsets = _of_living_topics(ctx, ctx.services.groups.fetch(asked.group_id))
    except KafkaError as error:
        return OffsetFetchResponseGroup(group_id=asked.group_id, error_code=error.code)
    wanted = _all(ctx, offsets) if asked.topics is None else [_Wanted(each, _name(ctx, each)) for each in asked.topics]
    return OffsetFetchResponseGroup(group_id=asked.group_id, topics=[_topic(each, offsets) for each in wanted])


def _of_living_topics(ctx: RequestContext, offsets: Offsets) -> Offsets:
    """Without those that were committed into an older topic of the same name."""
    topics = ctx.services.cluster.current.topics

    def is_alive(name: str, committed: CommittedOffset) -> bool:
        topic = topics.get(name)
        return topic is None or committed.topic_id in {NO_TOPIC_ID, topic.topic_id}

    return {partition: found for partition, found in offsets.items() if is_alive(partition.topic, found)}


def _name(ctx: RequestContext, asked: OffsetFetchRequestTopics) -> str | None:
    if ctx.api_version < TOPIC_IDS_SINCE:
        return asked.name
    topic = ctx.services.cluster.current.topic_by_id.get(asked.topic_id.bytes)
    return topic.name if topic is not None else None


def _all(ctx: RequestContext, offsets: Offsets) -> Iterable[_Wanted]:
    """Everything the group committed; where the answer has only ids, what has none cannot be said."""
    topics: dict[str, list[int]] = {}
    for partition in offsets:
        topics.setdefault(partition.topic, []).append(partition.partition)
    for name, indexes in topics.items():
        topic = ctx.services.cluster.current.topics.get(name)
        if topic is not None or ctx.api_version < TOPIC_IDS_SINCE:
            topic_id = topic.topic_id if topic is not None else NO_TOPIC_ID
            yield _Wanted(OffsetFetchRequestTopics(topic_id=topic_id, name=name, partition_indexes=indexes), name)


def _topic(wanted: _Wanted, offsets: Offsets) -> OffsetFetchResponseTopics:
    asked, name = wanted
    if name is None:
        return _all_failed(asked, ErrorCode.UNKNOWN_TOPIC_ID)
    return OffsetFetchResponseTopics(
        topic_id=asked.topic_id,
        name=asked.name,
        partitions=[
            _partition(index, offsets.get(TopicPartition(name, index), NOTHING)) for index in asked.partition_indexes
        ],
    )


def _partition(index: int, found: CommittedOffset, error: int = 0) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=found.offset,
        committed_leader_epoch=found.leader_epoch,
        metadata=found.metadata,
        error_code=error,
    )


def _all_failed(asked: OffsetFetchRequestTopics, error: int) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        topic_id=asked.topic_id,
        name=asked.name,
        partitions=[_partition(index, NOTHING, error) for index in asked.partition_indexes],
    )


def _as_older_versions_say(topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopic:
    return OffsetFetchResponseTopic(
        name=topic.name,
        partitions=[
            OffsetFetchResponsePartition(
                partition_index=each.partition_index,
                committed_offset=each.committed_offset,
                committed_leader_epoch=each.committed_leader_epoch,
                metadata=each.metadata,
                error_code=each.error_code,
            )
            for each in topic.partitions
        ],
    )
