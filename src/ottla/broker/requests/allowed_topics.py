"""Remembers for a connection which topics its client may read and write, so that the authorizer is asked once for each.

What is remembered counts for one snapshot's ACLs and one identity: with others it is forgotten. Denials are not
remembered: each is recorded in the audit log.
"""

from __future__ import annotations

from typing import Final

from ottla.broker.requests.request import Request

NAMES_MAX: Final = 64
"""Topics that are remembered of a connection, for each operation; when there are more, all are forgotten."""
TopicKey = str | bytes
"""As a request names a topic: its name, or its id."""


class AllowedTopics:
    """The topics that the client of a connection may read, and may write, by the present ACLs."""

    __slots__ = ("acls", "identity", "is_kept", "readable", "writable")

    def __init__(self, acls: int = 0, identity: object = None, *, is_kept: bool = True) -> None:
        self.acls = acls  # the number of the index
        self.identity = identity
        self.is_kept = is_kept  # False: the audit log has an entry for each operation that is allowed
        self.readable: set[TopicKey] = set()
        self.writable: set[TopicKey] = set()

    def add(self, topics: set[TopicKey], topic: TopicKey) -> None:
        """Note a topic in one of the two sets."""
        if self.is_kept:
            if len(topics) >= NAMES_MAX:
                topics.clear()
            topics.add(topic)


def allowed_topics(ctx: Request) -> AllowedTopics:
    """Return what is known of the client of a request. It is empty if the ACLs or the client have changed."""
    services, connection = ctx.services, ctx.connection
    acls: int = services.cluster.current.acls.number
    known = connection.allowed
    if isinstance(known, AllowedTopics) and known.acls == acls and known.identity is ctx.identity:
        return known
    audit_log = services.audit_log
    allowed = AllowedTopics(acls, ctx.identity, is_kept=audit_log is None or not audit_log.logs_allowed)
    connection.allowed = allowed
    return allowed
