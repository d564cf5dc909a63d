"""WriteShareGroupState (key 85), versions 0 to 1.

What it does
  Changes the state of share partitions for the leaders of their partitions (KIP-932). Answers when that is durable. A
  write of an earlier leader or of an earlier state epoch is fenced.

What it does not do
  There is no authorization: any client may send it.

Versions
  v1   the number of offsets that are done, from which the lag follows (KIP-1226)
"""

from __future__ import annotations

from ottla.broker.context import RequestContext
from ottla.core.errors import ErrorCode, KafkaError
from ottla.share.state_machine import StateWrite
from ottla.share.state_records import SharePartitionKey
from ottla.share.states import RecordState, StateBatch
from ottla.wire.messages import write_share_group_state as messages
from ottla.wire.messages.write_share_group_state import (
    PartitionResult,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
    WriteStateResult,
)

WORK = 3
"""Units of work of one partition."""


async def handle(ctx: RequestContext, request: WriteShareGroupStateRequest) -> WriteShareGroupStateResponse:
    """Change each share partition's state separately."""
    response = WriteShareGroupStateResponse()
    async for topic in ctx.services.slices.each(request.topics):
        results = WriteStateResult(topic_id=topic.topic_id)
        async for asked in ctx.services.slices.each(topic.partitions, WORK):
            key = SharePartitionKey(request.group_id, topic.topic_id, asked.partition)
            results.partitions.append(await _write(ctx, key, asked))
        response.results.append(results)
    return response


async def _write(ctx: RequestContext, key: SharePartitionKey, asked: messages.PartitionData) -> PartitionResult:
    try:
        batches = [
            StateBatch(batch.first_offset, batch.last_offset, RecordState(batch.delivery_state), batch.delivery_count)
            for batch in asked.state_batches
        ]
    except ValueError:
        message = "A delivery state is unknown."
        return PartitionResult(partition=key.partition, error_code=ErrorCode.INVALID_REQUEST, error_message=message)
    write = StateWrite(
        asked.state_epoch, asked.leader_epoch, asked.start_offset, asked.delivery_complete_count, tuple(batches)
    )
    try:
        found = await ctx.services.coordinators.share_states.write(key, write)
    except KafkaError as error:
        return PartitionResult(partition=key.partition, error_code=error.code, error_message=error.message)
    return PartitionResult(partition=key.partition, error_code=found.error, error_message=found.message or None)
