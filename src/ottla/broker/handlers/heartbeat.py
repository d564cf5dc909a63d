"""Heartbeat (key 12), versions 0 to 4.

What it does
  Renews a member's session, and returns REBALANCE_IN_PROGRESS when the member must join again.

What it does not do
  Nothing is left out.

Versions
  v3   static members (KIP-345)
  v4   flexible encoding
"""

from __future__ import annotations

from ottla.broker.requests.authorization import on_group
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation
from ottla.core.errors import CoordinatorLoadInProgress, ErrorCode, KafkaError
from ottla.groups.classic.events import Heartbeat
from ottla.wire.generated.heartbeat import MESSAGES, HeartbeatRequest, HeartbeatResponse


async def handle(request: Request, body: HeartbeatRequest) -> HeartbeatResponse:
    """Answer at once."""
    beat = Heartbeat(member_id=body.member_id, generation=body.generation_id, instance_id=body.group_instance_id)
    try:
        error = await request.services.coordinators.groups.heartbeat(body.group_id, beat)
    except CoordinatorLoadInProgress:
        error = ErrorCode.NONE  # as in Kafka: sessions start again after loading, so none expires meanwhile
    except KafkaError as refusal:
        error = refusal.code
    return HeartbeatResponse(error_code=error)


HANDLER = Awaited(MESSAGES, handle, eager=True, access=(on_group(AclOperation.READ),))
