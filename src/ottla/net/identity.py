"""Names the client of a connection: the principal that access control and quotas are about."""

from __future__ import annotations

from typing import Final, NamedTuple

USER: Final = "User"
"""The type of every principal that Kafka's own authentication makes."""


class ConnectionIdentity(NamedTuple):
    """The principal as whom the client signed in; of a forwarded request the client's on the other broker."""

    principal_type: str
    principal_name: str
    groups: tuple[str, ...] = ()  # of the user, as the claim of a token names them: principals `Group:NAME`
    is_token: bool = False  # the client signed in with a delegation token


ANONYMOUS: Final = ConnectionIdentity(USER, "ANONYMOUS")
"""The identity of every client of a listener without authentication."""
