"""DeleteShareGroupState (key 86), version 0.

What it does
  Deletes the state of share partitions, for the group coordinator (KIP-932). It succeeds where there is no state.

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
from ottla.wire.generated.delete_share_group_state import (
    MESSAGES,
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    DeleteStateResult,
    PartitionResult,
)


async def handle(request: Request, body: DeleteShareGroupStateRequest) -> DeleteShareGroupStateResponse:
    """Delete each share partition's state separately."""

    async def delete(key: SharePartitionKey, _: object) -> PartitionResult:
        found = await request.services.coordinators.share_states.delete(key)
        return PartitionResult(partition=key.partition, error_code=found.error, error_message=found.message or None)

    results = await answer_each(request, body, DeleteStateResult, PartitionResult, delete)
    return DeleteShareGroupStateResponse(results=results)


HANDLER = Awaited(
    MESSAGES,
    handle,
    access=(on_cluster(AclOperation.CLUSTER_ACTION),),
    refuse=refuse_each(DeleteShareGroupStateResponse, DeleteStateResult, PartitionResult),
)
