"""ConsumerGroupDescribe (key 69), versions 0 to 1.

What it does
  Describes consumer groups of the new protocol (KIP-848): epochs, assignor, and each member with what it has and its
  part of the target assignment.

What it does not do
  Nothing is left out.

Versions
  v1   whether a member uses the classic or the new protocol (KIP-1099)
"""

from __future__ import annotations

from functools import partial

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
from ottla.groups.consumer.group import ConsumerGroup
from ottla.groups.consumer.member import ConsumerMember
from ottla.metadata_store.cluster_view import ClusterView
from ottla.wire.generated.consumer_group_describe import (
    MESSAGES,
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


def answer(
    _request: Request, body: ConsumerGroupDescribeRequest, _view: ClusterView
) -> InParts[ConsumerGroupDescribeResponse]:
    """Describe each group separately, once."""
    response = ConsumerGroupDescribeResponse()
    groups = describe_groups(body.group_ids, partial(_group, body), into=response.groups, refused=DescribedGroup)
    return InParts(response, groups)


def _group(
    body: ConsumerGroupDescribeRequest, request: Request, group_id: str, view: ClusterView
) -> InParts[DescribedGroup]:
    groups = request.services.coordinators.groups
    try:
        group = groups.describe_consumer(group_id)
    except KafkaError as error:
        return InParts(DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message))
    if describes_denied_topic(request, set(group.owners).union(*group.target.values()), view):
        code, message = error_fields(DENIED_TOPIC)
        return InParts(DescribedGroup(group_id=group_id, error_code=code, error_message=message))
    described = DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.preferred_assignor() or groups.config.consumer_assignors[0],
        authorized_operations=group_operations(request, group_id, wanted=body.include_authorized_operations),
    )
    members = list(group.members.values())
    return InParts(described, Each(members, partial(_member, group), into=described.members, work=WORK))


def _member(group: ConsumerGroup, _request: Request, member: ConsumerMember, _view: ClusterView) -> InParts[Member]:
    described = Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex,
        assignment=Assignment(),
        target_assignment=Assignment(),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )
    assigned, target = described.assignment.topic_partitions, described.target_assignment.topic_partitions
    return InParts(
        described,
        describe_topics(member.assigned, TopicPartitions, into=assigned),
        describe_topics(group.target_of(member.member_id), TopicPartitions, into=target),
    )


HANDLER = ElementWise(MESSAGES, answer, access=(DESCRIBE, DESCRIBE_TOPIC))
