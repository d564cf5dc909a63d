"""InitializeShareGroupState (key 83), version 0.

What it does
  Begins or resets the state of share partitions, for the group coordinator (KIP-932). Each share partition has its own
  share coordinator: the leader of its partition of `__share_group_state`.

What it does not do
  There is no authorization: any client may send it.

Versions
  v0   the first, flexible (KIP-932)
"""

from __future__ import annotations

from ottla.broker.context import RequestContext
from ottla.core.errors import KafkaError
from ottla.share.state_records import SharePartitionKey
from ottla.wire.messages.initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    InitializeStateResult,
    PartitionResult,
)

WORK = 3
"""Units of work of one partition."""


async def handle(ctx: RequestContext, request: InitializeShareGroupStateRequest) -> InitializeShareGroupStateResponse:
    """Initialize each share partition separately."""
    response = InitializeShareGroupStateResponse()
    async for topic in ctx.services.slices.each(request.topics):
        results = InitializeStateResult(topic_id=topic.topic_id)
        async for asked in ctx.services.slices.each(topic.partitions, WORK):
            key = SharePartitionKey(request.group_id, topic.topic_id, asked.partition)
            result = PartitionResult(partition=asked.partition)
            try:
                found = await ctx.services.coordinators.share_states.initialize(
                    key, asked.state_epoch, asked.start_offset
                )
                result.error_code, result.error_message = found.error, found.message or None
            except KafkaError as error:
                result.error_code, result.error_message = error.code, error.message
            results.partitions.append(result)
        response.results.append(results)
    return response
