"""Makes requests as the driver hands them to handlers, and calls a handler, without a socket."""

from __future__ import annotations

from typing import Any

from ottla.broker.requests.elements import InParts, complete
from ottla.broker.requests.registry import APIS, INTER_BROKER_APIS
from ottla.broker.requests.request import Request
from ottla.broker.services import Services
from ottla.core.clock import SystemClock
from ottla.limits.budget import ByteBudget
from ottla.net.connection import PendingResponse, ReceiveBuffer, ServerConnection
from ottla.net.malformed_requests import MalformedRequestLog


def _no_request(connection: ServerConnection, frame: memoryview, pending: PendingResponse) -> None:
    del connection, frame, pending
    raise AssertionError("no request comes by this connection")


def connection_without_socket(*, host: str = "127.0.0.1", listener: str = "PLAINTEXT") -> ServerConnection:
    """Return a connection that sends nothing."""
    now = SystemClock().monotonic
    connection = ServerConnection(
        dispatch=_no_request,
        on_open=lambda _: True,
        on_close=lambda _: None,
        shared=ReceiveBuffer(),
        budget=ByteBudget(1 << 30),
        busy_poller=None,
        frame_bytes_max=1 << 20,
        now=now,
        listener=listener,
        malformed=MalformedRequestLog(),
    )
    connection.host = host
    return connection


def request_to(
    services: Services, version: int, *, connection: ServerConnection | None = None, client_id: str = "test"
) -> Request:
    """Return a request of a version, on a connection of its own if none is given."""
    if connection is None:
        connection = connection_without_socket()
    request = Request(services, connection, PendingResponse(connection))
    request.api_version, request.client_id = version, client_id
    return request


async def answer_to(request: Request, module: str, body: Any) -> Any:
    """Return the response of the handler in a module of `broker/handlers/`, complete."""
    (row,) = (row for row in (*APIS.values(), *INTER_BROKER_APIS.values()) if row.module == module)
    api = row.load()
    answer = api.handle(request, body)
    if api.is_coroutine:
        answer = await answer
    return await request.services.slices.run(complete(request, answer)) if isinstance(answer, InParts) else answer
