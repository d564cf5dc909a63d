"""JoinGroup (key 11), versions 0 to 9.

What it does
  Takes a member into a group, or back into it, and answers when the rebalance is complete: to the leader with all
  members, to the others without. Protocol metadata is opaque: Connect, Streams and others share the coordinator.

What it does not do
  The reason a member gives (v8) is not kept.

Versions
  v0   the rebalance may take as long as the session; v1 brings a rebalance timeout of its own (KIP-62)
  v4   a new member first gets its id: MEMBER_ID_REQUIRED (KIP-394)
  v5   static members (KIP-345)
  v6   flexible encoding
  v7   protocol type in the answer (KIP-559)
  v8   reason (KIP-800)
  v9   skip_assignment: a static leader that returns need not assign again (KIP-814)
"""

from __future__ import annotations

from ottla.broker.requests.authorization import on_group
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation
from ottla.core.errors import ErrorCode, KafkaError, error_for
from ottla.groups.classic.events import JoinAnswer
from ottla.groups.coordinator import Joining
from ottla.wire.apis import ApiKey
from ottla.wire.generated.join_group import MESSAGES, JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember

ID_REQUIRED_SINCE, NULL_PROTOCOL_SINCE, SKIP_SINCE = 4, 7, 9

PROTOCOLS_MAX = 1000
"""Names of assignors in one request, which the group keeps; clients send fewer than ten."""


async def handle(request: Request, body: JoinGroupRequest) -> JoinGroupResponse:
    """Join a group; the answer waits for the whole group."""
    if len(body.protocols) > PROTOCOLS_MAX:
        return JoinGroupResponse(
            error_code=ErrorCode.INVALID_REQUEST,
            protocol_name=None if request.api_version >= NULL_PROTOCOL_SINCE else "",
        )
    joining = Joining(
        member_id=body.member_id,
        protocol_type=body.protocol_type,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in body.protocols),
        session_timeout_ms=body.session_timeout_ms,
        rebalance_timeout_ms=body.session_timeout_ms if request.api_version == 0 else body.rebalance_timeout_ms,
        instance_id=body.group_instance_id,
        client_id=request.client_id or "",
        client_host=f"/{request.client_host}",  # Java's way of writing an address, which lag monitors expect
        requires_member_id=request.api_version >= ID_REQUIRED_SINCE,
        may_skip_assignment=request.api_version >= SKIP_SINCE,
    )
    try:
        answer = await request.services.coordinators.groups.join(body.group_id, joining)
    except KafkaError as error:
        answer = JoinAnswer(error=error.code, member_id=body.member_id)
    if answer.error is not ErrorCode.NONE:
        refused, client = error_for(answer.error), request.client_id or ""
        request.services.request_errors.record(ApiKey.JOIN_GROUP, refused, group=body.group_id, client=client)
    no_protocol = None if request.api_version >= NULL_PROTOCOL_SINCE else ""
    return JoinGroupResponse(
        error_code=answer.error,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=no_protocol if answer.protocol_name is None else answer.protocol_name,
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata
            )
            for member in answer.members
        ],
    )


HANDLER = Awaited(MESSAGES, handle, access=(on_group(AclOperation.READ),))
