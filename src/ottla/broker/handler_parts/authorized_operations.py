"""Determines the operations that a client may perform on a resource, as responses have them (KIP-430)."""

from __future__ import annotations

from typing import Final

from ottla.broker.requests.authorization import Access
from ottla.broker.requests.request import Request
from ottla.core.acls import CLUSTER_NAME, AclOperation, ResourceType

OPERATIONS_OMITTED: Final = -2147483648
"""As a set of authorized operations: not requested by the client."""

OPERATIONS_WORK: Final = 3
"""Units of work of the operations of one resource."""

DESCRIBE_CLUSTER: Final = Access(
    AclOperation.DESCRIBE,
    ResourceType.CLUSTER,
    "the cluster, where its authorized operations are requested",
    refusal="the authorized operations are 0",
)

_OPERATIONS: Final = {
    ResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        AclOperation.READ,
        AclOperation.DELETE,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    ),
}
"""The operations that are of use on a resource of each type."""

_ALL: Final = {resource: sum(1 << operation for operation in of_type) for resource, of_type in _OPERATIONS.items()}


def authorized_operations(request: Request, resource: ResourceType, name: str) -> int:
    """Return the operations that the client may perform: bit `1 << code` for each."""
    authorizer = request.authorizer
    if authorizer is None:
        return _ALL[resource]
    return sum(
        1 << operation
        for operation in _OPERATIONS[resource]
        if authorizer.is_allowed(request, operation, resource, name, log_if_denied=False)
    )


def cluster_operations(request: Request) -> int:
    """Return the operations on the cluster: none for a client that may not describe it."""
    if DESCRIBE_CLUSTER.denies(request, CLUSTER_NAME):
        return 0
    return authorized_operations(request, ResourceType.CLUSTER, CLUSTER_NAME)


NO_AUTHORIZER: Final = "No Authorizer is configured."
"""Kafka's own words, by which clients recognise a cluster without access control."""
