"""ReadShareGroupStateSummary (key 87), versions 0 to 1.

What it does
  Reads the start offset and the epochs of share partitions, without the states of records, for the group coordinator
  (KIP-932). A share partition without state has start offset -1.

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
from ottla.share_coordinator.records import SharePartitionKey
from ottla.wire.generated.read_share_group_state_summary import (
    MESSAGES,
    PartitionResult,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    ReadStateSummaryResult,
)


async def handle(request: Request, body: ReadShareGroupStateSummaryRequest) -> ReadShareGroupStateSummaryResponse:
    """Read each share partition's state separately."""

    async def read(key: SharePartitionKey, _: object) -> PartitionResult:
        found = request.services.coordinators.share_states.summary(key)
        if found.error is not ErrorCode.NONE or found.state is None:
            return PartitionResult(partition=key.partition, error_code=found.error, error_message=found.message)
        return PartitionResult(
            partition=key.partition,
            state_epoch=found.state.state_epoch,
            leader_epoch=found.state.leader_epoch,
            start_offset=found.state.start_offset,
            delivery_complete_count=found.state.delivery_complete_count,
        )

    results = await answer_each(request, body, ReadStateSummaryResult, PartitionResult, read)
    return ReadShareGroupStateSummaryResponse(results=results)


HANDLER = Awaited(
    MESSAGES,
    handle,
    access=(on_cluster(AclOperation.CLUSTER_ACTION),),
    refuse=refuse_each(ReadShareGroupStateSummaryResponse, ReadStateSummaryResult, PartitionResult),
)
