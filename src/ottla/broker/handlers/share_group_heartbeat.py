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

from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.broker.share_requests import check_member
from ottla.core.errors import ErrorCode, InvalidRequest, KafkaError, error_for
from ottla.groups.modern.events import JOIN_EPOCH, LEAVE_EPOCH
from ottla.groups.share.events import ShareHeartbeat
from ottla.wire.messages.share_group_heartbeat import (
    MESSAGES,
    Assignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    TopicPartitions,
)


async def handle(request: Request, body: ShareGroupHeartbeatRequest) -> ShareGroupHeartbeatResponse:
    """Answer as soon as the changes are durable."""
    try:
        _check(body)
        beat = ShareHeartbeat(
            member_id=body.member_id,
            member_epoch=body.member_epoch,
            rack_id=body.rack_id,
            topics=None if body.subscribed_topic_names is None else frozenset(body.subscribed_topic_names),
            client_id=request.client_id or "",
            client_host=f"/{request.client_host}",  # Java's way of writing an address, as in classic groups
        )
        answer = await request.services.coordinators.share_groups.heartbeat(body.group_id, beat)
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
                async for topic_id, indexes in request.services.slices.each(sorted(answer.assignment.items()))
            ]
        )
    return ShareGroupHeartbeatResponse(
        member_id=answer.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval_ms=answer.heartbeat_interval_ms,
        assignment=assignment,
    )


def _check(body: ShareGroupHeartbeatRequest) -> None:
    """Raise InvalidRequest with Kafka's messages."""
    check_member(body.group_id, body.member_id)
    if not body.group_id.strip():
        raise InvalidRequest("GroupId can't be empty.")
    if body.rack_id is not None and not body.rack_id.strip():
        raise InvalidRequest("RackId can't be empty.")
    if body.member_epoch == JOIN_EPOCH and not body.subscribed_topic_names:
        raise InvalidRequest("SubscribedTopicNames must be set in first request.")
    if body.member_epoch < LEAVE_EPOCH:
        raise InvalidRequest("MemberEpoch is invalid.")


HANDLER = Awaited(MESSAGES, handle)
