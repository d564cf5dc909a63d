"""Decides by ACLs what a client may do, as `StandardAuthorizer` of Apache Kafka 4.4 does.

A decision is made of the ACLs of the literal name, of `*` and of every prefix of the name, for the principal of the
client, its groups (`Group:NAME`) and `User:*`, and for its host:

- super users may do everything;
- one DENY that matches is enough, whatever else is allowed;
- then one ALLOW is needed. READ, WRITE, DELETE and ALTER allow DESCRIBE too, ALTER_CONFIGS allows DESCRIBE_CONFIGS; a
  DENY denies no other operation than its own. ALL is every operation;
- `allow.everyone.if.no.acl.found` is asked only if no ACL at all is about the resource.

Everything about resources whose ACLs cannot be read is denied (metadata_store/acl_index.py).

Every decision is made from the current snapshot. Those of one snapshot are kept, in a bounded memory, until another
has other ACLs.
"""

from __future__ import annotations

from typing import Final

from ottla.core.acls import WILDCARD, AccessControlEntry, AclOperation, PatternType, PermissionType, ResourceType
from ottla.core.events import EventKind, EventLog
from ottla.metadata_store.acl_index import NO_ACLS, UNREADABLE, AclIndex, ResourceAcls
from ottla.metadata_store.metadata_cache import MetadataCache
from ottla.net.identity import USER, ConnectionIdentity
from ottla.security.audit_log import AuditedRequest, AuditLog
from ottla.security.config import AuthorizerConfig
from ottla.security.host_patterns import host_matches

DECISIONS_MAX: Final = 20_000
"""Decisions kept; when there are more, all are made again."""
_KEPT_NAME_MAX: Final = 249
"""The longest name of a topic. Names of groups may be longer than memory for decisions should be."""

_EVERY_USER: Final = f"{USER}:{WILDCARD}"
_ANY_NAME: Final = "hardcode"
"""The name for which Kafka asks whether something is allowed with every name: super users are recognised by it."""
_IMPLYING: Final = {
    AclOperation.DESCRIBE: frozenset(
        {AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER, AclOperation.DESCRIBE}
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS}),
}
"""The operations by whose ALLOW another operation is allowed."""
_Key = tuple[ConnectionIdentity, str, AclOperation, ResourceType, str | None]


