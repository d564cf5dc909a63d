"""ACLs as a plain list, and a metadata store with the same ones: what one decides the other must decide.

The list is the reference: it looks at every ACL for every question, and nothing is kept between two of them.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from ottla.broker.config import read
from ottla.broker.migration.export_to_kafka import export
from ottla.broker.migration.import_commit import commit_import
from ottla.broker.migration.import_from_kafka import plan_import
from ottla.controller.config import ControllerConfig
from ottla.controller.machine import apply
from ottla.controller.overlay import Overlay, Rules
from ottla.controller.security_changes import CreateAcls, DeleteAcls
from ottla.core.acls import AclBinding, AclFilter, AclOperation, PatternType, PermissionType, ResourceType
from ottla.core.files import SystemFiles
from ottla.core.ids import id_text
from ottla.metadata_store import acl_znodes
from ottla.metadata_store.broker_registration import join_cluster
from ottla.metadata_store.embedded_store import EmbeddedMetadataStore, EmbeddedSession
from ottla.metadata_store.metadata_cache import MetadataCache
from ottla.metadata_store.sqlite_file import FILE_NAME
from ottla.metadata_store.store import Create
from ottla.net.identity import ConnectionIdentity
from ottla.security.authorizer import AclAuthorizer
from ottla.security.config import AuthorizerConfig
from ottla.storage.config import LogConfig
from ottla.wire.headers import RequestHeader

EVERYTHING = AclFilter(ResourceType.ANY, PatternType.ANY, None, None, None, AclOperation.ANY, PermissionType.ANY)


@dataclass
class AclClient:
    """A request as the authorizer knows it."""

    identity: ConnectionIdentity
    client_host: str = "10.1.2.3"
    header: RequestHeader = (3, 12, 1, "c", 0)
    client_id: str | None = "c"
    listener: str = "PLAINTEXT"

    @property
    def principals(self) -> set[str]:
        """Return the principals whose ACLs are about it."""
        own = f"{self.identity.principal_type}:{self.identity.principal_name}"
        return {own, "User:*", *(f"Group:{group}" for group in self.identity.groups)}


def exactly(acl: AclBinding) -> AclFilter:
    """Return the filter that chooses one ACL alone."""
    return AclFilter(
        acl.resource_type,
        acl.pattern_type,
        acl.resource_name,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission_type,
    )


class AclList:
    """The reference."""

    def __init__(self, acls: Iterable[AclBinding] = (), *, allow_everyone: bool = False) -> None:
        self.acls = list(dict.fromkeys(acls))
        self.allow_everyone = allow_everyone

    def allows(self, client: AclClient, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        """Decide as StandardAuthorizer is documented to."""
        about = [acl for acl in self.acls if acl.resource_type == resource_type and _covers(acl, name)]
        if not about:
            return self.allow_everyone
        mine = [acl for acl in about if acl.principal in client.principals and _is_from(acl.host, client.client_host)]
        if any(acl.permission_type == PermissionType.DENY and _is_about(acl, operation) for acl in mine):
            return False
        return any(acl.permission_type == PermissionType.ALLOW and _implies(acl, operation) for acl in mine)

    def allows_any(self, client: AclClient, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Decide as `Authorizer.authorizeByResourceType` does, where no resource is called `hardcode`."""
        if self.allows(client, operation, resource_type, "hardcode"):
            return True
        mine = [
            acl
            for acl in self.acls
            if acl.resource_type == resource_type
            and acl.principal in client.principals
            and _is_from(acl.host, client.client_host)
            and _is_about(acl, operation)
        ]
        denied = [acl for acl in mine if acl.permission_type == PermissionType.DENY]
        if any(acl.pattern_type == PatternType.LITERAL and acl.resource_name == "*" for acl in denied):
            return False
        return any(
            (acl.pattern_type == PatternType.LITERAL and acl.resource_name == "*")
            or not any(_dominates(deny, acl) for deny in denied)
            for acl in mine
            if acl.permission_type == PermissionType.ALLOW
        )

    def delete(self, filters: Sequence[AclFilter]) -> None:
        """Delete what filters choose, field by field."""
        self.acls = [acl for acl in self.acls if not any(_is_chosen(acl, chosen) for chosen in filters)]


def _covers(acl: AclBinding, name: str) -> bool:
    if acl.pattern_type == PatternType.PREFIXED:
        return name.startswith(acl.resource_name)
    return acl.resource_name in {"*", name}


