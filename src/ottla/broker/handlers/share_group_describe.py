"""ShareGroupDescribe (key 77), version 1.

What it does
  Describes share groups (KIP-932): epochs, state, and each member with its partitions.

What it does not do
  Nothing is left out.

Versions
  v1   the first that is not a preview
"""

from __future__ import annotations

from functools import partial
from uuid import UUID

from ottla.broker.handler_parts.admin_requests import error_fields
from ottla.broker.handler_parts.group_descriptions import (
    DENIED_TOPIC,
    DESCRIBE,
    DESCRIBE_TOPIC,
    WORK,
    describe_groups,
    describe_topics,
    describes_denied_topic,
    group_operations,
)
from ottla.broker.requests.elements import Each, InParts
from ottla.broker.requests.handler import ElementWise
from ottla.broker.requests.request import Request
from ottla.core.errors import KafkaError
from ottla.groups.assignors import simple
from ottla.groups.share.records import ShareMember
from ottla.metadata_store.cluster_view import ClusterView
from ottla.wire.generated.share_group_describe import (
    MESSAGES,
    Assignment,
    DescribedGroup,
    Member,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    TopicPartitions,
)


def answer(
    _request: Request, body: ShareGroupDescribeRequest, _view: ClusterView
) -> InParts[ShareGroupDescribeResponse]:
    """Describe each group separately, once."""
    response = ShareGroupDescribeResponse()
    groups = describe_groups(body.group_ids, partial(_group, body), into=response.groups, refused=DescribedGroup)
    return InParts(response, groups)


def _group(
    body: ShareGroupDescribeRequest, request: Request, group_id: str, view: ClusterView
) -> InParts[DescribedGroup]:
    try:
        group = request.services.coordinators.share_groups.describe(group_id)
    except KafkaError as error:
        return InParts(DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message))
    topic_ids: set[UUID] = set()
    if describes_denied_topic(request, topic_ids.union(*[member.assigned for member in group.members.values()]), view):
        code, message = error_fields(DENIED_TOPIC)
        return InParts(DescribedGroup(group_id=group_id, error_code=code, error_message=message))
    described = DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=simple.NAME,
        authorized_operations=group_operations(request, group_id, wanted=body.include_authorized_operations),
    )
    return InParts(described, Each(list(group.members.values()), _member, into=described.members, work=WORK))


def _member(_request: Request, member: ShareMember, _view: ClusterView) -> InParts[Member]:
    described = Member(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        assignment=Assignment(),
    )
    return InParts(
        described, describe_topics(member.assigned, TopicPartitions, into=described.assignment.topic_partitions)
    )


HANDLER = ElementWise(MESSAGES, answer, access=(DESCRIBE, DESCRIBE_TOPIC))
