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

from ottla.broker.context import RequestContext
from ottla.core.errors import CoordinatorLoadInProgress, ErrorCode, KafkaError
from ottla.groups.classic.events import Heartbeat
from ottla.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


async def handle(ctx: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    """Answer at once."""
    beat = Heartbeat(
        member_id=request.member_id, generation=request.generation_id, instance_id=request.group_instance_id
    )
    try:
        error = await ctx.services.coordinators.groups.heartbeat(request.group_id, beat)
    except CoordinatorLoadInProgress:
        error = ErrorCode.NONE  # as in Kafka: sessions start again after loading, so none expires meanwhile
    except KafkaError as refusal:
        error = refusal.code
    return HeartbeatResponse(error_code=error)
