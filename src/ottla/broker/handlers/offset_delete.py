"""OffsetDelete (key 47), version 0.

What it does
  Deletes a group's committed offsets in given partitions. While the group has members only those of topics that none
  of them subscribes to (KIP-496).

What it does not do
  Nothing is left out.

Versions
  v0   the only one
"""

from __future__ import annotations

from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.errors import ErrorCode, KafkaError
from ottla.core.ids import TopicPartition
from ottla.wire.messages.offset_delete import (
    MESSAGES,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


async def handle(request: Request, body: OffsetDeleteRequest) -> OffsetDeleteResponse:
    """Delete offsets; all that may be deleted goes into one write."""
    if not body.group_id:
        return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    view = request.services.cluster.current
    each_of = request.services.slices.each
    known = [
        TopicPartition(topic.name, each.partition_index)
        async for topic in each_of(body.topics)
        async for each in each_of(topic.partitions)
        if view.partition(topic.name, each.partition_index) is not None
    ]
    try:
        outcomes = await request.services.coordinators.groups.delete_offsets(body.group_id, known)
    except KafkaError as error:
        return OffsetDeleteResponse(error_code=error.code)
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=each.partition_index,
                        error_code=outcomes.get(
                            TopicPartition(topic.name, each.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                        ),
                    )
                    async for each in each_of(topic.partitions)
                ],
            )
            async for topic in each_of(body.topics)
        ]
    )


HANDLER = Awaited(MESSAGES, handle)
