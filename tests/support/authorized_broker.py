"""Gives an in-process broker an authorizer, and its clients an identity: the client id of a request is its user.

All others, which are brokers, are the super user.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from types import SimpleNamespace
from typing import Any, cast

from ottla.broker.requests.authorization import Authorizer
from ottla.broker.requests.request import Request
from ottla.broker.requests.stages import Admission
from ottla.core.acls import AccessControlEntry, AclBinding, ResourcePattern
from ottla.metadata_store.acl_index import NO_ACLS, ResourceAcls
from ottla.net.identity import ConnectionIdentity
from ottla.security.authorizer import AclAuthorizer
from ottla.security.config import AuthorizerConfig
from tests.support.acl_users import users

SUPER_USER = "super"
NAMES = frozenset(user.name for user in users())


class UsersByClientId:
    """Admits each request as that of the user whom its client id names; another admission decides the rest."""

    def __init__(self, admission: Admission | None = None) -> None:
        self._admission = admission

    def admit(self, request: Request, frame: memoryview) -> Coroutine[Any, Any, bytearray | None] | None:
        name = request.client_id if request.client_id in NAMES else SUPER_USER
        request.identity = ConnectionIdentity("User", name or SUPER_USER)
        return None if self._admission is None else self._admission.admit(request, frame)


def authorizer_of(bindings: Iterable[AclBinding]) -> AclAuthorizer:
    """Return an authorizer that decides by these ACLs; SUPER_USER may do everything."""
    entries: dict[ResourcePattern, list[AccessControlEntry]] = {}
    for binding in bindings:
        entries.setdefault(binding.pattern, []).append(binding.entry)
    index = NO_ACLS.replaced_by({pattern: ResourceAcls(each, 0) for pattern, each in entries.items()})
    cluster = SimpleNamespace(current=SimpleNamespace(acls=index))
    return AclAuthorizer(cast("Any", cluster), AuthorizerConfig(super_users=f"User:{SUPER_USER}"))


def authorize(broker: Any, authorizer: Authorizer) -> None:
    """Have a broker ask an authorizer, from its next connection on."""
    driver = broker._driver
    driver._authorizer, driver._admission = authorizer, UsersByClientId(driver._admission)
