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

from ottla.broker.context import RequestContext
from ottla.core.errors import ErrorCode, KafkaError, error_for
from ottla.groups.consumer.events import MemberHeartbeat
from ottla.groups.consumer.validation import why_invalid
from ottla.wire.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)


async def handle(ctx: RequestContext, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
    """Answer as soon as the changes are durable."""
    each = ctx.services.slices.each
    owned = None
    if request.topic_partitions is not None:
        owned = {topic.topic_id: frozenset(topic.partitions) async for topic in each(request.topic_partitions)}
    beat = MemberHeartbeat(
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topics=None if request.subscribed_topic_names is None else frozenset(request.subscribed_topic_names),
        regex=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=owned,
        client_id=ctx.client_id or "",
        client_host=f"/{ctx.client_host}",  # Java's way of writing an address, as in classic groups
    )
    reason = why_invalid(request.group_id, beat, ctx.api_version)
    if reason is not None:
        return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=reason)
    try:
        answer = await ctx.services.coordinators.groups.member_heartbeat(request.group_id, beat)
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
