"""LeaveGroup (key 13), versions 0 to 5.

What it does
  Removes members at once, so that the others need not wait for their sessions to run out. Static members, which do not
  leave when they close, may be removed by an administrator who names only their instance id.

What it does not do
  The reason a member gives (v5) is not kept.

Versions
  v3   many members at once, static members (KIP-345)
  v4   flexible encoding
  v5   reason (KIP-800)
"""

from __future__ import annotations

from functools import partial

from ottla.broker.requests.authorization import on_group
from ottla.broker.requests.elements import collect_awaited
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation
from ottla.core.errors import KafkaError, error_for
from ottla.groups.classic.events import Leave, Leaver
from ottla.metadata_store.cluster_view import ClusterView
from ottla.wire.generated.leave_group import (
    MESSAGES,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)

MANY_MEMBERS_SINCE = 3
LEAVERS_AT_ONCE = 200
"""So many members leave together; of a longer list the others leave in later turns of the loop."""


async def handle(request: Request, body: LeaveGroupRequest) -> LeaveGroupResponse:
    """Remove each member separately."""
    many = request.api_version >= MANY_MEMBERS_SINCE
    members = body.members if many else [MemberIdentity(member_id=body.member_id)]
    firsts = range(0, len(members), LEAVERS_AT_ONCE)
    results: list[MemberResponse] = []
    try:
        await collect_awaited(request, firsts, partial(_leave, body.group_id, members, results), work=LEAVERS_AT_ONCE)
    except KafkaError as error:
        return LeaveGroupResponse(error_code=error.code)
    return LeaveGroupResponse(members=results) if many else LeaveGroupResponse(error_code=results[0].error_code)


async def _leave(
    group_id: str,
    members: list[MemberIdentity],
    results: list[MemberResponse],
    request: Request,
    first: int,
    _view: ClusterView,
) -> None:
    """Let some members leave together. Raises KafkaError where none of them can."""
    leaving = members[first : first + LEAVERS_AT_ONCE]
    leavers = [
        Leaver(member_id=member.member_id, instance_id=member.group_instance_id, reason=member.reason or "")
        for member in leaving
    ]
    leave = Leave(tuple(leavers))
    outcome = await request.services.coordinators.groups.leave(group_id, leave)
    if outcome.error:
        raise error_for(outcome.error)
    results += [
        MemberResponse(member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=error)
        for member, error in zip(leaving, outcome.errors, strict=True)
    ]


HANDLER = Awaited(MESSAGES, handle, access=(on_group(AclOperation.READ),))
