"""ReadShareGroupState (key 84), version 0.

What it does
  Reads the state of share partitions for the leaders of their partitions (KIP-932). A newer leader epoch is persisted:
  it fences the writes of earlier leaders.

What it does not do
  Nothing is left out.

Versions
  v0   the first, flexible (KIP-932)
"""

from __future__ import annotations

from ottla.broker.handler_parts.share_state_requests import answer_each, refuse_each
from ottla.broker.requests.authorization import on_cluster
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation
from ottla.core.errors import ErrorCode
from ottla.share_coordinator.records import SharePartitionKey
from ottla.wire.generated.read_share_group_state import (
    MESSAGES,
    PartitionData,
    PartitionResult,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadStateResult,
    StateBatch,
)


async def handle(request: Request, body: ReadShareGroupStateRequest) -> ReadShareGroupStateResponse:
    """Read each share partition's state separately."""

    async def read(key: SharePartitionKey, asked: PartitionData) -> PartitionResult:
        found = await request.services.coordinators.share_states.read(key, asked.leader_epoch)
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

    results = await answer_each(request, body, ReadStateResult, PartitionResult, read)
    return ReadShareGroupStateResponse(results=results)


HANDLER = Awaited(
    MESSAGES,
    handle,
    access=(on_cluster(AclOperation.CLUSTER_ACTION),),
    refuse=refuse_each(ReadShareGroupStateResponse, ReadStateResult, PartitionResult),
)
