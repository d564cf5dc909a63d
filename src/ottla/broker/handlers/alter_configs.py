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

from ottla.broker.config_admin import altered_resources
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.wire.messages.alter_configs import (
    MESSAGES,
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


async def handle(request: Request, body: AlterConfigsRequest) -> AlterConfigsResponse:
    """Alter each entity separately."""
    responses = await altered_resources(request, body, AlterConfigsResourceResponse, replaces_all=True)
    return AlterConfigsResponse(responses=responses)


HANDLER = Awaited(MESSAGES, handle)
