"""ShareGroupDescribe (key 77), version 1.

What it does
  Describes share groups (KIP-932): epochs, state, and each member with its partitions.

What it does not do
  authorized_operations lists all operations of a group: there are no ACLs yet.

Versions
  v1   the first that is not a preview
"""

from __future__ import annotations

from ottla.broker.coordinators import naming_work
from ottla.broker.handlers.describe_groups import ALL_OPERATIONS, NOT_ASKED
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.errors import KafkaError
from ottla.groups.assignors import simple
from ottla.groups.share.records import ShareMember
from ottla.wire.messages.share_group_describe import (
    MESSAGES,
    Assignment,
    DescribedGroup,
    Member,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    TopicPartitions,
)

WORK = 3
"""Units of work of one group."""


async def handle(request: Request, body: ShareGroupDescribeRequest) -> ShareGroupDescribeResponse:
    """Describe each group separately, once."""
    operations = ALL_OPERATIONS if body.include_authorized_operations else NOT_ASKED
    slices = request.services.slices
    response = ShareGroupDescribeResponse()
    async for group_id in slices.each(dict.fromkeys(body.group_ids), WORK):
        slices.spend(naming_work(group_id))
        response.groups.append(await _one(request, group_id, operations))
    return response


async def _one(request: Request, group_id: str, operations: int) -> DescribedGroup:
    try:
        group = request.services.coordinators.share_groups.describe(group_id)
    except KafkaError as error:
        return DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message)
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=simple.NAME,
        members=[
            await _member(request, one)
            async for one in request.services.slices.each(list(group.members.values()), WORK)
        ],
        authorized_operations=operations,
    )


async def _member(request: Request, member: ShareMember) -> Member:
    by_id = request.services.cluster.current.topic_by_id
    return Member(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        assignment=Assignment(
            topic_partitions=[
                TopicPartitions(topic_id=topic_id, topic_name=topic.name, partitions=sorted(indexes))
                async for topic_id, indexes in request.services.slices.each(sorted(member.assigned.items()))
                if (topic := by_id.get(topic_id.bytes)) is not None
            ]
        ),
    )


HANDLER = Awaited(MESSAGES, handle)
