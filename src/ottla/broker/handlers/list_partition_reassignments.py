"""ListPartitionReassignments (key 46), version 0.

What it does
  Answers an empty list: no partition is being moved. As in Kafka, topics and partitions that do not exist are left out.

What it does not do
  Reassignments are not served yet.

Versions
  v0   the first, flexible (KIP-455)
"""

from __future__ import annotations

from ottla.broker.context import RequestContext
from ottla.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


def handle(
    ctx: RequestContext,  # noqa: ARG001
    request: ListPartitionReassignmentsRequest,  # noqa: ARG001
) -> ListPartitionReassignmentsResponse:
    """No reassignments."""
    return ListPartitionReassignmentsResponse(error_message=None)
