"""DescribeShareGroupOffsets (key 90), versions 0 to 1.

What it does
  Returns where share groups are in their partitions (KIP-932): the start offset, before which everything is done, and
  the lag, with the high watermark that the partition's leader has. A share partition that was never used has -1 for
  both; a lag is -1, too, while the leader does not answer.

What it does not do
  The records that are done after the start offset count for the lag only once that is persisted.

Versions
  v1   lag (KIP-1226)
"""

from __future__ import annotations

from functools import partial

from ottla.broker.coordinators import naming_work
from ottla.broker.requests.authorization import Access
from ottla.broker.requests.elements import Each, collect, collect_awaited
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation, ResourceType
from ottla.core.errors import KafkaError
from ottla.core.ids import NO_TOPIC_ID, TopicPartition
from ottla.groups.share.events import StateSummary
from ottla.groups.share_group_coordinator import UNINITIALIZED_OFFSET
from ottla.metadata_store.cluster_view import ClusterView
from ottla.wire.generated.describe_share_group_offsets import (
    MESSAGES,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)

WORK = 3
"""Units of work of one group, topic or partition."""

DESCRIBE = Access(AclOperation.DESCRIBE, ResourceType.GROUP, "each group")
DESCRIBE_TOPIC = Access(
    AclOperation.DESCRIBE,
    ResourceType.TOPIC,
    "each topic",
    refusal="`TOPIC_AUTHORIZATION_FAILED`; left out where none are named",
)

PARTITIONS_AT_ONCE = 100
UNKNOWN_LAG = -1


async def handle(request: Request, body: DescribeShareGroupOffsetsRequest) -> DescribeShareGroupOffsetsResponse:
    """Describe each group separately."""
    return DescribeShareGroupOffsetsResponse(groups=await collect_awaited(request, body.groups, _group, work=WORK))


async def _group(
    request: Request, group: DescribeShareGroupOffsetsRequestGroup, view: ClusterView
) -> DescribeShareGroupOffsetsResponseGroup:
    described = DescribeShareGroupOffsetsResponseGroup(group_id=group.group_id)
    try:
        if DESCRIBE.denies(request, group.group_id):
            raise DESCRIBE.error
        topics = group.topics
        if topics is None:
            topics = await _all_topics(request, group.group_id, view)
        described.topics = await collect_awaited(request, topics, partial(_topic, group.group_id), view, work=WORK)
    except KafkaError as error:
        described.error_code, described.error_message = error.code, error.message
    return described


async def _all_topics(
    request: Request, group_id: str, view: ClusterView
) -> list[DescribeShareGroupOffsetsRequestTopic]:
    """Return all partitions of the group whose topics exist."""
    indexes: dict[str, list[int]] = {}
    for topic_id, index in await request.services.coordinators.share_groups.offsets(group_id, None):
        topic = view.topic_by_id.get(topic_id.bytes)
        if topic is not None and not DESCRIBE_TOPIC.denies(request, topic.name, log_if_denied=False):
            indexes.setdefault(topic.name, []).append(index)
    return [
        DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=partitions)
        for name, partitions in indexes.items()
    ]


async def _topic(
    group_id: str, request: Request, asked: DescribeShareGroupOffsetsRequestTopic, view: ClusterView
) -> DescribeShareGroupOffsetsResponseTopic:
    if DESCRIBE_TOPIC.denies(request, asked.topic_name):
        return await _denied_topic(request, asked, view)
    topic = view.topics.get(asked.topic_name)
    described = DescribeShareGroupOffsetsResponseTopic(
        topic_name=asked.topic_name, topic_id=NO_TOPIC_ID if topic is None else topic.topic_id
    )
    firsts = range(0, len(asked.partitions), PARTITIONS_AT_ONCE)
    work = WORK * PARTITIONS_AT_ONCE + naming_work(group_id)
    await collect_awaited(request, firsts, partial(_partitions, group_id, asked, described), view, work=work)
    return described


async def _denied_topic(
    request: Request, asked: DescribeShareGroupOffsetsRequestTopic, view: ClusterView
) -> DescribeShareGroupOffsetsResponseTopic:
    described = DescribeShareGroupOffsetsResponseTopic(topic_name=asked.topic_name)
    await collect(request, Each(asked.partitions, _denied_partition, into=described.partitions), view)
    return described


def _denied_partition(_request: Request, index: int, _view: ClusterView) -> DescribeShareGroupOffsetsResponsePartition:
    return _partition(index, DESCRIBE_TOPIC.error, None)


async def _partitions(
    group_id: str,
    asked: DescribeShareGroupOffsetsRequestTopic,
    described: DescribeShareGroupOffsetsResponseTopic,
    request: Request,
    first: int,
    _view: ClusterView,
) -> None:
    """Describe some of a topic's partitions, which wait together for the leaders of their partitions."""
    coordinators, topic_id = request.services.coordinators, described.topic_id
    indexes = asked.partitions[first : first + PARTITIONS_AT_ONCE]
    places = await coordinators.share_groups.offsets(group_id, [(topic_id, index) for index in indexes])
    used = [TopicPartition(asked.topic_name, index) for index in indexes if _has_known_records(places[topic_id, index])]
    ends = await coordinators.high_watermarks.read(used)
    described.partitions += [
        _partition(index, places[topic_id, index], ends.get(TopicPartition(asked.topic_name, index)))
        for index in indexes
    ]


def _has_known_records(place: StateSummary | KafkaError) -> bool:
    return not isinstance(place, KafkaError) and place.start_offset >= 0 and place.delivery_complete_count >= 0


def _partition(
    index: int, place: StateSummary | KafkaError, end: int | None
) -> DescribeShareGroupOffsetsResponsePartition:
    if isinstance(place, KafkaError):
        return DescribeShareGroupOffsetsResponsePartition(
            partition_index=index, start_offset=UNINITIALIZED_OFFSET, error_code=place.code, error_message=place.message
        )
    return DescribeShareGroupOffsetsResponsePartition(
        partition_index=index,
        start_offset=place.start_offset,
        leader_epoch=place.leader_epoch,
        lag=UNKNOWN_LAG if end is None else max(0, end - place.start_offset - place.delivery_complete_count),
    )


HANDLER = Awaited(MESSAGES, handle, access=(DESCRIBE, DESCRIBE_TOPIC))
