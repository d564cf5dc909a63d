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

from ottla.broker.context import RequestContext
from ottla.broker.coordinators import naming_work
from ottla.broker.handlers.describe_groups import ALL_OPERATIONS, NOT_ASKED
from ottla.core.errors import KafkaError
from ottla.groups.consumer.group import ConsumerGroup
from ottla.groups.consumer.member import ConsumerMember
from ottla.wire.messages.consumer_group_describe import (
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


async def handle(ctx: RequestContext, request: ConsumerGroupDescribeRequest) -> ConsumerGroupDescribeResponse:
    """Describe each group separately, once."""
    operations = ALL_OPERATIONS if request.include_authorized_operations else NOT_ASKED
    slices = ctx.services.slices
    response = ConsumerGroupDescribeResponse()
    async for group_id in slices.each(dict.fromkeys(request.group_ids), WORK):
        slices.spend(naming_work(group_id))
        response.groups.append(await _one(ctx, group_id, operations))
    return response


async def _one(ctx: RequestContext, group_id: str, operations: int) -> DescribedGroup:
    groups = ctx.services.coordinators.groups
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
        members=[await _member(ctx, group, member) async for member in ctx.services.slices.each(members, WORK)],
        authorized_operations=operations,
    )


async def _member(ctx: RequestContext, group: ConsumerGroup, member: ConsumerMember) -> Member:
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex,
        assignment=await _assignment(ctx, member.assigned),
        target_assignment=await _assignment(ctx, group.target_of(member.member_id)),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )


async def _assignment(ctx: RequestContext, partitions: Mapping[UUID, Iterable[int]]) -> Assignment:
    """Name the topics; deleted ones are left out."""
    by_id = ctx.services.cluster.current.topic_by_id
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, topic_name=topic.name, partitions=sorted(indexes))
            async for topic_id, indexes in ctx.services.slices.each(sorted(partitions.items()))
            if (topic := by_id.get(topic_id.bytes)) is not None
        ]
    )
