"""ConsumerGroupHeartbeat (key 68), versions 0 to 1.

What it does
  Joins, keeps or leaves a consumer group of the new protocol (KIP-848). The answer gives the member's epoch and, when
  it changed or the member asked for it, its assignment. A partition is given to a member only after the member that had
  it reported its release.

What it does not do
  Nothing is left out.

Versions
  v0   the first member id may come from the broker
  v1   a regular expression as subscription; members choose their id (KIP-1082)
"""

from __future__ import annotations

from functools import partial
from uuid import UUID

from ottla.broker.handler_parts.group_heartbeats import (
    DESCRIBE,
    DescribableTopics,
    answer_heartbeat,
    check_subscription,
)
from ottla.broker.requests.authorization import on_group
from ottla.broker.requests.elements import Each, InParts, collect
from ottla.broker.requests.handler import ElementWiseAfter
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation
from ottla.core.errors import ErrorCode, KafkaError
from ottla.groups.consumer.events import MemberHeartbeat
from ottla.groups.consumer.validation import why_invalid
from ottla.groups.modern.events import HeartbeatAnswer
from ottla.metadata_store.cluster_view import ClusterView
from ottla.wire.generated.consumer_group_heartbeat import (
    MESSAGES,
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)


async def heartbeat(request: Request, body: ConsumerGroupHeartbeatRequest) -> HeartbeatAnswer:
    """Have the coordinator decide; it answers as soon as the changes are durable."""
    if body.subscribed_topic_names and request.authorizer is not None:
        try:
            await check_subscription(request, body.subscribed_topic_names)
        except KafkaError as error:
            return HeartbeatAnswer(error.code, error.message)
    owned: dict[UUID, frozenset[int]] | None = None
    if body.topic_partitions is not None:
        owned = {}
        await collect(request, Each(body.topic_partitions, partial(_own, owned)))
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
        client_host=f"/{request.client_host}",  # as Java writes an address
        may_describe=None if request.authorizer is None else DescribableTopics(request).has,
    )
    reason = why_invalid(body.group_id, beat, request.api_version)
    if reason is not None:
        return HeartbeatAnswer(ErrorCode.INVALID_REQUEST, reason)
    try:
        return await request.services.coordinators.groups.member_heartbeat(body.group_id, beat)
    except KafkaError as error:
        return HeartbeatAnswer(error.code, error.message)


def answer(
    _request: Request, _body: ConsumerGroupHeartbeatRequest, answered: HeartbeatAnswer, _view: ClusterView
) -> ConsumerGroupHeartbeatResponse | InParts[ConsumerGroupHeartbeatResponse]:
    """Return the member's epoch, and its assignment if it changed."""
    return answer_heartbeat(ConsumerGroupHeartbeatResponse(), answered, Assignment, TopicPartitions)


def _own(owned: dict[UUID, frozenset[int]], _request: Request, topic: TopicPartitions, _view: ClusterView) -> None:
    owned[topic.topic_id] = frozenset(topic.partitions)


HANDLER = ElementWiseAfter(
    MESSAGES, first=heartbeat, answer=answer, eager=True, access=(on_group(AclOperation.READ), DESCRIBE)
)
