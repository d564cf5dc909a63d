"""Lists, creates and deletes ACLs, as Kafka's Admin client does (KIP-140, KIP-290)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import TYPE_CHECKING

from ottla.client.cluster import ANY_BROKER, Cluster
from ottla.client.errors import error_or_none, raise_for
from ottla.core.acls import AclBinding, AclOperation, PatternType, PermissionType, ResourceType
from ottla.core.errors import KafkaError
from ottla.wire.apis import ApiKey

if TYPE_CHECKING:
    from ottla.wire.generated.create_acls import CreateAclsResponse
    from ottla.wire.generated.delete_acls import DeleteAclsResponse
    from ottla.wire.generated.describe_acls import DescribeAclsResponse

_Op = AclOperation
OPERATIONS = MappingProxyType(
    {
        ResourceType.TOPIC: (
            *(_Op.READ, _Op.WRITE, _Op.CREATE, _Op.DESCRIBE, _Op.DELETE, _Op.ALTER),
            *(_Op.DESCRIBE_CONFIGS, _Op.ALTER_CONFIGS),
        ),
        ResourceType.GROUP: (_Op.READ, _Op.DESCRIBE, _Op.DELETE, _Op.DESCRIBE_CONFIGS, _Op.ALTER_CONFIGS),
        ResourceType.CLUSTER: (
            *(_Op.CREATE, _Op.CLUSTER_ACTION, _Op.DESCRIBE_CONFIGS, _Op.ALTER_CONFIGS),
            *(_Op.IDEMPOTENT_WRITE, _Op.ALTER, _Op.DESCRIBE),
        ),
        ResourceType.TRANSACTIONAL_ID: (_Op.DESCRIBE, _Op.WRITE, _Op.TWO_PHASE_COMMIT),
        ResourceType.DELEGATION_TOKEN: (_Op.DESCRIBE,),
        ResourceType.USER: (_Op.CREATE_TOKENS, _Op.DESCRIBE_TOKENS),
    }
)
"""The operations that mean something for a type of resource, besides ALL. Brokers accept every one."""


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Selects ACLs; by default every one. None matches every text."""

    resource_type: ResourceType = ResourceType.ANY
    pattern_type: PatternType = PatternType.ANY
    resource_name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission_type: PermissionType = PermissionType.ANY

    @classmethod
    def of(cls, binding: AclBinding) -> AclFilter:
        """Return the filter that matches this ACL alone."""
        return cls(**binding._asdict())


async def list_acls(cluster: Cluster, filters: Iterable[AclFilter] = (AclFilter(),)) -> list[AclBinding]:
    """List the ACLs that any of the filters matches, sorted. Raises the broker's `KafkaError`."""
    from ottla.wire.generated.describe_acls import DescribeAclsRequest

    bindings: set[AclBinding] = set()
    for acl_filter in filters:
        ask = DescribeAclsRequest(
            resource_type_filter=acl_filter.resource_type,
            resource_name_filter=acl_filter.resource_name,
            pattern_type_filter=acl_filter.pattern_type,
            principal_filter=acl_filter.principal,
            host_filter=acl_filter.host,
            operation=acl_filter.operation,
            permission_type=acl_filter.permission_type,
        )
        answer: DescribeAclsResponse = await cluster.request(ANY_BROKER, ApiKey.DESCRIBE_ACLS, ask)
        raise_for(answer.error_code, answer.error_message)
        for resource in answer.resources:
            where = (ResourceType(resource.resource_type), PatternType(resource.pattern_type), resource.resource_name)
            bindings.update(
                AclBinding(*where, a.principal, a.host, AclOperation(a.operation), PermissionType(a.permission_type))
                for a in resource.acls
            )
    return sorted(bindings, key=lambda acl: (acl.principal, acl.resource_type, acl.resource_name, acl))


async def create_acls(cluster: Cluster, bindings: Sequence[AclBinding]) -> list[tuple[AclBinding, KafkaError | None]]:
    """Create ACLs; one that exists stays as it is."""
    from ottla.wire.generated.create_acls import AclCreation, CreateAclsRequest

    creations = [
        AclCreation(
            resource_type=acl.resource_type,
            resource_name=acl.resource_name,
            resource_pattern_type=acl.pattern_type,
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation,
            permission_type=acl.permission_type,
        )
        for acl in bindings
    ]
    ask = CreateAclsRequest(creations=creations)
    answer: CreateAclsResponse = await cluster.request(ANY_BROKER, ApiKey.CREATE_ACLS, ask)
    return [
        (acl, error_or_none(result.error_code, result.error_message))
        for acl, result in zip(bindings, answer.results, strict=True)
    ]


async def delete_acls(cluster: Cluster, bindings: Sequence[AclBinding]) -> list[tuple[AclBinding, KafkaError | None]]:
    """Delete exactly these ACLs; one that does not exist any more counts as deleted."""
    from ottla.wire.generated.delete_acls import DeleteAclsFilter, DeleteAclsRequest

    filters = [
        DeleteAclsFilter(
            resource_type_filter=acl.resource_type,
            resource_name_filter=acl.resource_name,
            pattern_type_filter=acl.pattern_type,
            principal_filter=acl.principal,
            host_filter=acl.host,
            operation=acl.operation,
            permission_type=acl.permission_type,
        )
        for acl in bindings
    ]
    ask = DeleteAclsRequest(filters=filters)
    answer: DeleteAclsResponse = await cluster.request(ANY_BROKER, ApiKey.DELETE_ACLS, ask)
    outcomes = []
    for acl, result in zip(bindings, answer.filter_results, strict=True):
        errors = [(result.error_code, result.error_message)]
        errors += [(matching.error_code, matching.error_message) for matching in result.matching_acls]
        failed = [error for error in (error_or_none(code, message) for code, message in errors) if error is not None]
        outcomes.append((acl, failed[0] if failed else None))
    return outcomes


def bindings_of(
    principals: Iterable[tuple[PermissionType, str, str]],
    rights: Iterable[tuple[ResourceType, PatternType, str, AclOperation]],
) -> list[AclBinding]:
    """Return an ACL for each principal, given with permission and host, and each right, given with its resource."""
    return [
        AclBinding(resource_type, pattern_type, name, principal, host, operation, permission)
        for (permission, principal, host), (resource_type, pattern_type, name, operation) in product(
            list(principals), list(rights)
        )
    ]
