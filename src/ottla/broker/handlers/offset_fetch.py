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
from typing import NamedTuple

from ottla.broker.coordinators import naming_work
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.errors import ErrorCode, KafkaError
from ottla.core.ids import NO_TOPIC_ID, TopicPartition
from ottla.groups.offsets import CommittedOffset, GroupOffsets
from ottla.wire.messages.offset_fetch import (
    MESSAGES,
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

WORK = 3
"""Units of work of one group."""


class _Wanted(NamedTuple):
    """One topic of the request, with its resolved name."""

    asked: OffsetFetchRequestTopics
    name: str | None  # None: there is no topic of this id


async def handle(request: Request, body: OffsetFetchRequest) -> OffsetFetchResponse:
    """Fetch each group separately."""
    each = request.services.slices.each
    if request.api_version >= MANY_GROUPS_SINCE:
        groups = [
            await _group(request, asked, require_stable=body.require_stable) async for asked in each(body.groups, WORK)
        ]
        return OffsetFetchResponse(groups=groups)
    topics = None
    if body.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            async for topic in each(body.topics)
        ]
    asked_group = OffsetFetchRequestGroup(group_id=body.group_id, topics=topics)
    one = await _group(request, asked_group, require_stable=body.require_stable)
    if one.error_code and request.api_version < GROUP_ERROR_SINCE:
        one.topics = [await _all_failed(request, asked, one.error_code) async for asked in each(topics or [])]
    return OffsetFetchResponse(
        error_code=one.error_code, topics=[await _in_older_versions(request, topic) async for topic in each(one.topics)]
    )


async def _group(request: Request, asked: OffsetFetchRequestGroup, *, require_stable: bool) -> OffsetFetchResponseGroup:
    slices = request.services.slices
    slices.spend(naming_work(asked.group_id))
    try:
        if require_stable:
            await request.services.coordinators.groups.wait_until_written(asked.group_id)
        offsets = request.services.coordinators.groups.fetch(
            asked.group_id, member_id=asked.member_id, member_epoch=asked.member_epoch
        )
    except KafkaError as error:
        return OffsetFetchResponseGroup(group_id=asked.group_id, error_code=error.code)
    if asked.topics is None:
        wanted = await _all(request, offsets)
    else:
        wanted = [_Wanted(topic, _name(request, topic)) async for topic in slices.each(asked.topics)]
    unstable = offsets.in_transactions() if require_stable else frozenset()
    topics = [await _topic(request, each, offsets, unstable) async for each in slices.each(wanted)]
    return OffsetFetchResponseGroup(group_id=asked.group_id, topics=topics)


def _is_current(request: Request, name: str, committed: CommittedOffset) -> bool:
    """Return whether an offset was not committed into an older topic of the same name."""
    topic = request.services.cluster.current.topics.get(name)
    return topic is None or committed.topic_id in {NO_TOPIC_ID, topic.topic_id}


def _name(request: Request, asked: OffsetFetchRequestTopics) -> str | None:
    if request.api_version < TOPIC_IDS_SINCE:
        return asked.name
    topic = request.services.cluster.current.topic_by_id.get(asked.topic_id.bytes)
    return topic.name if topic is not None else None


async def _all(request: Request, offsets: GroupOffsets) -> list[_Wanted]:
    """Return everything the group committed; where the answer has only ids, a topic without one is left out."""
    topics: dict[str, list[int]] = {}
    async for where, committed in request.services.slices.each(list(offsets.items())):
        if _is_current(request, where.topic, committed):
            topics.setdefault(where.topic, []).append(where.partition)
    wanted = []
    for name, indexes in topics.items():
        topic = request.services.cluster.current.topics.get(name)
        if topic is not None or request.api_version < TOPIC_IDS_SINCE:
            topic_id = topic.topic_id if topic is not None else NO_TOPIC_ID
            asked = OffsetFetchRequestTopics(topic_id=topic_id, name=name, partition_indexes=indexes)
            wanted.append(_Wanted(asked, name))
    return wanted


async def _topic(
    request: Request, wanted: _Wanted, offsets: GroupOffsets, unstable: Collection[TopicPartition]
) -> OffsetFetchResponseTopics:
    asked, name = wanted
    if name is None:
        return await _all_failed(request, asked, ErrorCode.UNKNOWN_TOPIC_ID)
    partitions = []
    async for index in request.services.slices.each(asked.partition_indexes):
        where = TopicPartition(name, index)
        if where in unstable:
            partitions.append(_partition(index, NOTHING, ErrorCode.UNSTABLE_OFFSET_COMMIT))
            continue
        found = offsets.get(where)
        is_shown = found is not None and _is_current(request, name, found)
        partitions.append(_partition(index, found if found is not None and is_shown else NOTHING))
    return OffsetFetchResponseTopics(topic_id=asked.topic_id, name=asked.name, partitions=partitions)


def _partition(index: int, found: CommittedOffset, error: int = 0) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=found.offset,
        committed_leader_epoch=found.leader_epoch,
        metadata=found.metadata,
        error_code=error,
    )


async def _all_failed(request: Request, asked: OffsetFetchRequestTopics, error: int) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        topic_id=asked.topic_id,
        name=asked.name,
        partitions=[
            _partition(index, NOTHING, error) async for index in request.services.slices.each(asked.partition_indexes)
        ],
    )


async def _in_older_versions(request: Request, topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopic:
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
            async for each in request.services.slices.each(topic.partitions)
        ],
    )


HANDLER = Awaited(MESSAGES, handle)
