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

from ottla.broker.config_admin import altered_resources
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.wire.messages.incremental_alter_configs import (
    MESSAGES,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


async def handle(request: Request, body: IncrementalAlterConfigsRequest) -> IncrementalAlterConfigsResponse:
    """Alter each entity separately."""
    responses = await altered_resources(request, body, AlterConfigsResourceResponse, replaces_all=False)
    return IncrementalAlterConfigsResponse(responses=responses)


HANDLER = Awaited(MESSAGES, handle)