def _is_from(pattern: str, host: str) -> bool:
    if pattern in {"*", host}:
        return True
    try:
        return "/" in pattern and ipaddress.ip_address(host) in ipaddress.ip_network(pattern, strict=False)
    except ValueError:
        return False


def _is_about(acl: AclBinding, operation: AclOperation) -> bool:
    return acl.operation in {operation, AclOperation.ALL}


def _implies(acl: AclBinding, operation: AclOperation) -> bool:
    if _is_about(acl, operation):
        return True
    if operation == AclOperation.DESCRIBE:
        return acl.operation in {AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}
    return operation == AclOperation.DESCRIBE_CONFIGS and acl.operation == AclOperation.ALTER_CONFIGS


def _dominates(deny: AclBinding, allow: AclBinding) -> bool:
    if deny.pattern_type == PatternType.PREFIXED:
        return allow.resource_name.startswith(deny.resource_name)
    return allow.pattern_type == PatternType.LITERAL and allow.resource_name == deny.resource_name


def _is_chosen(acl: AclBinding, chosen: AclFilter) -> bool:
    name = chosen.resource_name
    if chosen.pattern_type == PatternType.MATCH and name is not None:
        is_named = _covers(acl, name)
    else:
        is_named = name in {None, acl.resource_name} and chosen.pattern_type in {
            PatternType.ANY,
            PatternType.MATCH,
            acl.pattern_type,
        }
    return (
        is_named
        and chosen.resource_type in {ResourceType.ANY, acl.resource_type}
        and chosen.principal in {None, acl.principal}
        and chosen.host in {None, acl.host}
        and chosen.operation in {AclOperation.ANY, acl.operation}
        and chosen.permission_type in {PermissionType.ANY, acl.permission_type}
    )


class AclStore:
    """A data directory with ACLs, and the authorizer of a broker that runs on it."""

    def __init__(self, path: Path, config: AuthorizerConfig) -> None:
        self._path, self._config = path, config
        self._session: EmbeddedSession | None = None
        self._cluster: MetadataCache | None = None

    @property
    def authorizer(self) -> AclAuthorizer:
        """Return the authorizer of the present run."""
        return self._authorizer

    @property
    def cluster(self) -> MetadataCache:
        """Return the snapshots of the present run."""
        assert self._cluster is not None
        return self._cluster

    async def open(self) -> AclStore:
        """Start on the directory."""
        self._path.mkdir(exist_ok=True)
        meta = self._path / "meta.properties"
        if not meta.exists():
            meta.write_text(f"node.id=7\ndirectory.id={id_text(UUID(int=1 << 100))}\nversion=1\ncluster.id=c\n")
        self._session = EmbeddedMetadataStore.open(self._path / FILE_NAME).session()
        await join_cluster(self._session, "c")
        self._cluster = MetadataCache(self._session)
        await self._cluster.load()
        self._authorizer = AclAuthorizer(self._cluster, self._config)
        return self

    async def close(self) -> None:
        """Stop."""
        assert self._session is not None
        await self._session.close()

    async def create(self, *acls: AclBinding) -> None:
        """Create ACLs as the controller does."""
        await self._change(CreateAcls(acls))

    async def delete(self, *filters: AclFilter) -> None:
        """Delete ACLs as the controller does."""
        await self._change(DeleteAcls(filters))

    async def _change(self, event: CreateAcls | DeleteAcls) -> None:
        assert self._session is not None
        patterns = [acl.pattern for acl in event.bindings] if isinstance(event, CreateAcls) else []
        for path in acl_znodes.directories(patterns):
            if await self._session.get(path) is None:
                await self._session.commit([Create(path)])
        overlay = Overlay(self.cluster.current, Rules(ControllerConfig(), LogConfig()))
        apply(overlay, event)
        for ops in overlay.commits():
            await self._session.commit(ops)
        await self.cluster.refresh()

    async def restart(self) -> None:
        """Stop, and start again with the same file."""
        await self.close()
        await self.open()

    async def reload(self) -> None:
        """Read all nodes again, as after a lost session."""
        await self.cluster.load()

    async def migrate(self) -> None:
        """Export the directory to Kafka, and import it again."""
        await self.close()
        await asyncio.to_thread(export, SystemFiles(), [self._path], now_ms=1)  # it has a loop of its own
        config, _ = read(file=None, environment={}, options={"node.id": "7"})
        plan = plan_import([self._path], config)
        session = EmbeddedMetadataStore.open(self._path / FILE_NAME).session()
        await join_cluster(session, "c")
        if plan is not None:
            await commit_import(plan, session, {}, [self._path], node_id=7)
        await session.close()
        await self.open()
