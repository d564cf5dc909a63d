"""DescribeGroups (key 15), versions 0 to 6.

What it does
  Describes groups: state, protocol, members and, while the group is stable, their metadata and assignments.

What it does not do
  authorized_operations lists all operations of a group: there are no ACLs yet.

Versions
  v3   authorized operations (KIP-430)
  v4   static members (KIP-345)
  v5   flexible encoding
  v6   GROUP_ID_NOT_FOUND with a message (KIP-1043); before, an unknown group is Dead and no error
"""

from __future__ import annotations

from ottla.broker.coordinators import naming_work
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.errors import GroupIdNotFound, KafkaError
from ottla.groups.classic.events import State
from ottla.groups.classic.group import ClassicGroup
from ottla.wire.messages.describe_groups import (
    MESSAGES,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

NOT_FOUND_SINCE = 6
WORK = 3
"""Units of work of one group."""

NOT_ASKED = -(2**31)
ALL_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
"""Read, delete, describe, describe configs, alter configs: the bits are Kafka's AclOperation codes."""


async def handle(request: Request, body: DescribeGroupsRequest) -> DescribeGroupsResponse:
    """Describe each group separately, once."""
    operations = ALL_OPERATIONS if body.include_authorized_operations else NOT_ASKED
    slices = request.services.slices
    response = DescribeGroupsResponse()
    async for group_id in slices.each(dict.fromkeys(body.groups), WORK):
        slices.spend(naming_work(group_id))
        response.groups.append(await _one(request, group_id, operations))
    return response


async def _one(request: Request, group_id: str, operations: int) -> DescribedGroup:
    try:
        group = request.services.coordinators.groups.describe(group_id)
    except GroupIdNotFound as error:
        if request.api_version < NOT_FOUND_SINCE:
            return DescribedGroup(group_id=group_id, group_state=State.DEAD.value, authorized_operations=operations)
        return DescribedGroup(
            group_id=group_id, group_state=State.DEAD.value, error_code=error.code, error_message=error.message
        )
    except KafkaError as error:
        return DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message)
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol or "") if group.state is State.STABLE else "",
        members=await _members(request, group),
        authorized_operations=operations,
    )


async def _members(request: Request, group: ClassicGroup) -> list[DescribedGroupMember]:
    """Build the members; during a rebalance metadata and assignments belong to no generation and are left out."""
    stable = group.state is State.STABLE
    return [
        DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata_for(group.protocol) if stable else b"",
            member_assignment=member.assignment if stable else b"",
        )
        async for member in request.services.slices.each(list(group.members.by_id.values()))
    ]


HANDLER = Awaited(MESSAGES, handle)
