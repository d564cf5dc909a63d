"""Reads ACLs and filters from requests. The rules and the messages are Kafka 4.4's (AclApis, AclControlManager)."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Protocol, TypeVar

from ottla.core.acls import (
    CLUSTER_NAME,
    WILDCARD,
    AclBinding,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from ottla.core.errors import InvalidRequest, KafkaError
from ottla.security.host_patterns import range_problem
from ottla.wire.errors import MalformedRequest
from ottla.wire.generated.create_acls import AclCreation

EnumT = TypeVar("EnumT", bound=IntEnum)


class FilterFields(Protocol):
    """The fields of a filter, in DescribeAcls the request itself."""

    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


def check_creation(creation: AclCreation) -> None:
    """Raise MalformedRequest for the code 0: Kafka closes the connection."""
    if 0 in {creation.resource_type, creation.resource_pattern_type, creation.operation, creation.permission_type}:
        raise MalformedRequest("an ACL to create has a field that is UNKNOWN")


def check_filter(fields: FilterFields) -> None:
    """Raise MalformedRequest for the code 0: Kafka closes the connection."""
    if 0 in {fields.resource_type_filter, fields.pattern_type_filter, fields.operation, fields.permission_type}:
        raise MalformedRequest("a filter of ACLs has a field that is UNKNOWN")


def filter_of(fields: FilterFields) -> AclFilter:
    """Return the filter of a request; codes that are not known are UNKNOWN."""
    return AclFilter(
        _known(ResourceType, fields.resource_type_filter),
        _known(PatternType, fields.pattern_type_filter),
        fields.resource_name_filter,
        fields.principal_filter,
        fields.host_filter,
        _known(AclOperation, fields.operation),
        _known(PermissionType, fields.permission_type),
    )


def problem_of_filter(chosen: AclFilter) -> KafkaError | None:
    """Return why nothing can be deleted by a filter."""
    if not chosen.resource_type or not chosen.pattern_type:
        return InvalidRequest("Unknown patternFilter.")
    if not chosen.operation or not chosen.permission_type:
        return InvalidRequest("Unknown entryFilter.")
    return None


def binding_of(creation: AclCreation) -> AclBinding:
    """Return the ACL of a creation; codes that are not known are UNKNOWN."""
    return AclBinding(
        _known(ResourceType, creation.resource_type),
        _known(PatternType, creation.resource_pattern_type),
        creation.resource_name,
        creation.principal,
        creation.host,
        _known(AclOperation, creation.operation),
        _known(PermissionType, creation.permission_type),
    )


def has_filter_value(binding: AclBinding) -> bool:
    """Return whether an ACL has a value that only filters may have: Kafka creates no ACL of such a request."""
    return (
        binding.resource_type == ResourceType.ANY
        or binding.pattern_type in {PatternType.ANY, PatternType.MATCH}
        or binding.operation == AclOperation.ANY
        or binding.permission_type == PermissionType.ANY
    )


def problem_of(binding: AclBinding) -> KafkaError | None:
    """Return why an ACL cannot be created."""
    if binding.resource_type == ResourceType.CLUSTER and binding.resource_name != CLUSTER_NAME:
        return InvalidRequest(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not binding.resource_name:
        return InvalidRequest("Invalid empty resource name")
    for field, value in _FIELDS.items():
        if not getattr(binding, field):
            return InvalidRequest(f"Invalid {value} UNKNOWN")
    principal, host = binding.principal, binding.host
    if ":" not in principal:
        return InvalidRequest(
            f"Could not parse principal from `{principal}` (no colon is present separating the principal type from "
            "the principal name)"
        )
    if not host:
        return InvalidRequest("Host pattern cannot be null or empty")
    if host != WILDCARD and "/" in host and (why := range_problem(host)):
        return InvalidRequest(f"Invalid CIDR notation '{host}': {why}")
    return None


_FIELDS: Final = {
    "resource_type": "resourceType",
    "pattern_type": "patternType",
    "operation": "operation",
    "permission_type": "permissionType",
}


def _known(kind: type[EnumT], code: int) -> EnumT:
    try:
        return kind(code)
    except ValueError:
        return kind(0)
