"""SyncGroup (key 14), versions 0 to 5.

What it does
  Receives the assignment from the group's leader and returns to each member its own, once it is durable. Members that
  the leader left out get an empty one.

What it does not do
  Nothing is left out.

Versions
  v3   static members (KIP-345)
  v4   flexible encoding
  v5   protocol type and name, which must be those of the group (KIP-559)
"""

from __future__ import annotations

from functools import partial

from ottla.broker.requests.authorization import Access
from ottla.broker.requests.elements import Each, collect
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation, ResourceType
from ottla.core.errors import ErrorCode, KafkaError
from ottla.groups.classic.events import Sync, SyncAnswer
from ottla.metadata_store.cluster_view import ClusterView
from ottla.wire.generated.sync_group import MESSAGES, SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse

PROTOCOL_REQUIRED_SINCE = 5
READ = Access(AclOperation.READ, ResourceType.GROUP, "the group")


async def handle(request: Request, body: SyncGroupRequest) -> SyncGroupResponse:
    """Return the member's assignment; waits for the leader."""
    says_protocol = body.protocol_type is not None and body.protocol_name is not None
    if request.api_version >= PROTOCOL_REQUIRED_SINCE and not says_protocol:
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if READ.denies(request, body.group_id):
        return SyncGroupResponse(error_code=READ.error.code)
    assignments: dict[str, bytes] = {}
    await collect(request, Each(body.assignments, partial(_assign, assignments)))
    sync = Sync(
        member_id=body.member_id,
        generation=body.generation_id,
        assignments=assignments,
        instance_id=body.group_instance_id,
        protocol_type=body.protocol_type,
        protocol_name=body.protocol_name,
    )
    try:
        answer = await request.services.coordinators.groups.sync(body.group_id, sync)
    except KafkaError as error:
        answer = SyncAnswer(error=error.code)
    return SyncGroupResponse(
        error_code=answer.error,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name,
        assignment=answer.assignment,
    )


def _assign(
    assignments: dict[str, bytes], _request: Request, given: SyncGroupRequestAssignment, _view: ClusterView
) -> None:
    assignments[given.member_id] = given.assignment


HANDLER = Awaited(MESSAGES, handle, access=(READ,))
