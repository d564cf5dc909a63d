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

from ottla.broker.handler_parts.share_requests import (
    READ,
    READ_GROUP,
    RENEW_SINCE,
    acknowledge,
    by_topic,
    check_group_and_member,
    leader_if_moved,
)
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.errors import KafkaError
from ottla.share_partitions.sessions import FINAL_EPOCH
from ottla.wire.generated.share_acknowledge import (
    MESSAGES,
    LeaderIdAndEpoch,
    PartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
)


async def handle(request: Request, body: ShareAcknowledgeRequest) -> ShareAcknowledgeResponse:
    """Acknowledge each partition separately."""
    manager = request.services.coordinators.share_partitions
    try:
        group_id, member_id = check_group_and_member(request, body.group_id, body.member_id)
        session = manager.sessions.acknowledge(group_id, member_id, body.share_session_epoch)
    except KafkaError as error:
        return ShareAcknowledgeResponse(error_code=error.code, error_message=error.message)
    renews = request.api_version >= RENEW_SINCE and body.is_renew_ack
    results = await acknowledge(request, session, body.topics, renews=renews)
    if body.share_session_epoch == FINAL_EPOCH:
        await manager.end_session(session)
    response = ShareAcknowledgeResponse(acquisition_lock_timeout_ms=manager.settings(group_id).limits.lock_duration_ms)
    for topic_id, partitions in by_topic(results).items():
        topic = ShareAcknowledgeTopicResponse(topic_id=topic_id)
        for where in partitions:
            error_code, message = results[where]
            leader, epoch = leader_if_moved(request.services, where, error_code)
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


HANDLER = Awaited(MESSAGES, handle, access=(READ_GROUP, READ))
