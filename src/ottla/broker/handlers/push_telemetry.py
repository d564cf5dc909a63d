"""PushTelemetry (key 72), version 0.

What it does
  Keeps the last values of the metrics that a client pushes (KIP-714), for `/metrics`. A push is throttled within the
  interval, unless it is the client's last one; it must be for the subscriptions as they are now, and within
  `telemetry.max.bytes`, before and after decompression (CVE-2026-111073).

What it does not do
  Without `ottla.client.metrics.enable` what is pushed is dropped after its decompression, as by a Kafka without a
  reporter. Histograms are counted as left out.

Versions
  v0   the only one
"""

from __future__ import annotations

from ottla.broker.handler_parts.telemetry_requests import client_metrics, client_properties, keep
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.errors import ErrorCode
from ottla.wire.generated.push_telemetry import MESSAGES, PushTelemetryRequest, PushTelemetryResponse


async def handle(request: Request, body: PushTelemetryRequest) -> PushTelemetryResponse:
    """Keep what the client pushes."""
    clients = client_metrics(request)
    code, instance = clients.begin_push(
        body.client_instance_id,
        client_properties(request),
        request.connection_id,
        subscription_id=body.subscription_id,
        compression=body.compression_type,
        size=len(body.metrics),
        is_terminating=body.terminating,
    )
    if code is ErrorCode.NONE and instance is not None:
        code = await keep(request, instance, body.compression_type, body.metrics)
    clients.answers[code] += 1
    return PushTelemetryResponse(error_code=code)


HANDLER = Awaited(MESSAGES, handle, access=())
