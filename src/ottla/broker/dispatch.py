"""Decodes a frame into a request, calls its handler and sends the response.

Any exception of a handler is caught: an unexpected one is a bug of ours, is logged with its traceback, and closes the
connection (broker/failed_requests.py). Elsewhere any exception is caught only where it must not end other work: it
becomes the error of one partition, or a task that runs as long as the broker logs it and goes on.

Handlers are of three kinds. Those of the deferred APIs (Produce, Fetch: `deferred` in the registry's row) get the
pending response and complete it themselves, now or later; they have codecs of their own. A request of many partitions
goes to their coroutine function `handle_long`, which runs as a task, as any coroutine function does. Any other handler
returns its response. Which kind it is, is decided once, when the handler is loaded. The coroutine functions of the
frequent APIs of coordinators (`eager` in the row) are tasks only where they have to wait.

Step 3 of 9 on the path of a batch (ARCHITECTURE.md). Before: wire/frame.py. Next: broker/handlers/produce.py.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Coroutine
from inspect import iscoroutinefunction
from typing import Any, Final

from ottla.broker.context import RequestContext, Services
from ottla.broker.failed_requests import close_without_response
from ottla.broker.registry import APIS, INTER_BROKER_APIS
from ottla.core.errors import KafkaError
from ottla.limits.budget import ByteBudget
from ottla.net import eager_tasks
from ottla.net.connection import PendingResponse, ServerConnection
from ottla.wire import codec
from ottla.wire.apis import ApiKey
from ottla.wire.compiled_codec import Slices
from ottla.wire.errors import LongRequest, MalformedRequest
from ottla.wire.headers import RequestHeader, parse_request_header, response_header

log = logging.getLogger(__name__)

_LENGTH: Final = struct.Struct(">i")
_JOIN_BYTES_MAX: Final = 64 << 10  # a longer response is not copied to follow its header in one piece

Decode = Callable[[memoryview, int, int], Any]
"""Reads the request of a frame, in a version, that begins at an offset."""


class _LoadedApi:
    """A row of the registry with its handler."""

    __slots__ = (
        "controller_only",
        "copy_frame",
        "decode",
        "eager",
        "first",
        "handle_long",
        "handler",
        "is_coroutine",
        "last",
        "name",
        "request_bytes_max",
        "waits_for_members",
    )

    def __init__(
        self,
        *,
        name: str,
        first: int,
        last: int,
        waits_for_members: bool,
        controller_only: bool,
        eager: bool,
        handler: Callable[..., Any],
        decode: Decode | None,
        handle_long: Callable[..., Any] | None,
        copy_frame: Callable[[memoryview], Any],
        request_bytes_max: int,
    ) -> None:
        self.name = name
        self.first = first
        self.last = last
        self.waits_for_members = waits_for_members
        self.controller_only = controller_only
        self.eager = eager
        self.handler = handler
        self.is_coroutine = iscoroutinefunction(handler)
        self.decode = decode  # of a deferred API, otherwise None
        self.handle_long = handle_long  # the same
        self.copy_frame = copy_frame  # of a long request
        self.request_bytes_max = request_bytes_max  # of a long request


class Dispatcher:
    """Called by each connection with each whole frame."""

    def __init__(self, services: Services, decoded: ByteBudget) -> None:
        self._services = services
        self._decoded = decoded  # memory for long requests once they are decoded, and for their responses
        self._loaded: dict[int, _LoadedApi] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}

    def __call__(self, connection: ServerConnection, frame: memoryview, response: PendingResponse) -> None:
        """Begin one request; see net/connection.py for the contract."""
        try:
            header = parse_request_header(frame)
            key, version, response.correlation_id, client_id, body_at = header
            api = self._loaded.get(key) or self._load(key)
            if api is None or not api.first <= version <= api.last:
                self._refuse(frame, header, response)
                return
            context = connection.context  # clients repeat themselves: mostly the last request's is right
            if (
                not isinstance(context, RequestContext)
                or context.api_version != version
                or context.client_id != client_id
            ):
                context = self._new_context(connection, version, client_id)
            if api.decode is not None:
                try:
                    request = api.decode(frame, version, body_at)
                except LongRequest:
                    self._begin_long(connection, context, frame, header, api, response)
                    return
                work = api.handler(context, request, response)
                if work is not None:
                    self._begin(self._finish(connection, work, response), api.name)
            elif len(frame) > codec.PLAIN_BYTES_MAX:
                self._begin_long(connection, context, frame, header, api, response)
            elif api.controller_only and self._services.controller_channel.must_forward:
                self._begin(self._forward_or_serve(context, bytes(frame), header, api, response), api.name)
            else:
                request = codec.decode_request(ApiKey(key), version, frame, body_at)
                result = api.handler(context, request)
                if api.eager:
                    self._start(self._await(header, api, result, response), api.name)
                elif api.is_coroutine:
                    self._begin(self._await(header, api, result, response), api.name)
                else:
                    self._encode(header, api, result, response)
        except Exception as error:  # noqa: BLE001 - it is logged there
            close_without_response(response, error)

    def _new_context(self, connection: ServerConnection, version: int, client_id: str | None) -> RequestContext:
        context = connection.context = RequestContext(
            self._services,
            api_version=version,
            client_id=client_id,
            client_host=connection.host,
            listener=connection.listener,
            connection_id=id(connection),
            state=connection.state,
            call_when_lost=connection.call_when_lost,
        )
        return context

    def _begin(self, waiting: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(waiting, name=name)
        self._keep(task)
        return task

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = eager_tasks.start(work, name)
        if task is not None:
            self._keep(task)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def _begin_long(
        self,
        connection: ServerConnection,
        context: RequestContext,
        frame: memoryview,
        header: RequestHeader,
        api: _LoadedApi,
        response: PendingResponse,
    ) -> None:
        """Begin a request of so many elements that it must not hold the loop: in slices, and in a bounded memory."""
        if len(frame) > api.request_bytes_max:
            raise MalformedRequest(f"a {api.name} request of {len(frame)} bytes; the limit is {api.request_bytes_max}")
        work = self._serve_long(connection, context, api.copy_frame(frame), header, api, response)
        task = self._begin(work, api.name)
        connection.cancel_when_lost(task)
        task.add_done_callback(connection.keep)

    async def _serve_long(
        self,
        connection: ServerConnection,
        context: RequestContext,
        frame: Any,
        header: RequestHeader,
        api: _LoadedApi,
        pending: PendingResponse,
    ) -> None:
        slices, budget = self._services.slices, self._decoded
        reserved_bytes = codec.decoded_bytes_max(len(frame))
        await budget.reserve(reserved_bytes)
        try:
            key, version, _, _, body_at = header
            if api.handle_long is not None:
                rest = await api.handle_long(context, frame, body_at, pending)
                if rest is not None:  # it waits for data
                    budget.release(reserved_bytes)
                    reserved_bytes = 0
                    await rest
                return
            if api.controller_only and await self._forward(context, bytes(frame), pending):
                return
            request = await slices.run(codec.decode_request_slices(ApiKey(key), version, frame, body_at, slices=slices))
            if (task := asyncio.current_task()) is not None:  # from here on it has effects: they are not given up
                connection.keep(task)
            if api.waits_for_members:  # and these need memory for their requests
                budget.release(reserved_bytes)
                reserved_bytes = 0
            result = api.handler(context, request)
            await self._respond_in_slices(header, await result if api.is_coroutine else result, pending)
        except Exception as error:  # noqa: BLE001 - it is logged there
            close_without_response(pending, error)
        finally:
            if reserved_bytes:
                budget.release(reserved_bytes)

    async def _forward_or_serve(
        self, context: RequestContext, frame: bytes, header: RequestHeader, api: _LoadedApi, pending: PendingResponse
    ) -> None:
        """Have the controller serve a short request."""
        try:
            if not await self._forward(context, frame, pending):
                request = codec.decode_request(ApiKey(header[0]), header[1], frame, header[4])
                result = api.handler(context, request)
                await self._respond_in_slices(header, await result if api.is_coroutine else result, pending)
        except Exception as error:  # noqa: BLE001 - it is logged there
            close_without_response(pending, error)

    async def _forward(self, context: RequestContext, frame: bytes, pending: PendingResponse) -> bool:
        """Respond with the controller's response; False if there is none: then the handler here says so."""
        channel = self._services.controller_channel
        if not channel.must_forward:
            return False
        try:
            answer = await channel.forward(frame, client_host=context.client_host)
        except KafkaError as error:
            log.info("a request could not be forwarded to the controller: %s", error.message)
            return False
        pending.send((_LENGTH.pack(len(answer)), answer))
        return True

    async def _finish(
        self, connection: ServerConnection, work: Coroutine[Any, Any, Any], pending: PendingResponse
    ) -> None:
        """Run what is left of a short request of a deferred API: it uses a session of many partitions."""
        task = asyncio.current_task()
        assert task is not None
        connection.cancel_when_lost(task)
        try:
            rest = await work
            if rest is not None:
                await rest
        except Exception as error:  # noqa: BLE001 - it is logged there
            close_without_response(pending, error)
        finally:
            connection.keep(task)

    def _encode(self, header: RequestHeader, api: _LoadedApi, result: Any, pending: PendingResponse) -> None:
        """Respond now, or in slices if the response turns out to be long."""
        slices = self._services.slices
        encoding = codec.encode_response_slices(ApiKey(header[0]), header[1], result, slices=slices)
        try:
            next(encoding)
        except StopIteration as end:
            _send(header, end.value, pending)
        else:
            self._begin(self._encode_rest(header, encoding, pending), api.name)

    async def _encode_rest(self, header: RequestHeader, encoding: Slices[bytearray], pending: PendingResponse) -> None:
        try:
            await self._services.slices.yield_to_loop()
            _send(header, await self._services.slices.run(encoding), pending)
        except Exception as error:  # noqa: BLE001 - it is logged there
            close_without_response(pending, error)

    async def _respond_in_slices(self, header: RequestHeader, result: Any, pending: PendingResponse) -> None:
        slices = self._services.slices
        encoding = codec.encode_response_slices(ApiKey(header[0]), header[1], result, slices=slices)
        _send(header, await slices.run(encoding), pending)

    async def _await(
        self, header: RequestHeader, api: _LoadedApi, result: Coroutine[Any, Any, Any], pending: PendingResponse
    ) -> None:
        try:
            self._encode(header, api, await result, pending)
        except Exception as error:  # noqa: BLE001 - it is logged there
            close_without_response(pending, error)

    def _refuse(self, frame: memoryview, header: RequestHeader, pending: PendingResponse) -> None:
        """Respond to an API or version that is not served.

        ApiVersions is answered in version 0 so that any client can read it (KIP-511); an old Produce in its own
        layout, because it is advertised (KAFKA-18659). For the rest Kafka closes the connection, as a client that sends
        what was never advertised could not read any response either.
        """
        key, version, correlation_id, _, body_at = header
        if key == ApiKey.API_VERSIONS:
            from ottla.broker.handlers import api_versions

            body = codec.encode_response(ApiKey.API_VERSIONS, 0, api_versions.unsupported_version())
            pending.send((_LENGTH.pack(4 + len(body)) + _LENGTH.pack(correlation_id) + body,))
        elif key == ApiKey.PRODUCE and 0 <= version < APIS[ApiKey.PRODUCE].min_version:
            from ottla.wire.hot import produce_old

            refusal = produce_old.refusal(frame[body_at:], version)
            if not refusal:  # with acks=0 there is no response: only closing the connection can signal it
                raise MalformedRequest(f"Produce version {version} is not served")
            pending.send((_LENGTH.pack(4 + len(refusal)) + _LENGTH.pack(correlation_id) + refusal,))
        else:
            raise MalformedRequest(f"api key {key} version {version} is not served")

    def _load(self, key: int) -> _LoadedApi | None:
        """Import the handler, at the first request of its API."""
        row = APIS.get(key) or INTER_BROKER_APIS.get(key)  # type: ignore[call-overload]
        if row is None:
            return None
        loaded = self._loaded[key] = _LoadedApi(
            name=row.key.name,
            first=row.min_version,
            last=row.max_version,
            waits_for_members=row.waits_for_members,
            controller_only=row.controller_only,
            eager=row.eager,
            handler=row.handler(),
            decode=row.decoder() if row.deferred else None,
            handle_long=row.long_handler() if row.deferred else None,
            copy_frame=bytearray if row.key == ApiKey.PRODUCE else bytes,  # batches are changed in place
            request_bytes_max=codec.REQUEST_BYTES_MAX if row.key != ApiKey.PRODUCE else codec.LENGTH_MAX,
        )
        return loaded

    async def drain(self, within_seconds: float) -> None:
        """Let begun requests end; cancel those that do not."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within_seconds)
        for task in tuple(self._tasks):
            task.cancel()


def _send(header: RequestHeader, body: bytearray, pending: PendingResponse) -> None:
    head = response_header(header[0], header[1], header[2])
    if len(body) < _JOIN_BYTES_MAX:
        pending.send((_LENGTH.pack(len(head) + len(body)) + head + body,))
    else:
        pending.send((_LENGTH.pack(len(head) + len(body)) + head, body))
