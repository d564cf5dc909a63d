"""Describes the client of a request about its metrics, and keeps what it pushes (KIP-714)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from ottla.broker.requests.request import Request

if TYPE_CHECKING:
    from ottla.broker.client_metrics.instances import ClientInstance, ClientMetrics
    from ottla.core.errors import ErrorCode

_CHARS_MAX: Final = 250
"""Of a property: up to 16,384 clients are kept."""


def client_metrics(request: Request) -> ClientMetrics:
    """Return what this broker has of clients' metrics; it forgets the client when the connection closes."""
    services = request.services
    if services.client_metrics is None:
        from ottla.broker.client_metrics.instances import ClientMetrics

        services.client_metrics = ClientMetrics(services.config.metrics, services.cluster, services.clock)
    request.call_when_lost("client metrics", partial(services.client_metrics.lost, request.connection_id))
    return services.client_metrics


def client_properties(request: Request) -> dict[str, str]:
    """Return what a subscription may match, without the id of the instance."""
    name, version = request.connection.software or (None, None)
    port = request.connection.peer_port
    found = {
        "client_id": request.client_id,
        "client_software_name": name,
        "client_software_version": version,
        "client_source_address": request.client_host,
        "client_source_port": None if port is None else str(port),
    }
    return {name: value[:_CHARS_MAX] for name, value in found.items() if value is not None}


async def keep(request: Request, instance: ClientInstance, compression: int, data: bytes) -> ErrorCode:
    """Keep the values of an accepted push; other requests run in between."""
    slices = request.services.slices
    return await slices.run(client_metrics(request).keep(instance, compression, data, slices))
