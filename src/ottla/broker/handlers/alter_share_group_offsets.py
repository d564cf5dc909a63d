"""AlterShareGroupOffsets (key 91), version 0.

What it does
  Sets the start offsets of a share group without members (KIP-932): everything from there on is delivered, again if
  it was before. A group that was never used is created, unless none of its partitions exist.

What it does not do
  Offsets outside of the log are accepted, as in Kafka: the share partition begins at the log's start or end.

Versions
  v0   the first, flexible (KIP-932)
"""

from __future__ import annotations

from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.errors import ErrorCode, KafkaError
from ottla.core.ids import NO_TOPIC_ID
from ottla.groups.share_group_coordinator import TopicPartitionId
from ottla.wire.messages.alter_share_group_offsets import (
    MESSAGES,
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)

WORK = 3
"""Units of work of one partition."""


async def handle(request: Request, body: AlterShareGroupOffsetsRequest) -> AlterShareGroupOffsetsResponse:
    """Alter the share partitions that exist."""
    view = request.services.cluster.current
    offsets: dict[TopicPartitionId, int] = {}
    async for topic in request.services.slices.each(body.topics):
        known = view.topics.get(topic.topic_name)
        async for asked in request.services.slices.each(topic.partitions, WORK):
            if known is not None and 0 <= asked.partition_index < len(known.partitions):
                offsets[known.topic_id, asked.partition_index] = asked.start_offset
    try:
        results = await request.services.coordinators.share_groups.alter_offsets(body.group_id, offsets)
    except KafkaError as error:
        return AlterShareGroupOffsetsResponse(error_code=error.code, error_message=error.message)
    response = AlterShareGroupOffsetsResponse()
    async for topic in request.services.slices.each(body.topics):
        known = view.topics.get(topic.topic_name)
        topic_id = NO_TOPIC_ID if known is None else known.topic_id
        answered = AlterShareGroupOffsetsResponseTopic(topic_name=topic.topic_name, topic_id=topic_id)
        async for asked in request.services.slices.each(topic.partitions, WORK):
            one = AlterShareGroupOffsetsResponsePartition(partition_index=asked.partition_index)
            failed = results.get((topic_id, asked.partition_index))
            if (topic_id, asked.partition_index) not in results:
                one.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                one.error_message = "This server does not host this topic-partition."
            elif failed is not None:
                one.error_code, one.error_message = failed.code, failed.message
            answered.partitions.append(one)
        response.responses.append(answered)
    return response


HANDLER = Awaited(MESSAGES, handle)
