"""A client that asks what to push of its metrics, and pushes it, through the handlers."""

from __future__ import annotations

import uuid
from typing import Any

from ottla.core.error_codes import ErrorCode
from ottla.testing.cluster import BrokerHandlers
from ottla.testing.requests import answer_to, connection_without_socket, request_to
from ottla.wire.generated import incremental_alter_configs
from ottla.wire.generated.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from ottla.wire.generated.push_telemetry import PushTelemetryRequest

NO_ID = uuid.UUID(int=0)
NONE = ErrorCode.NONE


class Client:
    """A client on a connection of its own."""

    def __init__(self, broker: BrokerHandlers, client_id: str = "app", instance_id: uuid.UUID = NO_ID) -> None:
        self._services, self._client_id, self.instance_id = broker.services, client_id, instance_id
        self.connection = connection_without_socket(host="10.1.2.3")
        self.connection.software = ("librdkafka", "2.16.0")
        self.subscription_id = 0

    async def get(self) -> Any:
        """Ask what to push."""
        request = request_to(self._services, 0, connection=self.connection, client_id=self._client_id)
        body = GetTelemetrySubscriptionsRequest(client_instance_id=self.instance_id)
        answer = await answer_to(request, "get_telemetry_subscriptions", body)
        if answer.error_code == NONE:
            self.instance_id, self.subscription_id = answer.client_instance_id, answer.subscription_id
        return answer

    async def push(self, data: bytes = b"", codec: int = 0, **fields: Any) -> ErrorCode:
        """Push; return the error."""
        wanted = {"client_instance_id": self.instance_id, "subscription_id": self.subscription_id, **fields}
        body = PushTelemetryRequest(compression_type=codec, metrics=data, **wanted)
        request = request_to(self._services, 0, connection=self.connection, client_id=self._client_id)
        return ErrorCode((await answer_to(request, "push_telemetry", body)).error_code)


async def subscribe(broker: BrokerHandlers, name: str = "s", **settings: str | None) -> tuple[ErrorCode, str | None]:
    """Set or delete settings of a subscription."""
    changes = [
        incremental_alter_configs.AlterableConfig(
            name=key.replace("_", "."), config_operation=0 if value is not None else 1, value=value
        )
        for key, value in settings.items()
    ]
    resource = incremental_alter_configs.AlterConfigsResource(resource_type=16, resource_name=name, configs=changes)
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])
    (answer,) = (await broker.call("incremental_alter_configs", 1, request)).responses
    return ErrorCode(answer.error_code), answer.error_message
