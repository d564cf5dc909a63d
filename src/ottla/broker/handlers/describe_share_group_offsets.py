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

from ottla.broker.coordinators import naming_work
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.errors import KafkaError
from ottla.core.ids import NO_TOPIC_ID, TopicPartition
from ottla.groups.share.events import StateSummary
from ottla.groups.share_group_coordinator import UNINITIALIZED_OFFSET
from ottla.wire.messages.describe_share_group_offsets import (
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

PARTITIONS_AT_ONCE = 100
UNKNOWN_LAG = -1


async def handle(request: Request, body: DescribeShareGroupOffsetsRequest) -> DescribeShareGroupOffsetsResponse:
    """Describe each group separately."""
    response = DescribeShareGroupOffsetsResponse()
    async for group in request.services.slices.each(body.groups, WORK):
        described = DescribeShareGroupOffsetsResponseGroup(group_id=group.group_id)
        try:
            described.topics = await _topics(request, group)
        except KafkaError as error:
            described.error_code, described.error_message = error.code, error.message
        response.groups.append(described)
    return response


async def _topics(
    request: Request, group: DescribeShareGroupOffsetsRequestGroup
) -> list[DescribeShareGroupOffsetsResponseTopic]:
    view, groups = request.services.cluster.current, request.services.coordinators.share_groups
    asked = group.topics
    if asked is None:
        wanted: dict[str, list[int]] = {}
        for topic_id, index in await groups.offsets(group.group_id, None):
            topic = view.topic_by_id.get(topic_id.bytes)
            if topic is not None:
                wanted.setdefault(topic.name, []).append(index)
        asked = [
            DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=all_) for name, all_ in wanted.items()
        ]
    topics = []
    async for one in request.services.slices.each(asked, WORK):
        found = view.topics.get(one.topic_name)
        topic_id = NO_TOPIC_ID if found is None else found.topic_id
        partitions: list[DescribeShareGroupOffsetsResponsePartition] = []
        firsts = range(0, len(one.partitions), PARTITIONS_AT_ONCE)
        async for first in request.services.slices.each(
            firsts, WORK * PARTITIONS_AT_ONCE + naming_work(group.group_id)
        ):
            indexes = one.partitions[first : first + PARTITIONS_AT_ONCE]
            places = await groups.offsets(group.group_id, [(topic_id, index) for index in indexes])
            used = [
                TopicPartition(one.topic_name, index)
                for index in indexes
                if _has_known_records(places[topic_id, index])
            ]
            ends = await request.services.coordinators.high_watermarks.read(used)
            partitions += [
                _partition(index, places[topic_id, index], ends.get(TopicPartition(one.topic_name, index)))
                for index in indexes
            ]
        topics.append(
            DescribeShareGroupOffsetsResponseTopic(topic_name=one.topic_name, topic_id=topic_id, partitions=partitions)
        )
    return topics


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


HANDLER = Awaited(MESSAGES, handle)
