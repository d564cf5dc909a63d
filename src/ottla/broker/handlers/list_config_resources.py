"""ListConfigResources (key 74), versions 0 to 1.

What it does
  Names what settings may be asked of: topics, brokers and their loggers, and the groups and client-metrics
  subscriptions for which something is set.

What it does not do
  Nothing is left out.

Versions
  v0   client-metrics subscriptions only (it was called ListClientMetricsResources)
  v1   the request says which types; none is all (KIP-1142)
"""

from __future__ import annotations

from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.coordination import znodes
from ottla.core.errors import ErrorCode
from ottla.core.settings import ConfigResourceType
from ottla.wire.messages.list_config_resources import (
    MESSAGES,
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)


async def handle(request: Request, body: ListConfigResourcesRequest) -> ListConfigResourcesResponse:
    """List the names of config resources by type."""
    view = request.services.cluster.current
    names = {
        ConfigResourceType.GROUP: _with_settings(request, znodes.GROUPS_KIND),
        ConfigResourceType.CLIENT_METRICS: _with_settings(request, znodes.CLIENT_METRICS_KIND),
        ConfigResourceType.BROKER_LOGGER: [str(node) for node in view.brokers],
        ConfigResourceType.BROKER: [str(node) for node in view.brokers],
        ConfigResourceType.TOPIC: list(view.topics),
    }
    wanted = set(body.resource_types) if request.api_version > 0 else {ConfigResourceType.CLIENT_METRICS.value}
    if wanted - {kind.value for kind in names}:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=kind)
            for kind, found in names.items()
            if not wanted or kind in wanted
            async for name in request.services.slices.each(found)
        ]
    )


def _with_settings(request: Request, kind: str) -> list[str]:
    stored = request.services.cluster.current.configs.get(kind, {})
    return sorted(name for name, config in stored.items() if config.values)


HANDLER = Awaited(MESSAGES, handle)
