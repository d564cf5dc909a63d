"""InitializeShareGroupState (key 83), version 0.

What it does
  Begins or resets the state of share partitions, for the group coordinator (KIP-932). Each share partition has its own
  share coordinator: the leader of its partition of `__share_group_state`.

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
from ottla.share_coordinator.records import SharePartitionKey
from ottla.wire.generated.initialize_share_group_state import (
    MESSAGES,
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    InitializeStateResult,
    PartitionData,
    PartitionResult,
)


async def handle(request: Request, body: InitializeShareGroupStateRequest) -> InitializeShareGroupStateResponse:
    """Initialize each share partition separately."""

    async def initialize(key: SharePartitionKey, asked: PartitionData) -> PartitionResult:
        states = request.services.coordinators.share_states
        found = await states.initialize(key, asked.state_epoch, asked.start_offset)
        return PartitionResult(partition=key.partition, error_code=found.error, error_message=found.message or None)

    results = await answer_each(request, body, InitializeStateResult, PartitionResult, initialize)
    return InitializeShareGroupStateResponse(results=results)


HANDLER = Awaited(
    MESSAGES,
    handle,
    access=(on_cluster(AclOperation.CLUSTER_ACTION),),
    refuse=refuse_each(InitializeShareGroupStateResponse, InitializeStateResult, PartitionResult),
)
