"""Parses the options of `ottla acl`, which are named as those of kafka-acls and rpk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

from ottla.cli.errors import usage_error
from ottla.client.acl_admin import OPERATIONS, AclFilter
from ottla.core.acls import CLUSTER_NAME, AclOperation, PatternType, ResourceType

Resource = tuple[ResourceType, str]
Right = tuple[ResourceType, PatternType, str, AclOperation]
_OPTIONS = {
    ResourceType.TOPIC: "--topic",
    ResourceType.GROUP: "--group",
    ResourceType.CLUSTER: "--cluster",
    ResourceType.TRANSACTIONAL_ID: "--transactional-id",
    ResourceType.DELEGATION_TOKEN: "--delegation-token",
    ResourceType.USER: "--user-principal",
}
_FOR_CREATION = {"literal": PatternType.LITERAL, "prefixed": PatternType.PREFIXED}
_FOR_FILTERS = {**_FOR_CREATION, "any": PatternType.ANY, "match": PatternType.MATCH}


def operation_names() -> list[str]:
    """Return the names of the operations, as options have them."""
    return [_name(operation) for operation in AclOperation if operation >= AclOperation.ALL]


def operations_from(texts: Sequence[str] | None) -> list[AclOperation]:
    """Parse --operation; `DescribeConfigs` and `describe-configs` are the same. Raises CommandFailed.

    >>> operations_from(["Read", "describe-configs,AlterConfigs"])
    [<AclOperation.READ: 3>, <AclOperation.DESCRIBE_CONFIGS: 10>, <AclOperation.ALTER_CONFIGS: 11>]
    """
    known = {_plain(name): AclOperation[name.upper().replace("-", "_")] for name in operation_names()}
    operations = []
    for text in (part.strip() for listed in texts or [] for part in listed.split(",")):
        if _plain(text) not in known:
            raise usage_error(f"--operation {text}: no such operation", f"one of {', '.join(operation_names())}")
        operations.append(known[_plain(text)])
    return list(dict.fromkeys(operations))


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def pattern_type_from(text: str, *, is_filter: bool) -> PatternType:
    """Parse --resource-pattern-type. Raises CommandFailed."""
    known = _FOR_FILTERS if is_filter else _FOR_CREATION
    if text.lower() not in known:
        raise usage_error(f"--resource-pattern-type {text}: write {', '.join(known)}")
    return known[text.lower()]


def principal_from(text: str) -> str:
    """Return a principal; a name alone is a user's. Raises CommandFailed for an empty name.

    >>> principal_from("alice"), principal_from("Group:admins"), principal_from("*")
    ('User:alice', 'Group:admins', 'User:*')
    """
    kind, colon, name = text.partition(":")
    if not text or (colon and not (kind and name)):
        raise usage_error(f"{text!r} is not a principal; write User:NAME")
    return text if colon else f"User:{text}"


def resources_from(
    topics: Sequence[str] | None,
    groups: Sequence[str] | None,
    transactional_ids: Sequence[str] | None,
    tokens: Sequence[str] | None,
    users: Sequence[str] | None,
    *,
    on_cluster: bool,
) -> list[Resource]:
    """Return the resources that the options name."""
    return [
        *((ResourceType.TOPIC, name) for name in topics or []),
        *((ResourceType.GROUP, name) for name in groups or []),
        *([(ResourceType.CLUSTER, CLUSTER_NAME)] if on_cluster else []),
        *((ResourceType.TRANSACTIONAL_ID, name) for name in transactional_ids or []),
        *((ResourceType.DELEGATION_TOKEN, name) for name in tokens or []),
        *((ResourceType.USER, principal_from(name)) for name in users or []),
    ]


def filter_resources(resources: Iterable[Resource], pattern_type: str) -> list[AclFilter]:
    """Return the filters of resources; one that matches all without any. Raises CommandFailed."""
    pattern = pattern_type_from(pattern_type, is_filter=True)
    named = [AclFilter(resource_type=kind, resource_name=name, pattern_type=pattern) for kind, name in resources]
    return named or [AclFilter(pattern_type=PatternType.ANY if pattern is PatternType.MATCH else pattern)]


def rights_from(resources: Sequence[Resource], pattern: PatternType, operations: Sequence[AclOperation]) -> list[Right]:
    """Return every operation on every resource. Raises CommandFailed for one that means nothing there."""
    for (kind, _), operation in product(resources, operations):
        if operation is not AclOperation.ALL and operation not in OPERATIONS[kind]:
            raise usage_error(
                f"{_OPTIONS[kind]}: the operation {_name(operation)} means nothing there",
                f"one of {', '.join(map(_name, OPERATIONS[kind]))}, all",
            )
    return [
        (kind, _pattern_of(kind, pattern), name, operation)
        for (kind, name), operation in product(resources, operations)
    ]


def _name(operation: AclOperation) -> str:
    return operation.name.lower().replace("_", "-")


def _pattern_of(kind: ResourceType, pattern: PatternType) -> PatternType:
    """Return the pattern for a type; there is one cluster, and it is meant by its name."""
    return PatternType.LITERAL if kind is ResourceType.CLUSTER else pattern


def shortcut_rights(
    resources: Sequence[Resource], pattern: PatternType, *, producer: bool, consumer: bool
) -> list[Right]:
    """Return what --producer and --consumer stand for, as in kafka-acls. Raises CommandFailed."""
    kinds = {kind for kind, _ in resources}
    options = " ".join(name for name, given in (("--producer", producer), ("--consumer", consumer)) if given)
    needed = {ResourceType.TOPIC} | ({ResourceType.GROUP} if consumer else set())
    optional = {ResourceType.TRANSACTIONAL_ID} if producer else set()
    if needed - kinds:
        raise usage_error(f"{options} needs {' and '.join(_OPTIONS[kind] for kind in sorted(needed))}")
    if extra := kinds - needed - optional:
        raise usage_error(f"{options} cannot be used with {_OPTIONS[min(extra)]}")
    operations: dict[ResourceType, list[AclOperation]] = {kind: [] for kind in kinds}
    if producer:
        operations[ResourceType.TOPIC] += [AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE]
        if ResourceType.TRANSACTIONAL_ID in kinds:
            operations[ResourceType.TRANSACTIONAL_ID] += [AclOperation.WRITE, AclOperation.DESCRIBE]
    if consumer:
        operations[ResourceType.TOPIC] += [AclOperation.READ, AclOperation.DESCRIBE]
        operations[ResourceType.GROUP].append(AclOperation.READ)
    return [
        (kind, pattern, name, operation) for kind, name in resources for operation in dict.fromkeys(operations[kind])
    ]
