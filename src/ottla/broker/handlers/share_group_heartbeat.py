"""ShareGroupHeartbeat (key 76), version 1.

What it does
  Takes a member into a share group, keeps it there, and gives it its partitions (KIP-932); epoch 0 joins, -1 leaves.
  Share partitions get their state before the first member gets them, so that the answer to a join has partitions.

What it does not do
  Assignors other than `simple`, which is Kafka's only one.

Versions
  v1   the first that is not a preview
"""

from __future__ import annotations

from ottla.broker.context import RequestContext
from ottla.broker.share_requests import check_member
from ottla.core.errors import ErrorCode, InvalidRequest, KafkaError, error_for
from ottla.groups.modern.events import JOIN_EPOCH, LEAVE_EPOCH
from ottla.groups.share.events import ShareHeartbeat
from ottla.wire.messages.share_group_heartbeat import (
    Assignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    TopicPartitions,
)


async def handle(ctx: RequestContext, request: ShareGroupHeartbeatRequest) -> ShareGroupHeartbeatResponse:
    """Answer as soon as the changes are durable."""
    try:
        _check(request)
        beat = ShareHeartbeat(
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            rack_id=request.rack_id,
            topics=None if request.subscribed_topic_names is None else frozenset(request.subscribed_topic_names),
            client_id=ctx.client_id or "",
            client_host=f"/{ctx.client_host}",  # Java's way of writing an address, as in classic groups
        )
        answer = await ctx.services.coordinators.share_groups.heartbeat(request.group_id, beat)
    except KafkaError as error:
        return ShareGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
    if answer.error is not ErrorCode.NONE:
        message = answer.message or error_for(answer.error).message
        return ShareGroupHeartbeatResponse(error_code=answer.error, error_message=message)
    assignment = None
    if answer.assignment is not None:
        assignment = Assignment(
            topic_partitions=[
                TopicPartitions(topic_id=topic_id, partitions=sorted(indexes))
                async for topic_id, indexes in ctx.services.slices.each(sorted(answer.assignment.items()))
            ]
        )
    return ShareGroupHeartbeatResponse(
        member_id=answer.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval_ms=answer.heartbeat_interval_ms,
        assignment=assignment,
    )


def _check(request: ShareGroupHeartbeatRequest) -> None:
    """Raise InvalidRequest with Kafka's messages."""
    check_member(request.group_id, request.member_id)
    if not request.group_id.strip():
        raise InvalidRequest("GroupId can't be empty.")
    if request.rack_id is not None and not request.rack_id.strip():
        raise InvalidRequest("RackId can't be empty.")
    if request.member_epoch == JOIN_EPOCH and not request.subscribed_topic_names:
        raise InvalidRequest("SubscribedTopicNames must be set in first request.")
    if request.member_epoch < LEAVE_EPOCH:
        raise InvalidRequest("MemberEpoch is invalid.")
