"""Names users who have one permission, lack one, have none or have all; all with the names that begin alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ottla.core.acls import CLUSTER_NAME, WILDCARD, AclBinding, AclOperation, PatternType, PermissionType, ResourceType

PREFIX = "p-"
"""Of the names that the permissions are about."""

OPERATIONS = {
    ResourceType.TOPIC: ("READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"),
    ResourceType.GROUP: ("READ", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"),
    ResourceType.CLUSTER: (
        "CREATE",
        "ALTER",
        "DESCRIBE",
        "CLUSTER_ACTION",
        "DESCRIBE_CONFIGS",
        "ALTER_CONFIGS",
        "IDEMPOTENT_WRITE",
    ),
    ResourceType.TRANSACTIONAL_ID: ("WRITE", "DESCRIBE"),
    ResourceType.DELEGATION_TOKEN: ("DESCRIBE",),
    ResourceType.USER: ("CREATE_TOKENS", "DESCRIBE_TOKENS"),
}
"""The operations that Kafka lets ACLs name."""


class User(NamedTuple):
    """A user and the ACLs about it: exactly one, everything, everything but one, or none."""

    name: str
    acls: tuple[AclBinding, ...]


def users() -> Iterator[User]:
    """Yield the users, of whom each but two has or lacks one permission."""
    yield User("nothing", ())
    yield User("everything", tuple(_everything("everything")))
    for resource, operations in OPERATIONS.items():
        for operation in operations:
            name = f"only-{resource.name}-{operation}"
            yield User(name, (_acl(name, resource, AclOperation[operation]),))
            name = f"all-but-{resource.name}-{operation}"
            denied = _acl(name, resource, AclOperation[operation], PermissionType.DENY)
            yield User(name, (*_everything(name), denied))


def _everything(user: str) -> Iterator[AclBinding]:
    for resource in OPERATIONS:
        yield _acl(user, resource, AclOperation.ALL)


def _acl(
    user: str, resource: ResourceType, operation: AclOperation, permission: PermissionType = PermissionType.ALLOW
) -> AclBinding:
    name = {
        ResourceType.CLUSTER: CLUSTER_NAME,
        ResourceType.DELEGATION_TOKEN: WILDCARD,
        ResourceType.USER: f"User:{PREFIX}",
    }.get(resource, PREFIX)
    return AclBinding(
        resource,
        PatternType.PREFIXED if name.endswith(PREFIX) else PatternType.LITERAL,
        name,
        f"User:{user}",
        "*",
        operation,
        permission,
    )
