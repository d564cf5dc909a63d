"""DeleteShareGroupState (key 86), version 0.

What it does
  Deletes the state of share partitions, for the group coordinator (KIP-932). It succeeds where there is no state.

What it does not do
  There is no authorization: any client may send it.

Versions
  v0   the first, flexible (KIP-932)
"""

from __future__ import annotations

from ottla.broker.context import RequestContext
from ottla.core.errors import KafkaError
from ottla.share.state_records import SharePartitionKey
from ottla.wire.messages.delete_share_group_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    DeleteStateResult,
    PartitionResult,
)

WORK = 3
"""Units of work of one partition."""


async def handle(ctx: RequestContext, request: DeleteShareGroupStateRequest) -> DeleteShareGroupStateResponse:
    """Delete each share partition's state separately."""
    response = DeleteShareGroupStateResponse()
    async for topic in ctx.services.slices.each(request.topics):
        results = DeleteStateResult(topic_id=topic.topic_id)
        async for asked in ctx.services.slices.each(topic.partitions, WORK):
            key = SharePartitionKey(request.group_id, topic.topic_id, asked.partition)
            result = PartitionResult(partition=asked.partition)
            try:
                found = await ctx.services.coordinators.share_states.delete(key)
                result.error_code, result.error_message = found.error, found.message or None
            except KafkaError as error:
                result.error_code, result.error_message = error.code, error.message
            results.partitions.append(result)
        response.results.append(results)
    return response
