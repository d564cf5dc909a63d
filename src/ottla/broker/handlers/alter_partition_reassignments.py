"""AlterPartitionReassignments (key 45), versions 0 to 1.

What it does
  Starts the move of partitions to other brokers, replaces a running move, or cancels it (no replicas). Each partition
  has its own outcome. The answer comes when the move has begun; ListPartitionReassignments shows its end.

What it does not do
  Move replicas between the log directories of one broker: AlterReplicaLogDirs does that.

Versions
  v0   the first, flexible (KIP-455)
  v1   whether the number of replicas may change (KIP-860)
"""

from __future__ import annotations

from ottla.broker.handler_parts.admin_requests import error_fields, with_timeout
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.controller.reassignments import RequestedReassignment
from ottla.core.errors import KafkaError, NoReassignmentInProgress
from ottla.core.ids import TopicPartition
from ottla.wire.messages.alter_partition_reassignments import (
    MESSAGES,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


async def handle(request: Request, body: AlterPartitionReassignmentsRequest) -> AlterPartitionReassignmentsResponse:
    """Begin or cancel reassignments; return the outcome of each partition."""
    each = request.services.slices.each
    allows = request.api_version < 1 or body.allow_replication_factor_change
    if not body.topics:
        return AlterPartitionReassignmentsResponse()
    wanted = [
        RequestedReassignment(TopicPartition(topic.name, partition.partition_index), partition.replicas)
        async for topic in each(body.topics)
        async for partition in each(topic.partitions)
    ]
    work = request.services.controller.reassign(wanted, allow_factor_change=allows)
    try:
        outcomes = iter(await with_timeout(body.timeout_ms, work))
    except KafkaError as error:
        code, message = error_fields(error)
        return AlterPartitionReassignmentsResponse(error_code=code, error_message=message)
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=allows,
        error_message=None,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    _result(partition.partition_index, next(outcomes)) async for partition in each(topic.partitions)
                ],
            )
            async for topic in each(body.topics)
        ],
    )


def _result(index: int, error: KafkaError | None) -> ReassignablePartitionResponse:
    code, message = error_fields(error)
    if isinstance(error, NoReassignmentInProgress):
        message = None  # as in Kafka
    return ReassignablePartitionResponse(partition_index=index, error_code=code, error_message=message)


HANDLER = Awaited(MESSAGES, handle)
