"""AlterConfigs (key 33), versions 0 to 2.

What it does
  Replaces all settings of each entity by those given: what is not named goes back to its default. Topics, this broker,
  all brokers, groups and client-metrics subscriptions; an error of one entity does not affect the others.

What it does not do
  Change settings that need a restart: they are refused, as in Kafka. Change loggers: IncrementalAlterConfigs does.

Versions
  v2   flexible encoding. Deprecated by Kafka since 2.3 in favour of IncrementalAlterConfigs, but kafkajs uses it.
"""

from __future__ import annotations

from ottla.broker.config_admin import ConfigResourceChange, alter_configs
from ottla.broker.context import RequestContext
from ottla.broker.handler_helpers import error_fields
from ottla.controller.config_changes import ConfigOp
from ottla.wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResourceResponse, AlterConfigsResponse


async def handle(ctx: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    """Alter each entity separately."""
    each_of = ctx.services.slices.each
    wanted = [
        ConfigResourceChange(
            each.resource_type,
            each.resource_name,
            [(ConfigOp.SET, config.name, config.value) async for config in each_of(each.configs)],
        )
        async for each in each_of(request.resources)
    ]
    outcomes = await alter_configs(ctx, wanted, replaces_all=True, validate_only=request.validate_only)
    responses = []
    async for each, outcome in each_of(zip(wanted, outcomes, strict=True)):
        code, message = error_fields(outcome)
        responses.append(
            AlterConfigsResourceResponse(
                error_code=code, error_message=message, resource_type=each.resource_type, resource_name=each.name
            )
        )
    return AlterConfigsResponse(responses=responses)
