"""From a frame to a typed request and from a typed answer to bytes.

One of the three places where any exception is caught: what is not expected trouble is our bug, is logged with its
traceback, and the client is told UNKNOWN_SERVER_ERROR by the end of its connection.

Station 3 of 9 on a batch's journey. Before: wire/frame.py. After: broker/handlers/produce.py.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ottla.broker.context import RequestContext, Services
from ottla.broker.registry import APIS, Api, Handler
from ottla.net.connection import Answer, Connection
from ottla.net.outbound import part_size
from ottla.wire import codec
from ottla.wire.apis import ApiKey
from ottla.wire.errors import MalformedRequest
from ottla.wire.headers import RequestHeader, parse_request_header, response_header
from ottla.wire.hot import fetch as hot_fetch
from ottla.wire.hot import produce as hot_produce

log = logging.getLogger(__name__)

_LENGTH = struct.Struct(">i")

Decode = Callable[[memoryview, int, int], Any]
Encode = Callable[[int, Any], Sequence[Any]]


class Dispatcher:
    """Called by each connection with each whole frame."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._handlers: dict[int, tuple[Api, Handler, Decode, Encode]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, connection: Connection, frame: memoryview, answer: Answer) -> None:
        """Begin one request; see net/connection.py for the contract."""
        try:
            header = parse_request_header(frame)
            api = APIS.get(header.api_key)  # type: ignore[call-overload]
            if api is None or not api.min_version <= header.api_version <= api.max_version:
                self._refuse(frame, header, answer)
                return
            self._serve(api, connection, frame, header, answer)
        except MalformedRequest as error:
            log.warning("closing the connection from %s: %s", connection.host, error)
            self._abandon(connection, answer)
        except Exception:
            log.exception("unexpected error while serving a request from %s", connection.host)
            self._abandon(connection, answer)

    def _serve(
        self, api: Api, connection: Connection, frame: memoryview, header: RequestHeader, answer: Answer
    ) -> None:
        _, handler, decode, encode = self._handlers.get(api.key) or self._load(api)
        request = decode(frame, header.api_version, header.body_offset)
        context = RequestContext(
            self._services,
            api_version=header.api_version,
            client_id=header.client_id,
            client_host=connection.host,
            listener=connection.listener,
            connection_id=id(connection),
            state=connection.state,
        )
        response = handler(context, request)
        if isinstance(response, asyncio.Future):
            # Produce: no task, one callback between the disk and the answer.
            answer.pipelined = api.pipelined
            response.add_done_callback(lambda done: self._finish(connection, header, encode, done, answer))
        elif isinstance(response, Awaitable):
            task = asyncio.get_running_loop().create_task(
                self._await(connection, header, encode, response, answer), name=api.key.name
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._answer(header, encode, response, answer)

    def _finish(
        self, connection: Connection, header: RequestHeader, encode: Encode, done: asyncio.Future[Any], answer: Answer
    ) -> None:
        try:
            self._answer(header, encode, done.result(), answer)
        except Exception:
            log.exception("unexpected error while answering %s", connection.host)
            self._abandon(connection, answer)

    async def _await(
        self, connection: Connection, header: RequestHeader, encode: Encode, response: Awaitable[Any], answer: Answer
    ) -> None:
        try:
            self._answer(header, encode, await response, answer)
        except Exception:
            log.exception("unexpected error while serving a request from %s", connection.host)
            self._abandon(connection, answer)

    @staticmethod
    def _answer(header: RequestHeader, encode: Encode, response: Any, answer: Answer) -> None:
        if response is None:  # acks=0: there is no answer, and its place must not be waited for
            answer.send(())
            return
        head = response_header(header.api_key, header.api_version, header.correlation_id)
        parts = encode(header.api_version, response)
        if len(parts) == 1 and isinstance(parts[0], bytes):
            answer.send((_LENGTH.pack(len(head) + len(parts[0])) + head + parts[0],))
            return
        size = len(head) + sum(part_size(part) for part in parts)
        answer.send((_LENGTH.pack(size) + head, *parts))

    @staticmethod
    def _abandon(connection: Connection, answer: Answer) -> None:
        """The stream of requests and answers is no longer in step: only a new connection can mend it."""
        connection.close()
        if answer.parts is None:
            answer.send(())

    def _refuse(self, frame: memoryview, header: RequestHeader, answer: Answer) -> None:
        """An API or version that is not served.

        ApiVersions is answered in version 0 so that any client can read what is (KIP-511); an old Produce in its own
        shape, because it is advertised (KAFKA-18659). For the rest Kafka closes the connection, as a client that asks
        for what was never advertised could not read any answer either.
        """
        if header.api_key == ApiKey.API_VERSIONS:
            from ottla.broker.handlers import api_versions

            body = codec.encode_response(ApiKey.API_VERSIONS, 0, api_versions.unsupported_version())
            answer.send((_LENGTH.pack(4 + len(body)) + _LENGTH.pack(header.correlation_id) + body,))
        elif header.api_key == ApiKey.PRODUCE and 0 <= header.api_version < APIS[ApiKey.PRODUCE].min_version:
            from ottla.wire.hot import produce_old

            refusal = produce_old.refusal(frame[header.body_offset :], header.api_version)
            if not refusal:  # acks=0: a closed connection is all that can tell
                raise MalformedRequest(f"Produce version {header.api_version} is not served")
            head = _LENGTH.pack(4 + len(refusal)) + _LENGTH.pack(header.correlation_id)
            answer.send((head + refusal,))
        else:
            raise MalformedRequest(f"api key {header.api_key} version {header.api_version} is not served")

    def _load(self, api: Api) -> tuple[Api, Handler, Decode, Encode]:
        """The first request of an API brings in its handler and its codec."""
        key = api.key
        match key:
            case ApiKey.PRODUCE:
                decode: Decode = lambda frame, version, at: hot_produce.decode_produce_request(frame[at:], version)  # noqa: E731
                encode: Encode = lambda version, response: (hot_produce.encode_produce_response(response, version),)  # noqa: E731
            case ApiKey.FETCH:
                decode = lambda frame, version, at: hot_fetch.decode_fetch_request(frame[at:], version)  # noqa: E731
                encode = lambda version, response: hot_fetch.encode_fetch_response(response, version)  # noqa: E731
            case _:
                decode = lambda frame, version, at: codec.decode_request(key, version, frame, at)  # noqa: E731
                encode = lambda version, response: (codec.encode_response(key, version, response),)  # noqa: E731
        row = self._handlers[key] = (api, api.handler(), decode, encode)
        return row

    async def drain(self, within_seconds: float) -> None:
        """Let begun requests end; those that wait for something that will not come are cancelled."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within_seconds)
        for task in tuple(self._tasks):
            task.cancel()
