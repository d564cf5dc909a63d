"""UnregisterBroker (key 64), version 0.

What it does
  A broker is registered while it runs and until its session ends, so there is nothing to remove for one that has
  ended: the request succeeds for each broker that has replicas or settings and does not run. For a running broker it
  is refused; for an id that nothing knows the error is BROKER_ID_NOT_REGISTERED.

What it does not do
  The replicas of the broker stay assigned to it, as in Kafka: a reassignment moves them.

Versions
  v0   flexible encoding
"""

from __future__ import annotations

from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.errors import ErrorCode
from ottla.wire.messages.unregister_broker import MESSAGES, UnregisterBrokerRequest, UnregisterBrokerResponse

WORK = 1
"""Units of work of one topic."""


async def handle(request: Request, body: UnregisterBrokerRequest) -> UnregisterBrokerResponse:
    """Say whether the broker is registered no longer."""
    view, node_id = request.services.cluster.current, body.broker_id
    if node_id in view.brokers:
        return UnregisterBrokerResponse(
            error_code=ErrorCode.INVALID_REQUEST,
            error_message=f"Broker {node_id} is running, and stays registered while it does. Stop it first.",
        )
    is_known = str(node_id) in view.broker_configs
    async for topic in request.services.slices.each(view.topics.values(), WORK):
        is_known = is_known or any(node_id in partition.replicas for partition in topic.partitions)
    if is_known:
        return UnregisterBrokerResponse(error_message=None)
    return UnregisterBrokerResponse(
        error_code=ErrorCode.BROKER_ID_NOT_REGISTERED, error_message=f"Broker ID {node_id} is not currently registered"
    )


HANDLER = Awaited(MESSAGES, handle)
