"""Defines Kafka's znodes of ACLs: the path and the encoding of each value, as those in znodes.py.

Values are byte for byte those of Kafka 3.6 (kafka.security.authorizer.AclEntry, kafka.zk.ZkData). Names that are no
name of a znode (a group `a/b`), which Kafka cannot keep in ZooKeeper, have nodes of Ottla's own, with the name quoted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import quote, unquote

from ottla.core.acls import (
    AccessControlEntry,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
    pascal_case,
)
from ottla.metadata_store.znodes import EXTENDED_ACLS, LITERAL_ACLS, QUOTED_ACLS, MalformedNode

PREFIXED_ACLS: Final = f"{EXTENDED_ACLS}/prefixed"
LITERAL_CHANGES: Final = "/kafka-acl-changes"
EXTENDED_CHANGES: Final = "/kafka-acl-extended-changes"
"""Their sequential children notify the brokers of Kafka of resources whose ACLs changed. Ottla's watch the ACLs."""
CHANGE_PREFIX: Final = "acl_changes_"

_TYPES: Final = {pascal_case(kind.name): kind for kind in ResourceType if kind > ResourceType.ANY}
_OPERATIONS: Final = {pascal_case(operation.name): operation for operation in AclOperation if operation > 1}
_PERMISSIONS: Final = {"Allow": PermissionType.ALLOW, "Deny": PermissionType.DENY}
_QUOTED_KINDS: Final = {"literal": PatternType.LITERAL, "prefixed": PatternType.PREFIXED}

_KAFKAS_DIRECTORIES: Final = (
    LITERAL_ACLS,
    *[f"{LITERAL_ACLS}/{name}" for name in _TYPES],
    LITERAL_CHANGES,
    EXTENDED_ACLS,
    PREFIXED_ACLS,
    *[f"{PREFIXED_ACLS}/{name}" for name in _TYPES],
    EXTENDED_CHANGES,
)
_OWN_DIRECTORIES: Final = (
    QUOTED_ACLS,
    *[f"{QUOTED_ACLS}/{kind}" for kind in _QUOTED_KINDS],
    *[f"{QUOTED_ACLS}/{kind}/{name}" for kind in _QUOTED_KINDS for name in _TYPES],
)


def acl_path(pattern: ResourcePattern) -> str:
    """Return the path of the ACLs of a pattern.

    >>> acl_path(ResourcePattern(ResourceType.TOPIC, PatternType.LITERAL, "web"))
    '/kafka-acl/Topic/web'
    >>> acl_path(ResourcePattern(ResourceType.GROUP, PatternType.PREFIXED, "a/b"))
    '/ottla_acls/prefixed/Group/a%2Fb'
    """
    resource_type, pattern_type, name = pattern
    kind = pascal_case(resource_type.name)
    if not _is_znode_name(name):
        return f"{QUOTED_ACLS}/{pattern_type.name.lower()}/{kind}/{_quoted(name)}"
    return f"{PREFIXED_ACLS if pattern_type == PatternType.PREFIXED else LITERAL_ACLS}/{kind}/{name}"


def directories(patterns: Iterable[ResourcePattern]) -> tuple[str, ...]:
    """Return the nodes that must exist before the ACLs of patterns are written, parents first: all that Kafka has."""
    is_any_quoted = any(not _is_znode_name(pattern.name) for pattern in patterns)
    return _KAFKAS_DIRECTORIES + (_OWN_DIRECTORIES if is_any_quoted else ())


def parse_acl_path(path: str) -> ResourcePattern | None:
    """Return the pattern whose ACLs are there; None for directories and for types of resources that do not exist.

    A type of pattern that is not known may be about every resource of the type: it is UNKNOWN.

    >>> parse_acl_path("/kafka-acl-extended/prefixed/Topic/we").name, parse_acl_path("/kafka-acl/Topic")
    ('we', None)
    """
    match path.split("/"):
        case ["", "kafka-acl", kind, name] if kind in _TYPES:
            return ResourcePattern(_TYPES[kind], PatternType.LITERAL, name)
        case ["", "kafka-acl-extended", "prefixed", kind, name] if kind in _TYPES:
            return ResourcePattern(_TYPES[kind], PatternType.PREFIXED, name)
        case ["", "ottla_acls", pattern, kind, name] if kind in _TYPES and pattern in _QUOTED_KINDS:
            return ResourcePattern(_TYPES[kind], _QUOTED_KINDS[pattern], unquote(name))
        case ["", "kafka-acl", kind, _, *_] if kind in _TYPES:
            return ResourcePattern(_TYPES[kind], PatternType.UNKNOWN, path)
        case ["", "kafka-acl-extended" | "ottla_acls", _, kind, _, *_] if kind in _TYPES:
            return ResourcePattern(_TYPES[kind], PatternType.UNKNOWN, path)
        case _:
            return None


def _is_znode_name(name: str) -> bool:
    """Return whether ZooKeeper takes a name as that of a node."""
    return (
        name not in {"", ".", ".."}
        and "/" not in name
        and all(
            " " <= character < "\x7f" or "\x9f" < character < "\ud800" or "\uf8ff" < character < "\ufff0"
            for character in name
        )
    )


def _quoted(name: str) -> str:
    return quote(name, safe="") if name.strip(".") else "%2E" * len(name)


def encode_acls(entries: Iterable[AccessControlEntry]) -> bytes:
    """Encode version 1."""
    value = {
        "version": 1,
        "acls": [
            {
                "principal": entry.principal,
                "permissionType": pascal_case(entry.permission_type.name),
                "operation": pascal_case(entry.operation.name),
                "host": entry.host,
            }
            for entry in entries
        ],
    }
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def decode_acls(path: str, value: bytes) -> tuple[AccessControlEntry, ...]:
    """Decode version 1; an empty value has no ACLs. Raises MalformedNode for all that is not understood.

    Where an entry cannot be understood, nothing is known of what is denied, so that one such entry is enough.
    """
    if not value:
        return ()
    try:
        parsed = json.loads(value.decode())
        if type(parsed["version"]) is not int or parsed["version"] != 1:
            raise ValueError(f"version {parsed['version']!r} is not known")
        return tuple(map(_entry, parsed["acls"]))
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise MalformedNode(path, repr(error)) from error


def _entry(parsed: Any) -> AccessControlEntry:
    """Decode an entry. Raises KeyError, TypeError or ValueError."""
    principal, host = parsed["principal"], parsed["host"]
    if not isinstance(principal, str) or ":" not in principal or not isinstance(host, str):
        raise ValueError(f"{parsed!r} has no principal or no host")
    return AccessControlEntry(principal, host, _OPERATIONS[parsed["operation"]], _PERMISSIONS[parsed["permissionType"]])


def change_path(pattern: ResourcePattern) -> str | None:
    """Return the path, up to its number, of a notification of brokers of Kafka; None if they cannot have such ACLs."""
    if not _is_znode_name(pattern.name):
        return None
    changes = EXTENDED_CHANGES if pattern.pattern_type == PatternType.PREFIXED else LITERAL_CHANGES
    return f"{changes}/{CHANGE_PREFIX}"


def encode_change(pattern: ResourcePattern) -> bytes:
    """Encode the notification of a change: `TOPIC:web` for a literal name, JSON of version 1 for others."""
    resource_type, pattern_type, name = pattern
    if pattern_type == PatternType.LITERAL:
        return f"{resource_type.name}:{name}".encode()
    value = {"version": 1, "resourceType": resource_type.name, "name": name, "patternType": pattern_type.name}
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
