"""Checks what a client must be allowed to do with the settings of a resource, by the type of the resource."""

from __future__ import annotations

from typing import NamedTuple

from ottla.broker.requests.authorization import Access
from ottla.broker.requests.request import Request
from ottla.core.acls import CLUSTER_NAME, AclOperation, ResourceType
from ottla.core.settings import ConfigResourceType


class ConfigsAccess(NamedTuple):
    """An operation on the settings of each type of resource."""

    topic: Access
    group: Access
    cluster: Access

    def check(self, request: Request, resource_type: int, name: str) -> None:
        """Raise the error of a resource whose settings are denied. One of an unknown type has none."""
        match resource_type:
            case ConfigResourceType.TOPIC:
                access = self.topic
            case ConfigResourceType.GROUP:
                access = self.group
            case ConfigResourceType.BROKER | ConfigResourceType.BROKER_LOGGER | ConfigResourceType.CLIENT_METRICS:
                access, name = self.cluster, CLUSTER_NAME
            case _:
                return
        if access.denies(request, name):
            raise access.error


def _access(operation: AclOperation) -> ConfigsAccess:
    return ConfigsAccess(
        Access(operation, ResourceType.TOPIC, "each topic"),
        Access(operation, ResourceType.GROUP, "each group"),
        Access(operation, ResourceType.CLUSTER, "each broker, logger and client-metrics subscription"),
    )


DESCRIBE_CONFIGS = _access(AclOperation.DESCRIBE_CONFIGS)
ALTER_CONFIGS = _access(AclOperation.ALTER_CONFIGS)