class AclAuthorizer:
    """Decides what clients may do."""

    def __init__(
        self,
        cluster: MetadataCache,
        config: AuthorizerConfig,
        audit_log: AuditLog | None = None,
        events: EventLog | None = None,
    ) -> None:
        self._cluster = cluster
        self._audit_log, self._events = audit_log, events
        self._super_users = config.super_user_principals
        self._allows_without_acl = config.allow_everyone_if_no_acl_found
        self._index: AclIndex = NO_ACLS
        self._decisions: dict[_Key, bool] = {}

    def is_allowed(
        self,
        request: AuditedRequest,
        operation: AclOperation,
        resource: ResourceType,
        name: str,
        *,
        log_if_denied: bool = True,
    ) -> bool:
        """Return whether the client may do this with the resource of this name.

        `log_if_denied` is false where the client did not name the resource, or another operation would do as well.
        """
        index = self._cluster.current.acls
        if index is not self._index:
            self._index = index
            self._decisions.clear()
        key = (request.identity, request.client_host, operation, resource, name)
        decision = self._decisions.get(key)
        if decision is None:
            decision = self._decide(request.identity, request.client_host, operation, resource, name)
            if len(name) <= _KEPT_NAME_MAX:
                self._keep(key, decision)
        if not decision and log_if_denied and self._events is not None:
            record_denied(self._events, request, operation, resource, name)
        audit_log = self._audit_log
        if audit_log is not None:
            if decision:
                if audit_log.logs_allowed:
                    audit_log.allowed(request, operation, resource, name)
            elif log_if_denied:
                audit_log.denied(request, operation, resource, name)
        return decision

    def is_super_user(self, identity: ConnectionIdentity) -> bool:
        """Return whether a client may do everything, whatever the ACLs say."""
        return not self._super_users.isdisjoint(principals_of(identity))

    def is_allowed_for_any(self, request: AuditedRequest, operation: AclOperation, resource: ResourceType) -> bool:
        """Return whether the client may do this with any resource of the type (Kafka's `authorizeByResourceType`).

        ALLOW entries count for their own operation and for ALL only. A prefix or name is passed over if a DENY of
        itself or of a shorter prefix covers it.
        """
        index = self._cluster.current.acls
        if index is not self._index:
            self._index = index
            self._decisions.clear()
        key = (request.identity, request.client_host, operation, resource, None)
        decision = self._decisions.get(key)
        if decision is None:
            decision = self._decide_for_any(request.identity, request.client_host, operation, resource)
            self._keep(key, decision)
        return decision

    def _keep(self, key: _Key, decision: bool) -> None:
        if len(self._decisions) >= DECISIONS_MAX:
            self._decisions.clear()
        self._decisions[key] = decision

    def _decide(
        self, identity: ConnectionIdentity, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        if self.is_super_user(identity):
            return True
        principals = principals_of(identity)
        resource_acls = self._index.about(resource_type, name)
        if not resource_acls:
            return self._allows_without_acl
        implying = _IMPLYING.get(operation)
        is_allowed = False
        for acls in resource_acls:
            if acls.is_unreadable:
                return False
            for entry in _entries(acls, principals, host):
                is_own = entry.operation in {operation, AclOperation.ALL}
                if entry.permission_type != PermissionType.ALLOW:
                    if is_own:
                        return False
                elif is_own or (implying is not None and entry.operation in implying):
                    is_allowed = True
        return is_allowed

    def _decide_for_any(
        self, identity: ConnectionIdentity, host: str, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        if self._decide(identity, host, operation, resource_type, _ANY_NAME):
            return True
        index = self._index
        allowed: set[tuple[PatternType, str]] = set()
        denied = {(kind, name) for kind, name, _ in index.of_principal(resource_type, UNREADABLE)}
        for principal in principals_of(identity):
            for kind, name, acls in index.of_principal(resource_type, principal):
                for entry in acls.by_principal[principal]:
                    if entry.operation in {operation, AclOperation.ALL} and host_matches(entry.host, host):
                        allows = entry.permission_type == PermissionType.ALLOW
                        (allowed if allows else denied).add((kind, name))
        if (PatternType.LITERAL, WILDCARD) in denied or any(kind == PatternType.UNKNOWN for kind, _ in denied):
            return False
        if (PatternType.LITERAL, WILDCARD) in allowed:
            return True
        return any(
            (kind, name) not in denied
            and not any((PatternType.PREFIXED, name[:end]) in denied for end in range(1, len(name) + 1))
            for kind, name in allowed
        )


def record_denied(
    events: EventLog, request: AuditedRequest, operation: AclOperation, resource: ResourceType, name: str
) -> None:
    """Record that a client was denied an operation."""
    identity = request.identity
    principal = f"{identity.principal_type}:{identity.principal_name}"
    events.record(
        EventKind.REFUSED,
        f"{principal} from {request.client_host} may not {operation.name} {resource.name.lower()} {name}: no ACL "
        "allows it",
        topic=name if resource is ResourceType.TOPIC else "",
        group=name if resource is ResourceType.GROUP else "",
        client=request.client_id or "",
        error=f"{resource.name}_AUTHORIZATION_FAILED",
    )


def principals_of(identity: ConnectionIdentity) -> tuple[str, ...]:
    """Return the principals whose ACLs are about a client: its own, that of every user, and those of its groups."""
    own = f"{identity.principal_type}:{identity.principal_name}"
    return (own, _EVERY_USER, *[f"Group:{group}" for group in identity.groups])


def _entries(acls: ResourceAcls, principals: tuple[str, ...], host: str) -> list[AccessControlEntry]:
    return [
        entry
        for principal in principals
        for entry in acls.by_principal.get(principal, ())
        if host_matches(entry.host, host)
    ]
