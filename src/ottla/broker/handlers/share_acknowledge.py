"""ShareAcknowledge (key 79), versions 1 to 2.

What it does
  Ends the delivery of records that a consumer of a share group holds: accepted, rejected, or released for another
  delivery (KIP-932). Answers when that is durable. Epoch -1 ends the session: what the consumer still holds is
  released.

What it does not do
  A request without a session: the first request of a consumer is a ShareFetch.

Versions
  v2   acknowledgements that renew the lock (KIP-1222), and its duration
"""

from __future__ import annotations

from ottla.broker.context import RequestContext
from ottla.broker.share_requests import RENEW_SINCE, acknowledge, by_topic, check_member, leader_if_moved
from ottla.core.errors import KafkaError
from ottla.share.sessions import FINAL_EPOCH
from ottla.wire.messages.share_acknowledge import (
    LeaderIdAndEpoch,
    PartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
)


async def handle(ctx: RequestContext, request: ShareAcknowledgeRequest) -> ShareAcknowledgeResponse:
    """Acknowledge each partition separately."""
    manager = ctx.services.coordinators.share_partitions
    try:
        group_id, member_id = check_member(request.group_id, request.member_id)
        session = manager.sessions.acknowledge(group_id, member_id, request.share_session_epoch)
    except KafkaError as error:
        return ShareAcknowledgeResponse(error_code=error.code, error_message=error.message)
    renews = ctx.api_version >= RENEW_SINCE and request.is_renew_ack
    results = await acknowledge(ctx, session, request.topics, renews=renews)
    if request.share_session_epoch == FINAL_EPOCH:
        await manager.end_session(session)
    response = ShareAcknowledgeResponse(acquisition_lock_timeout_ms=manager.settings(group_id).limits.lock_duration_ms)
    for topic_id, partitions in by_topic(results).items():
        topic = ShareAcknowledgeTopicResponse(topic_id=topic_id)
        for where in partitions:
            error_code, message = results[where]
            leader, epoch = leader_if_moved(ctx.services, where, error_code)
            topic.partitions.append(
                PartitionData(
                    partition_index=where.partition,
                    error_code=error_code,
                    error_message=message,
                    current_leader=LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch),
                )
            )
        response.responses.append(topic)
    return response
