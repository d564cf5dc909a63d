"""Names what access control is about, by Kafka's codes: operations, types of resources, patterns and permissions."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple


class AclOperation(IntEnum):
    """The operations of a client on a resource."""

    UNKNOWN = 0
    ANY = 1  # only in filters
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class ResourceType(IntEnum):
    """The types of resources."""

    UNKNOWN = 0
    ANY = 1  # only in filters
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """The ways in which the name of an ACL's resource is compared."""

    UNKNOWN = 0
    ANY = 1  # only in filters: every pattern
    MATCH = 2  # only in filters: every pattern that matches the name
    LITERAL = 3  # the name alone; `*` is every name
    PREFIXED = 4


class PermissionType(IntEnum):
    """The permissions: whether an ACL allows or denies."""

    UNKNOWN = 0
    ANY = 1  # only in filters
    DENY = 2
    ALLOW = 3


CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the only resource of the type CLUSTER."""
WILDCARD: Final = "*"
"""Every resource of a type as the name of a literal pattern, every user as `User:*`, every host."""


class ResourcePattern(NamedTuple):
    """The resources of a type that an ACL is about: one name, every name, or those that begin with a prefix."""

    resource_type: ResourceType
    pattern_type: PatternType
    name: str


class AccessControlEntry(NamedTuple):
    """The part of an ACL that is not its pattern: who may or must not do what."""

    principal: str  # TYPE:NAME
    host: str  # an address, a range (KIP-1276) or WILDCARD
    operation: AclOperation
    permission_type: PermissionType


class AclBinding(NamedTuple):
    """One ACL: a principal may or must not do something with a resource from a host."""

    resource_type: ResourceType
    pattern_type: PatternType
    resource_name: str
    principal: str  # TYPE:NAME
    host: str  # an address, a range (KIP-1276) or WILDCARD
    operation: AclOperation
    permission_type: PermissionType

    @property
    def is_concrete(self) -> bool:
        """Return whether it has no value that only filters have, and none that is unknown."""
        return (
            self.resource_type > ResourceType.ANY
            and self.pattern_type in {PatternType.LITERAL, PatternType.PREFIXED}
            and self.operation > AclOperation.ANY
            and self.permission_type in {PermissionType.DENY, PermissionType.ALLOW}
        )

    @property
    def pattern(self) -> ResourcePattern:
        """Return the resources that it is about."""
        return ResourcePattern(self.resource_type, self.pattern_type, self.resource_name)

    @property
    def entry(self) -> AccessControlEntry:
        """Return what it says about them."""
        return AccessControlEntry(self.principal, self.host, self.operation, self.permission_type)


def bind(pattern: ResourcePattern, entry: AccessControlEntry) -> AclBinding:
    """Return the ACL of a pattern and an entry."""
    return AclBinding(
        pattern.resource_type,
        pattern.pattern_type,
        pattern.name,
        entry.principal,
        entry.host,
        entry.operation,
        entry.permission_type,
    )


def pascal_case(name: str) -> str:
    """Return a name as Kafka's tools and its metadata in ZooKeeper write it.

    >>> pascal_case("CLUSTER_ACTION"), pascal_case("READ")
    ('ClusterAction', 'Read')
    """
    return "".join(word.capitalize() for word in name.split("_"))


class AclFilter(NamedTuple):
    """Chooses ACLs: those with which every field agrees that is not None or ANY."""

    resource_type: ResourceType
    pattern_type: PatternType
    resource_name: str | None
    principal: str | None
    host: str | None
    operation: AclOperation
    permission_type: PermissionType

    @property
    def is_about_every_entry(self) -> bool:
        """Return whether all ACLs of a pattern agree, if one does."""
        return (
            self.principal is None
            and self.host is None
            and self.operation == AclOperation.ANY
            and self.permission_type == PermissionType.ANY
        )

    def matches_pattern(self, pattern: ResourcePattern) -> bool:
        """Return whether it chooses among the ACLs of a pattern."""
        if self.resource_type not in {ResourceType.ANY, pattern.resource_type}:
            return False
        kind, name = pattern.pattern_type, self.resource_name
        if kind not in {PatternType.LITERAL, PatternType.PREFIXED}:
            return False
        if self.pattern_type not in {PatternType.ANY, PatternType.MATCH, kind}:
            return False
        if name is None or name == pattern.name:
            return True
        if self.pattern_type != PatternType.MATCH:
            return False
        return pattern.name == WILDCARD if kind == PatternType.LITERAL else name.startswith(pattern.name)

    def matches_entry(self, entry: AccessControlEntry) -> bool:
        """Return whether it chooses an ACL of a pattern that it matches."""
        return (
            (self.principal is None or self.principal == entry.principal)
            and (self.host is None or self.host == entry.host)
            and self.operation in {AclOperation.ANY, entry.operation}
            and self.permission_type in {PermissionType.ANY, entry.permission_type}
        )
