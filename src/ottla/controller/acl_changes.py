"""Decides changes of ACLs. The rules and the errors are Kafka 4.4's (AclControlManager).

The ACLs of one pattern are one node, which is written with the version that was read. A request that does not fit in
one commit is several: what it denies comes first, and what it denies no longer comes last.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

from ottla.controller.overlay import COMMIT_BYTES_MAX, Overlay
from ottla.controller.security_changes import CreateAcls, DeleteAcls, DeletedAcls
from ottla.core.acls import AccessControlEntry, AclBinding, AclFilter, PermissionType, ResourcePattern, bind
from ottla.core.errors import InvalidRequest, KafkaError, NotController, PolicyViolation
from ottla.metadata_store import acl_znodes
from ottla.metadata_store.acl_index import ResourceAcls
from ottla.metadata_store.store import Create, Delete, MetadataStore, NodeExists, Op, Put, StoreError

ACLS_PER_REQUEST_MAX: Final = 10_000
"""ACLs that one request may create or delete, as in Kafka."""
NODE_BYTES_MAX: Final = COMMIT_BYTES_MAX // 2
_NOTIFICATIONS_KEPT: Final = 100


def create_acls(overlay: Overlay, event: CreateAcls) -> list[KafkaError | None]:
    """Decide the creation of ACLs; returns None or an error for each."""
    index = overlay.base.acls
    added: dict[ResourcePattern, dict[AccessControlEntry, None]] = {}
    for binding in event.bindings:
        known = index.get(binding.pattern)
        if known is None or binding.entry not in known.entries:
            added.setdefault(binding.pattern, {})[binding.entry] = None
    if sum(map(len, added.values())) > ACLS_PER_REQUEST_MAX:
        raise PolicyViolation("Unable to perform excessively large batch operation.")
    refused: dict[ResourcePattern, KafkaError] = {}
    for pattern, entries in sorted(added.items(), key=lambda each: _has(each[1], PermissionType.ALLOW)):
        known = index.get(pattern)
        if known is not None and known.is_unreadable:
            refused[pattern] = KafkaError(
                "The ACLs of this resource cannot be read. Delete all of them first (with a filter on its type, name "
                "and type of pattern alone); what is denied is then no longer known."
            )
            continue
        text = acl_znodes.encode_acls([*(known.entries if known is not None else ()), *entries])
        if len(text) > NODE_BYTES_MAX:
            refused[pattern] = PolicyViolation(
                f"The ACLs of one resource may have {NODE_BYTES_MAX} bytes in the metadata store."
            )
            continue
        path = acl_znodes.acl_path(pattern)
        _put(overlay, pattern, Create(path, text) if known is None else Put(path, text, known.version))
    return [refused.get(binding.pattern) for binding in event.bindings]


def delete_acls(overlay: Overlay, event: DeleteAcls) -> list[DeletedAcls]:
    """Decide the deletion of ACLs; returns the ACLs that each filter chooses."""
    index = overlay.base.acls
    chosen: list[DeletedAcls] = []
    removed: dict[ResourcePattern, set[AccessControlEntry]] = {}
    for acl_filter in event.filters:
        deleted: DeletedAcls = []
        for pattern in index.candidates(acl_filter):
            entries = index.choose(pattern, acl_filter)
            if entries or _deletes_unreadable(index.get(pattern), pattern, acl_filter):
                removed.setdefault(pattern, set()).update(entries)
                deleted += [bind(pattern, entry) for entry in entries]
        if sum(map(len, removed.values())) > ACLS_PER_REQUEST_MAX:
            raise InvalidRequest(f"Cannot remove more than {ACLS_PER_REQUEST_MAX} acls in a single delete operation.")
        chosen.append(deleted)
    for pattern, gone in sorted(removed.items(), key=lambda each: _has(each[1], PermissionType.DENY)):
        acls, path = index.get(pattern), acl_znodes.acl_path(pattern)
        assert acls is not None, "the filter chose among its ACLs"
        left = [entry for entry in acls.entries if entry not in gone]
        _put(
            overlay,
            pattern,
            Put(path, acl_znodes.encode_acls(left), acls.version) if left else Delete(path, acls.version),
        )
    return chosen


def _deletes_unreadable(acls: ResourceAcls | None, pattern: ResourcePattern, chosen: AclFilter) -> bool:
    """Return whether a filter means all ACLs of a pattern whose ACLs are not known."""
    return acls is not None and acls.is_unreadable and chosen.is_about_every_entry and chosen.matches_pattern(pattern)


def _has(entries: Iterable[AccessControlEntry], permission: PermissionType) -> bool:
    return any(entry.permission_type == permission for entry in entries)


def _put(overlay: Overlay, pattern: ResourcePattern, op: Op) -> None:
    """Write the ACLs of a pattern, and notify brokers of Kafka."""
    ops = [op]
    notification = acl_znodes.change_path(pattern)
    if notification is not None:
        ops.append(Create(notification, acl_znodes.encode_change(pattern), sequential=True))
    overlay.put_nodes(ops)


class AclAdmin:
    """Creates and deletes ACLs as the controller."""

    def __init__(
        self, store: MetadataStore, change: Callable[[Sequence[CreateAcls | DeleteAcls]], Awaitable[Sequence[object]]]
    ) -> None:
        self._store, self._change = store, change
        self._created: set[str] = set()  # directories that are known to exist

    async def create(self, bindings: Sequence[AclBinding]) -> list[KafkaError | None]:
        """Create ACLs that are valid; returns None or an error for each. Raises the `KafkaError` of all."""
        await self._create_directories({binding.pattern for binding in bindings})
        (outcome,) = await self._change([CreateAcls(bindings)])
        await self._remove_old_notifications()
        if isinstance(outcome, KafkaError):
            raise outcome
        assert isinstance(outcome, list), "one outcome for each ACL"
        return outcome

    async def delete(self, filters: Sequence[AclFilter]) -> list[DeletedAcls]:
        """Delete the ACLs that filters choose; returns those of each. Raises the `KafkaError` of all."""
        await self._create_directories(())
        (outcome,) = await self._change([DeleteAcls(filters)])
        await self._remove_old_notifications()
        if isinstance(outcome, KafkaError):
            raise outcome
        assert isinstance(outcome, list), "the ACLs of each filter"
        return outcome

    async def _create_directories(self, patterns: Iterable[ResourcePattern]) -> None:
        """Create the nodes that must exist before. Raises `NotController`, as a change does without the store."""
        for path in acl_znodes.directories(patterns):
            if path not in self._created:
                try:
                    if await self._store.get(path) is None:
                        with suppress(NodeExists):
                            await self._store.commit([Create(path)])
                except StoreError as error:
                    raise NotController from error
                self._created.add(path)

    async def _remove_old_notifications(self) -> None:
        """Keep the last ones only. Brokers of Kafka, which remove them after a while, need not be there."""
        for directory in (acl_znodes.LITERAL_CHANGES, acl_znodes.EXTENDED_CHANGES):
            with suppress(StoreError):  # the next change removes them
                names = sorted(await self._store.children(directory))[:-_NOTIFICATIONS_KEPT]
                if names:
                    await self._store.commit([Delete(f"{directory}/{name}") for name in names[:_NOTIFICATIONS_KEPT]])
