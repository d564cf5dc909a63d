"""GetTelemetrySubscriptions (key 71), version 0.

What it does
  Returns which of its metrics a client pushes, how often, and within which size (KIP-714): those of all client-metrics
  subscriptions that match it. A client without an id gets one. Within the interval it is throttled.

What it does not do
  Nothing is left out.

Versions
  v0   the only one
"""

from __future__ import annotations

from ottla.broker.handler_parts.telemetry_requests import client_metrics, client_properties
from ottla.broker.requests.handler import Inline
from ottla.broker.requests.request import Request
from ottla.core.errors import ErrorCode
from ottla.wire.generated.get_telemetry_subscriptions import (
    MESSAGES,
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)


def handle(request: Request, body: GetTelemetrySubscriptionsRequest) -> GetTelemetrySubscriptionsResponse:
    """Return what the client is to push."""
    from ottla.broker.client_metrics.instances import ACCEPTED_COMPRESSION

    clients = client_metrics(request)
    code, instance = clients.get(body.client_instance_id, client_properties(request), request.connection_id)
    if code is not ErrorCode.NONE:
        return GetTelemetrySubscriptionsResponse(error_code=code)
    asked = instance.subscribed
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=instance.instance_id,
        subscription_id=asked.subscription_id,
        accepted_compression_types=list(ACCEPTED_COMPRESSION),
        push_interval_ms=asked.interval_ms,
        telemetry_max_bytes=request.services.config.metrics.telemetry_bytes_max,
        delta_temporality=True,
        requested_metrics=asked.metrics,
    )


HANDLER = Inline(MESSAGES, handle, access=())
