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

from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.errors import KafkaError
from ottla.groups.classic.events import Leave, Leaver
from ottla.wire.messages.leave_group import (
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
    slices = request.services.slices
    answers: list[MemberResponse] = []
    async for first in slices.each(range(0, len(members), LEAVERS_AT_ONCE), LEAVERS_AT_ONCE):
        some = members[first : first + LEAVERS_AT_ONCE]
        leave = Leave(tuple(Leaver(member_id=each.member_id, instance_id=each.group_instance_id) for each in some))
        try:
            answer = await request.services.coordinators.groups.leave(body.group_id, leave)
        except KafkaError as error:
            return LeaveGroupResponse(error_code=error.code)
        if answer.error or not many:
            return LeaveGroupResponse(error_code=answer.error or answer.errors[0])
        answers += [
            MemberResponse(member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=error)
            for each, error in zip(some, answer.errors, strict=True)
        ]
    return LeaveGroupResponse(members=answers)


HANDLER = Awaited(MESSAGES, handle)
