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

from ottla.broker.config_admin import ConfigResourceChange, alter_configs
from ottla.broker.context import RequestContext
from ottla.broker.handler_helpers import error_fields
from ottla.wire.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


async def handle(ctx: RequestContext, request: IncrementalAlterConfigsRequest) -> IncrementalAlterConfigsResponse:
    """Alter each entity separately."""
    each_of = ctx.services.slices.each
    wanted = [
        ConfigResourceChange(
            each.resource_type,
            each.resource_name,
            [(config.config_operation, config.name, config.value) async for config in each_of(each.configs)],
        )
        async for each in each_of(request.resources)
    ]
    outcomes = await alter_configs(ctx, wanted, replaces_all=False, validate_only=request.validate_only)
    responses = []
    async for each, outcome in each_of(zip(wanted, outcomes, strict=True)):
        code, message = error_fields(outcome)
        responses.append(
            AlterConfigsResourceResponse(
                error_code=code, error_message=message, resource_type=each.resource_type, resource_name=each.name
            )
        )
    return IncrementalAlterConfigsResponse(responses=responses)
