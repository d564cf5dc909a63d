"""Remembers for a connection which topics its client may read and write, so that the authorizer is asked once for each.

What is remembered counts for one snapshot's ACLs and one identity: with others it is forgotten. Denials are not
remembered: each is recorded in the audit log.
"""

from __future__ import annotations

from typing import Final

from ottla.broker.requests.request import Request

NAMES_MAX: Final = 64
"""Topics that are remembered of a connection, for each operation; when there are more, all are forgotten."""


class AllowedTopics:
    """The topics that the client of a connection may read, and may write, by the present ACLs."""

    __slots__ = ("acls", "identity", "is_kept", "readable", "writable")

    def __init__(self) -> None:
        self.acls: object = None
        self.identity: object = None
        self.is_kept = True  # False: the audit log has an entry for each operation that is allowed
        self.readable: set[str] = set()
        self.writable: set[str] = set()

    def add(self, names: set[str], name: str) -> None:
        """Note a topic in one of the two sets."""
        if self.is_kept:
            if len(names) >= NAMES_MAX:
                names.clear()
            names.add(name)


def allowed_topics(ctx: Request) -> AllowedTopics:
    """Return what is known of the client of a request. It is empty if the ACLs or the client have changed."""
    services, connection = ctx.services, ctx.connection
    acls: object = services.cluster.current.acls
    known = connection.allowed
    if isinstance(known, AllowedTopics) and known.acls is acls and known.identity is ctx.identity:
        return known
    allowed = AllowedTopics()
    allowed.acls, allowed.identity = acls, ctx.identity
    audit_log = services.audit_log
    allowed.is_kept = audit_log is None or not audit_log.logs_allowed
    connection.allowed = allowed
    return allowed
