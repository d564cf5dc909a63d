"""Describes one request from its arrival to its response: who sent it, on which connection, and what it asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.net.identity import ANONYMOUS, ConnectionIdentity

if TYPE_CHECKING:  # names only: importing them here would make every handler import every package
    from collections.abc import Callable

    from ottla.broker.requests.authorization import Authorizer
    from ottla.broker.requests.loaded_api import LoadedApi
    from ottla.broker.services import Services
    from ottla.net.connection import PendingResponse, ServerConnection
    from ottla.security.quotas.request_cost import RequestCost
    from ottla.wire.headers import RequestHeader

_NO_HEADER: Final = (-1, -1, 0, None, 0)


class Request:
    """One request. A handler gets it beside the decoded body.

    Of a forwarded request (KIP-590) the connection is that of the broker which forwards it; identity, listener, host
    and client id are the client's own.
    """

    __slots__ = (
        "api",
        "api_version",
        "arrived",
        "authorizer",
        "begun",
        "body",
        "client_host",
        "client_id",
        "connection",
        "cost",
        "header",
        "identity",
        "is_forwarded",
        "is_routed",
        "left_loop",
        "listener",
        "pending",
        "reserved_bytes",
        "services",
    )

    def __init__(self, services: Services, connection: ServerConnection, pending: PendingResponse) -> None:
        self.services = services
        self.connection = connection
        self.pending = pending  # the place of its response
        self.identity: ConnectionIdentity = ANONYMOUS
        self.listener = connection.listener  # the client's: its responses name the addresses of this listener
        self.client_host = connection.host
        self.arrived = 0.0  # by the connection's monotonic clock, as read when the bytes came
        self.header: RequestHeader = _NO_HEADER
        self.api: LoadedApi | None = None  # the row of the registry; None: the header is malformed, the API not served
        self.api_version = -1
        self.client_id: str | None = None
        self.body: Any = None  # decoded, where the decoding and the rest are not in one turn
        self.reserved_bytes = 0  # of the memory for long requests, until the response is completed
        self.cost: RequestCost | None = None  # of `Accounting`: while there are quotas
        self.begun = self.left_loop = 0.0  # of `Accounting`: when it was begun, and when it began to wait
        self.authorizer: Authorizer | None = None  # the driver's, for the elements of the request
        self.is_forwarded = False  # by the broker to which the client is connected
        self.is_routed = False  # to this broker, for good

    @property
    def connection_id(self) -> int:
        """Return a number that no other open connection has."""
        return id(self.connection)

    def call_when_lost(self, name: str, callback: Callable[[], None]) -> None:
        """Call this when the client has disconnected; see net/connection.py."""
        self.connection.call_when_lost(name, callback)
