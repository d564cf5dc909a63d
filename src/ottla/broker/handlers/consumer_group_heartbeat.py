"""ConsumerGroupHeartbeat (key 68), versions 0 to 1.

What it does
  Joins, keeps or leaves a consumer group of the new protocol (KIP-848). The answer gives the member's epoch and, when
  it changed or the member asked for it, its assignment. A partition is given to a member only after the member that had
  it reported its release.

What it does not do
  Topics that match a regular expression are not filtered by authorization: there are no ACLs yet.

Versions
  v0   the first member id may come from the broker
  v1   a regular expression as subscription; members choose their id (KIP-1082)
"""

from __future__ import annotations

from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.errors import ErrorCode, KafkaError, error_for
from ottla.groups.consumer.events import MemberHeartbeat
from ottla.groups.consumer.validation import why_invalid
from ottla.wire.messages.consumer_group_heartbeat import (
    MESSAGES,
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)


async def handle(request: Request, body: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
    """Answer as soon as the changes are durable."""
    each = request.services.slices.each
    owned = None
    if body.topic_partitions is not None:
        owned = {topic.topic_id: frozenset(topic.partitions) async for topic in each(body.topic_partitions)}
    beat = MemberHeartbeat(
        member_id=body.member_id,
        member_epoch=body.member_epoch,
        instance_id=body.instance_id,
        rack_id=body.rack_id,
        rebalance_timeout_ms=body.rebalance_timeout_ms,
        topics=None if body.subscribed_topic_names is None else frozenset(body.subscribed_topic_names),
        regex=body.subscribed_topic_regex,
        assignor=body.server_assignor,
        owned=owned,
        client_id=request.client_id or "",
        client_host=f"/{request.client_host}",  # Java's way of writing an address, as in classic groups
    )
    reason = why_invalid(body.group_id, beat, request.api_version)
    if reason is not None:
        return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=reason)
    try:
        answer = await request.services.coordinators.groups.member_heartbeat(body.group_id, beat)
    except KafkaError as error:
        return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
    if answer.error is not ErrorCode.NONE:
        message = answer.message or error_for(answer.error).message
        return ConsumerGroupHeartbeatResponse(error_code=answer.error, error_message=message)
    assignment = None
    if answer.assignment is not None:
        assignment = Assignment(
            topic_partitions=[
                TopicPartitions(topic_id=topic_id, partitions=sorted(indexes))
                async for topic_id, indexes in each(sorted(answer.assignment.items()))
            ]
        )
    return ConsumerGroupHeartbeatResponse(
        member_id=answer.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval_ms=answer.heartbeat_interval_ms,
        assignment=assignment,
    )


HANDLER = Awaited(MESSAGES, handle, eager=True)
