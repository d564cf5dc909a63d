"""Serves HTTP/1.1 at a listening socket, on h11 alone: of servers for applications the import takes ten times as long.

A request has its body before it is answered; the requests of a connection are answered one after the other.
"""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import NamedTuple

import h11

from ottla.http.problems import TOO_LARGE, UNAVAILABLE

_READ_BYTES = 64 << 10
_CONNECTIONS_MAX = 100
_IDLE_S = 60.0
_END_S = 1.0


class Asked(NamedTuple):
    """A request without its body. The names of the headers are in small letters."""

    method: str
    target: bytes
    headers: dict[bytes, bytes]


class Answer(NamedTuple):
    """A response."""

    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class Service(NamedTuple):
    """The functions that are served; bodies beyond `body_bytes_max` and connections beyond 100 go to `refuse`."""

    admit: Callable[[Asked], Answer | None]  # before the body is read; None: it is
    answer: Callable[[Asked, bytes], Awaitable[Answer]]
    refuse: Callable[[int, str], Answer]
    body_bytes_max: int


async def serve(service: Service, listener: socket.socket, *, stop: asyncio.Event) -> None:
    """Serve requests until `stop` is set."""
    conversations: set[asyncio.Task[None]] = set()
    server = await asyncio.start_server(functools.partial(_converse, service, conversations), sock=listener)
    await stop.wait()
    server.close()
    if conversations:
        await asyncio.wait(conversations, timeout=_END_S)
    for left in conversations:
        left.cancel()
    await asyncio.gather(*conversations, return_exceptions=True)


async def _converse(
    service: Service, conversations: set[asyncio.Task[None]], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Serve one connection."""
    task = asyncio.current_task()
    assert task is not None
    conversations.add(task)
    connection = h11.Connection(h11.SERVER)
    try:
        is_one_too_many = len(conversations) > _CONNECTIONS_MAX
        while await _serve_one(service, connection, reader, writer, is_one_too_many=is_one_too_many):
            connection.start_next_cycle()
    except h11.RemoteProtocolError as error:
        if connection.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            _send(connection, writer, service.refuse(error.error_status_hint, str(error)))
    except (OSError, TimeoutError):
        pass  # the client has gone
    finally:
        conversations.discard(task)
        writer.close()


async def _serve_one(
    service: Service,
    connection: h11.Connection,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    *,
    is_one_too_many: bool,
) -> bool:
    """Serve the next request of a connection; return whether another one may follow."""
    request = await _next_event(connection, reader)
    if not isinstance(request, h11.Request):
        return False  # the client closes
    asked = Asked(request.method.decode("latin-1"), request.target, dict(request.headers))
    answer = service.admit(asked)
    if answer is None and is_one_too_many:
        answer = service.refuse(UNAVAILABLE, f"there are {_CONNECTIONS_MAX} connections already")
    if answer is None:
        if connection.they_are_waiting_for_100_continue:
            writer.write(connection.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
        body = await _body(connection, reader, service.body_bytes_max)
        if body is None:
            answer = service.refuse(TOO_LARGE, f"the body is larger than {service.body_bytes_max} bytes")
        else:
            answer = await service.answer(asked, body)
    _send(connection, writer, answer)
    await writer.drain()
    return connection.our_state is h11.DONE and connection.their_state is h11.DONE


async def _next_event(connection: h11.Connection, reader: asyncio.StreamReader) -> object:
    while (event := connection.next_event()) is h11.NEED_DATA:
        async with asyncio.timeout(_IDLE_S):
            connection.receive_data(await reader.read(_READ_BYTES))
    return event


async def _body(connection: h11.Connection, reader: asyncio.StreamReader, bytes_max: int) -> bytes | None:
    """Read the body; None if it is too large."""
    body = bytearray()
    while isinstance(event := await _next_event(connection, reader), h11.Data):
        body += event.data
        if len(body) > bytes_max:
            return None
    return bytes(body)


def _send(connection: h11.Connection, writer: asyncio.StreamWriter, answer: Answer) -> None:
    headers = [("content-type", answer.content_type), ("content-length", str(len(answer.body))), *answer.headers]
    reason = HTTPStatus(answer.status).phrase
    for event in (
        h11.Response(status_code=answer.status, headers=headers, reason=reason),
        h11.Data(data=answer.body),
        h11.EndOfMessage(),
    ):
        writer.write(connection.send(event) or b"")
