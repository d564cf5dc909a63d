"""ListPartitionReassignments (key 46), version 0.

What it does
  Answers the partitions that are being moved, with their replicas, those to add and those to remove. As in Kafka,
  topics and partitions that do not exist, or are not moved, are left out.

What it does not do
  Show how far a move has got: DescribeLogDirs has the sizes of the replicas.

Versions
  v0   the first, flexible (KIP-455)
"""

from __future__ import annotations

from ottla.broker.handler_parts.admin_requests import error_fields
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.errors import KafkaError
from ottla.core.ids import TopicPartition
from ottla.wire.messages.list_partition_reassignments import (
    MESSAGES,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


async def handle(request: Request, body: ListPartitionReassignmentsRequest) -> ListPartitionReassignmentsResponse:
    """Return the reassignments that are running."""
    each = request.services.slices.each
    asked = None
    if body.topics is not None:
        asked = [
            TopicPartition(topic.name, index) async for topic in each(body.topics) for index in topic.partition_indexes
        ]
    try:
        running = request.services.controller.list_reassignments(asked)
    except KafkaError as error:
        code, message = error_fields(error)
        return ListPartitionReassignmentsResponse(error_code=code, error_message=message)
    topics: dict[str, list[OngoingPartitionReassignment]] = {}
    async for found in each(running):
        topics.setdefault(found.partition.topic, []).append(
            OngoingPartitionReassignment(
                partition_index=found.partition.partition,
                replicas=list(found.replicas),
                adding_replicas=list(found.adding),
                removing_replicas=list(found.removing),
            )
        )
    return ListPartitionReassignmentsResponse(
        error_message=None,
        topics=[OngoingTopicReassignment(name=name, partitions=partitions) for name, partitions in topics.items()],
    )


HANDLER = Awaited(MESSAGES, handle)
