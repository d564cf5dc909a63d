"""Makes what changes ACLs and delegation tokens on request, with the first of each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from ottla.controller.security_changes import SecurityChange
from ottla.metadata_store.store import MetadataStore

if TYPE_CHECKING:
    from ottla.controller.acl_changes import AclAdmin
    from ottla.controller.token_changes import TokenAdmin


class SecurityAdmin:
    """Makes what changes ACLs and delegation tokens on request."""

    def __init__(
        self, store: MetadataStore, change: Callable[[Sequence[SecurityChange]], Awaitable[Sequence[object]]]
    ) -> None:
        self._store, self._change = store, change

    @cached_property
    def acls(self) -> AclAdmin:
        """Creates and deletes ACLs."""
        from ottla.controller.acl_changes import AclAdmin

        return AclAdmin(self._store, self._change)

    @cached_property
    def tokens(self) -> TokenAdmin:
        """Changes delegation tokens."""
        from ottla.controller.token_changes import TokenAdmin

        return TokenAdmin(self._change)
