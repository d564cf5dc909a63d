"""WriteShareGroupState (key 85), versions 0 to 1.

What it does
  Changes the state of share partitions for the leaders of their partitions (KIP-932). Answers when that is durable. A
  write of an earlier leader or of an earlier state epoch is fenced.

What it does not do
  Nothing is left out.

Versions
  v1   the number of offsets that are done, from which the lag follows (KIP-1226)
"""

from __future__ import annotations

from ottla.broker.handler_parts.share_state_requests import answer_each, refuse_each
from ottla.broker.requests.authorization import on_cluster
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation
from ottla.core.errors import ErrorCode
from ottla.share_coordinator.machine import StateWrite
from ottla.share_coordinator.records import SharePartitionKey
from ottla.share_coordinator.states import RecordState, StateBatch
from ottla.wire.generated.write_share_group_state import (
    MESSAGES,
    PartitionData,
    PartitionResult,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
    WriteStateResult,
)


async def handle(request: Request, body: WriteShareGroupStateRequest) -> WriteShareGroupStateResponse:
    """Change each share partition's state separately."""

    async def write(key: SharePartitionKey, asked: PartitionData) -> PartitionResult:
        try:
            batches = [
                StateBatch(
                    batch.first_offset, batch.last_offset, RecordState(batch.delivery_state), batch.delivery_count
                )
                for batch in asked.state_batches
            ]
        except ValueError:
            message = "A delivery state is unknown."
            return PartitionResult(partition=key.partition, error_code=ErrorCode.INVALID_REQUEST, error_message=message)
        change = StateWrite(
            asked.state_epoch, asked.leader_epoch, asked.start_offset, asked.delivery_complete_count, tuple(batches)
        )
        found = await request.services.coordinators.share_states.write(key, change)
        return PartitionResult(partition=key.partition, error_code=found.error, error_message=found.message or None)

    results = await answer_each(request, body, WriteStateResult, PartitionResult, write)
    return WriteShareGroupStateResponse(results=results)


HANDLER = Awaited(
    MESSAGES,
    handle,
    access=(on_cluster(AclOperation.CLUSTER_ACTION),),
    refuse=refuse_each(WriteShareGroupStateResponse, WriteStateResult, PartitionResult),
)
