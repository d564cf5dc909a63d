"""ConsumerGroupDescribe (key 69), versions 0 to 1.

What it does
  Describes consumer groups of the new protocol (KIP-848): epochs, assignor, and each member with what it has and its
  part of the target assignment.

What it does not do
  authorized_operations lists all operations of a group: there are no ACLs yet.

Versions
  v1   whether a member uses the classic or the new protocol (KIP-1099)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from ottla.broker.coordinators import naming_work
from ottla.broker.handlers.describe_groups import ALL_OPERATIONS, NOT_ASKED
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.errors import KafkaError
from ottla.groups.consumer.group import ConsumerGroup
from ottla.groups.consumer.member import ConsumerMember
from ottla.wire.messages.consumer_group_describe import (
    MESSAGES,
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)

WORK = 3
"""Units of work of one group."""

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


async def handle(request: Request, body: ConsumerGroupDescribeRequest) -> ConsumerGroupDescribeResponse:
    """Describe each group separately, once."""
    operations = ALL_OPERATIONS if body.include_authorized_operations else NOT_ASKED
    slices = request.services.slices
    response = ConsumerGroupDescribeResponse()
    async for group_id in slices.each(dict.fromkeys(body.group_ids), WORK):
        slices.spend(naming_work(group_id))
        response.groups.append(await _one(request, group_id, operations))
    return response


async def _one(request: Request, group_id: str, operations: int) -> DescribedGroup:
    groups = request.services.coordinators.groups
    try:
        group = groups.describe_consumer(group_id)
    except KafkaError as error:
        return DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message)
    members = list(group.members.values())
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.preferred_assignor() or groups.config.consumer_assignors[0],
        members=[await _member(request, group, member) async for member in request.services.slices.each(members, WORK)],
        authorized_operations=operations,
    )


async def _member(request: Request, group: ConsumerGroup, member: ConsumerMember) -> Member:
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex,
        assignment=await _assignment(request, member.assigned),
        target_assignment=await _assignment(request, group.target_of(member.member_id)),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )


async def _assignment(request: Request, partitions: Mapping[UUID, Iterable[int]]) -> Assignment:
    """Name the topics; deleted ones are left out."""
    by_id = request.services.cluster.current.topic_by_id
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, topic_name=topic.name, partitions=sorted(indexes))
            async for topic_id, indexes in request.services.slices.each(sorted(partitions.items()))
            if (topic := by_id.get(topic_id.bytes)) is not None
        ]
    )


HANDLER = Awaited(MESSAGES, handle)
