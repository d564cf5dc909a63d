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

from collections.abc import Iterable
from functools import partial

from ottla.broker.requests.authorization import on_cluster
from ottla.broker.requests.elements import Each, InParts
from ottla.broker.requests.handler import ElementWise
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation
from ottla.core.errors import ErrorCode
from ottla.core.settings import ConfigResourceType
from ottla.metadata_store import znodes
from ottla.metadata_store.cluster_view import ClusterView
from ottla.wire.generated.list_config_resources import (
    MESSAGES,
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)


def answer(
    request: Request, body: ListConfigResourcesRequest, view: ClusterView
) -> ListConfigResourcesResponse | InParts[ListConfigResourcesResponse]:
    """List the names of config resources by type."""
    names: dict[ConfigResourceType, Iterable[object]] = {
        ConfigResourceType.GROUP: _with_settings(view, znodes.GROUPS_KIND),
        ConfigResourceType.CLIENT_METRICS: _with_settings(view, znodes.CLIENT_METRICS_KIND),
        ConfigResourceType.BROKER_LOGGER: view.brokers,
        ConfigResourceType.BROKER: view.brokers,
        ConfigResourceType.TOPIC: view.topics,
    }
    types = set(body.resource_types) if request.api_version > 0 else {ConfigResourceType.CLIENT_METRICS.value}
    if types - {kind.value for kind in names}:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    response = ListConfigResourcesResponse()
    return InParts(
        response,
        *(
            Each(of_kind, partial(_resource, kind), into=response.config_resources)
            for kind, of_kind in names.items()
            if not types or kind in types
        ),
    )


def _with_settings(view: ClusterView, kind: str) -> list[str]:
    stored = view.configs.get(kind, {})
    return sorted(name for name, config in stored.items() if config.values)


def _resource(kind: ConfigResourceType, _request: Request, name: object, _view: ClusterView) -> ConfigResource:
    return ConfigResource(resource_name=str(name), resource_type=kind)


HANDLER = ElementWise(MESSAGES, answer, access=(on_cluster(AclOperation.DESCRIBE_CONFIGS),))
