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

from ottla.broker.handler_parts.group_heartbeats import DESCRIBE, answer_heartbeat, check_subscription
from ottla.broker.handler_parts.share_requests import check_member
from ottla.broker.requests.authorization import on_group
from ottla.broker.requests.elements import InParts
from ottla.broker.requests.handler import ElementWiseAfter
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation
from ottla.core.errors import InvalidRequest, KafkaError
from ottla.groups.modern.events import JOIN_EPOCH, LEAVE_EPOCH, HeartbeatAnswer
from ottla.groups.share.events import ShareHeartbeat
from ottla.metadata_store.cluster_view import ClusterView
from ottla.wire.generated.share_group_heartbeat import (
    MESSAGES,
    Assignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    TopicPartitions,
)


async def heartbeat(request: Request, body: ShareGroupHeartbeatRequest) -> HeartbeatAnswer:
    """Have the coordinator decide; it answers as soon as the changes are durable."""
    try:
        if body.subscribed_topic_names and request.authorizer is not None:
            await check_subscription(request, body.subscribed_topic_names)
        _check(body)
        beat = ShareHeartbeat(
            member_id=body.member_id,
            member_epoch=body.member_epoch,
            rack_id=body.rack_id,
            topics=None if body.subscribed_topic_names is None else frozenset(body.subscribed_topic_names),
            client_id=request.client_id or "",
            client_host=f"/{request.client_host}",  # as Java writes an address
        )
        return await request.services.coordinators.share_groups.heartbeat(body.group_id, beat)
    except KafkaError as error:
        return HeartbeatAnswer(error.code, error.message)


def answer(
    _request: Request, _body: ShareGroupHeartbeatRequest, answered: HeartbeatAnswer, _view: ClusterView
) -> ShareGroupHeartbeatResponse | InParts[ShareGroupHeartbeatResponse]:
    """Return the member's epoch, and its assignment if it changed."""
    return answer_heartbeat(ShareGroupHeartbeatResponse(), answered, Assignment, TopicPartitions)


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


HANDLER = ElementWiseAfter(MESSAGES, first=heartbeat, answer=answer, access=(on_group(AclOperation.READ), DESCRIBE))
