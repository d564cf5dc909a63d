"""DescribeGroups (key 15), versions 0 to 6.

What it does
  Describes groups: state, protocol, members and, while the group is stable, their metadata and assignments.

What it does not do
  Nothing is left out.

Versions
  v3   authorized operations (KIP-430)
  v4   static members (KIP-345)
  v5   flexible encoding
  v6   GROUP_ID_NOT_FOUND with a message (KIP-1043); before, an unknown group is Dead and no error
"""

from __future__ import annotations

from functools import partial

from ottla.broker.handler_parts import group_descriptions
from ottla.broker.requests.elements import Each, InParts
from ottla.broker.requests.handler import ElementWise
from ottla.broker.requests.request import Request
from ottla.core.errors import GroupIdNotFound, KafkaError
from ottla.groups.classic.events import State
from ottla.groups.classic.group import ClassicGroup
from ottla.groups.classic.members import Member
from ottla.metadata_store.cluster_view import ClusterView
from ottla.wire.generated.describe_groups import (
    MESSAGES,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

NOT_FOUND_SINCE = 6


def answer(_request: Request, body: DescribeGroupsRequest, _view: ClusterView) -> InParts[DescribeGroupsResponse]:
    """Describe each group separately, once."""
    response = DescribeGroupsResponse()
    groups = group_descriptions.describe_groups(
        body.groups, partial(_group, body), into=response.groups, refused=DescribedGroup
    )
    return InParts(response, groups)


def _group(body: DescribeGroupsRequest, request: Request, group_id: str, _view: ClusterView) -> InParts[DescribedGroup]:
    operations = group_descriptions.group_operations(request, group_id, wanted=body.include_authorized_operations)
    try:
        group = request.services.coordinators.groups.describe(group_id)
    except KafkaError as error:
        return InParts(_refused(request, group_id, operations, error))
    is_stable = group.state is State.STABLE
    described = DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol or "") if is_stable else "",
        authorized_operations=operations,
    )
    members = list(group.members.by_id.values())
    return InParts(described, Each(members, partial(_member, group, is_stable), into=described.members))


def _refused(request: Request, group_id: str, operations: int, error: KafkaError) -> DescribedGroup:
    described = DescribedGroup(group_id=group_id)
    if isinstance(error, GroupIdNotFound):
        described.group_state = State.DEAD.value
        if request.api_version < NOT_FOUND_SINCE:
            described.authorized_operations = operations
            return described
    described.error_code, described.error_message = error.code, error.message
    return described


def _member(
    group: ClassicGroup, is_stable: bool, _request: Request, member: Member, _view: ClusterView
) -> DescribedGroupMember:
    """Build a member; during a rebalance metadata and assignment belong to no generation and are left out."""
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata_for(group.protocol) if is_stable else b"",
        member_assignment=member.assignment if is_stable else b"",
    )


HANDLER = ElementWise(MESSAGES, answer, access=(group_descriptions.DESCRIBE,))
