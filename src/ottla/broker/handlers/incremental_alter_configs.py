"""IncrementalAlterConfigs (key 44), versions 0 to 1.

What it does
  Sets, deletes, appends to and takes from single settings of topics, of this broker, of all brokers, of groups and of
  client-metrics subscriptions, and sets the level of loggers (until the broker stops). All changes of one entity happen
  or none of them; an error of one entity does not affect the others. Changes of a broker's settings apply at once.

What it does not do
  Change settings that need a restart: they are refused, as in Kafka.

Versions
  v1   flexible encoding
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from ottla.broker.config_admin import Alteration, AlteredResource, RequestedChange, alter_configs, encode_secrets
from ottla.broker.handler_parts.admin_requests import error_fields
from ottla.broker.handler_parts.configs_access import ALTER_CONFIGS
from ottla.broker.requests.elements import Each, InParts, collect
from ottla.broker.requests.handler import ElementWiseAfter
from ottla.broker.requests.request import Request
from ottla.metadata_store.cluster_view import ClusterView
from ottla.wire.apis import ApiKey
from ottla.wire.generated.incremental_alter_configs import (
    MESSAGES,
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


async def alter(request: Request, body: IncrementalAlterConfigsRequest) -> list[AlteredResource]:
    """Alter each entity separately; return each with its error."""
    resources: list[AlteredResource] = []
    await encode_secrets(request, body.resources)
    await collect(request, Each(body.resources, _resource, into=resources))
    alteration = Alteration(resources, ApiKey.INCREMENTAL_ALTER_CONFIGS, partial(_message_of, body), body.validate_only)
    await alter_configs(request, alteration)
    return resources


def _resource(_request: Request, resource: AlterConfigsResource, _view: ClusterView) -> InParts[AlteredResource]:
    altered = AlteredResource(resource.resource_type, resource.resource_name)
    return InParts(altered, Each(resource.configs, _change, into=altered.requested))


def _change(_request: Request, config: AlterableConfig, _view: ClusterView) -> RequestedChange:
    return RequestedChange(config.config_operation, config.name, config.value)


def _message_of(body: IncrementalAlterConfigsRequest, places: Iterable[int]) -> IncrementalAlterConfigsRequest:
    return IncrementalAlterConfigsRequest(
        resources=[body.resources[place] for place in places], validate_only=body.validate_only
    )


def answer(
    _request: Request, _body: IncrementalAlterConfigsRequest, resources: list[AlteredResource], _view: ClusterView
) -> InParts[IncrementalAlterConfigsResponse]:
    """Return the error of each entity."""
    response = IncrementalAlterConfigsResponse()
    return InParts(response, Each(resources, _response, into=response.responses))


def _response(_request: Request, resource: AlteredResource, _view: ClusterView) -> AlterConfigsResourceResponse:
    code, message = error_fields(resource.error)
    return AlterConfigsResourceResponse(
        error_code=code, error_message=message, resource_type=resource.resource_type, resource_name=resource.name
    )


HANDLER = ElementWiseAfter(MESSAGES, first=alter, answer=answer, access=ALTER_CONFIGS)
