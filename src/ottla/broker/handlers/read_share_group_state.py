"""ReadShareGroupState (key 84), version 0.

What it does
  Reads the state of share partitions for the leaders of their partitions (KIP-932). A newer leader epoch is persisted:
  it fences the writes of earlier leaders.

What it does not do
  There is no authorization: any client may send it.

Versions
  v0   the first, flexible (KIP-932)
"""

from __future__ import annotations

from ottla.broker.context import RequestContext
from ottla.core.errors import ErrorCode, KafkaError
from ottla.share.state_records import SharePartitionKey
from ottla.wire.messages.read_share_group_state import (
    PartitionResult,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadStateResult,
    StateBatch,
)

WORK = 3
"""Units of work of one partition."""


async def handle(ctx: RequestContext, request: ReadShareGroupStateRequest) -> ReadShareGroupStateResponse:
    """Read each share partition's state separately."""
    response = ReadShareGroupStateResponse()
    async for topic in ctx.services.slices.each(request.topics):
        results = ReadStateResult(topic_id=topic.topic_id)
        async for asked in ctx.services.slices.each(topic.partitions, WORK):
            key = SharePartitionKey(request.group_id, topic.topic_id, asked.partition)
            results.partitions.append(await _read(ctx, key, asked.leader_epoch))
        response.results.append(results)
    return response


async def _read(ctx: RequestContext, key: SharePartitionKey, leader_epoch: int) -> PartitionResult:
    try:
        found = await ctx.services.coordinators.share_states.read(key, leader_epoch)
    except KafkaError as error:
        return PartitionResult(partition=key.partition, error_code=error.code, error_message=error.message)
    if found.error is not ErrorCode.NONE or found.state is None:
        return PartitionResult(partition=key.partition, error_code=found.error, error_message=found.message)
    return PartitionResult(
        partition=key.partition,
        state_epoch=found.state.state_epoch,
        start_offset=found.state.start_offset,
        state_batches=[
            StateBatch(
                first_offset=batch.first,
                last_offset=batch.last,
                delivery_state=batch.state,
                delivery_count=batch.delivery_count,
            )
            for batch in found.state.batches
        ],
    )
