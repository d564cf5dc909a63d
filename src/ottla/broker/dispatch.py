"""From a frame to a typed request and from a typed answer to bytes.

One of the three places where any exception is caught: what is not expected trouble is our bug, is logged with its
traceback, and the client is told UNKNOWN_SERVER_ERROR by the end of its connection.

Station 3 of 9 on a batch's journey. Before: wire/frame.py. After: broker/handlers/produce.py.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Coroutine
from types import CoroutineType
from typing import Any, NamedTuple

from ottla.broker.context import RequestContext, Services
from ottla.broker.later import Later
from ottla.broker.registry import APIS, Handler
from ottla.net.connection import Answer, Connection
from ottla.net.outbound import part_size
from ottla.quotas.budget import ByteBudget
from ottla.wire import codec
from ottla.wire.apis import ApiKey
from ottla.wire.errors import AnswerTooLarge, MalformedRequest
from ottla.wire.headers import RequestHeader, parse_request_header, response_header
from ottla.wire.plan import Slices

log = logging.getLogger(__name__)

_LENGTH = struct.Struct(">i")
_JOIN_BYTES_MAX = 64 << 10  # a longer answer is not copied to follow its header in one piece

Decode = Callable[[memoryview, int, int], Any]
Encode = Callable[[int, Any], bytes | list[Any]]


class _Served(NamedTuple):
    """A row of the table of APIs with everything it takes to serve it."""

    name: str
    first: int
    last: int
    pipelined: bool
    waits_for_members: bool
    is_hot: bool  # Produce and Fetch have codecs of their own
    handler: Handler
    decode: Decode
    encode: Encode


class Dispatcher:
    """Called by each connection with each whole frame."""

    def __init__(self, services: Services, decoded: ByteBudget) -> None:
        self._services = services
        self._decoded = decoded  # memory for long requests once they are decoded, and for their answers
        self._served: dict[int, _Served] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, connection: Connection, frame: memoryview, answer: Answer) -> None:
        """Begin one request; see net/connection.py for the contract."""
        try:
            header = parse_request_header(frame)
            key, version, _, client_id, body_at = header
            served = self._served.get(key) or self._load(key)
            if served is None or not served.first <= version <= served.last:
                self._refuse(frame, header, answer)
                return
            if len(frame) > codec.PLAIN_BYTES_MAX and not served.is_hot:
                self._begin_long(connection, frame, header, served, answer)
                return
            request = served.decode(frame, version, body_at)
            response = served.handler(self._context(connection, version, client_id), request)
            if isinstance(response, CoroutineType):
                self._begin(self._await(connection, header, served, response, answer), served.name)
            elif isinstance(response, Later):  # Produce: no task, one call between the disk and the answer
                answer.pipelined = served.pipelined and response.pipelined
                response.then(lambda value: self._finish(connection, header, served, response, value, answer))
            elif served.is_hot:
                _answer(header, served, response, answer)
            else:
                self._encode(connection, header, served, response, answer)
        except MalformedRequest as error:
            log.warning("closing the connection from %s: %s", connection.host, error)
            _abandon(connection, answer)
        except Exception:
            log.exception("unexpected error while serving a request from %s", connection.host)
            _abandon(connection, answer)

    def _context(self, connection: Connection, version: int, client_id: str | None) -> RequestContext:
        """Clients mostly repeat themselves: the last context is good as long as version and client id stay."""
        context = connection.context
        if isinstance(context, RequestContext) and context.api_version == version and context.client_id == client_id:
            return context
        context = connection.context = RequestContext(
            self._services,
            api_version=version,
            client_id=client_id,
            client_host=connection.host,
            listener=connection.listener,
            connection_id=id(connection),
            state=connection.state,
        )
        return context

    def _finish(
        self,
        connection: Connection,
        header: RequestHeader,
        served: _Served,
        later: Later[Any],
        response: Any,
        answer: Answer,
    ) -> None:
        try:
            if later.failure is not None:
                raise later.failure
            _answer(header, served, response, answer)
        except MalformedRequest as error:
            log.warning("closing the connection from %s: %s", connection.host, error)
            _abandon(connection, answer)
        except Exception:
            log.exception("unexpected error while answering %s", connection.host)
            _abandon(connection, answer)

    def _begin(self, waiting: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(waiting, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _begin_long(
        self, connection: Connection, frame: memoryview, header: RequestHeader, served: _Served, answer: Answer
    ) -> None:
        """A request of so many elements that it must not hold the loop: in slices, and in a bounded memory."""
        if len(frame) > codec.REQUEST_BYTES_MAX:
            raise MalformedRequest(
                f"a {served.name} request of {len(frame)} bytes; the limit is {codec.REQUEST_BYTES_MAX}"
            )
        work = self._serve_long(connection, bytes(frame), header, served, answer)
        task = self._begin(work, served.name)
        connection.cancel_when_lost(task)
        task.add_done_callback(connection.keep)

    async def _serve_long(
        self, connection: Connection, frame: bytes, header: RequestHeader, served: _Served, answer: Answer
    ) -> None:
        slices, budget = self._services.slices, self._decoded
        drawn_bytes = codec.decoded_bytes_max(len(frame))
        await budget.take_when_free(drawn_bytes)
        try:
            key, version, _, client_id, body_at = header
            request = await slices.run(codec.decode_request_slices(ApiKey(key), version, frame, body_at, slices=slices))
            if (task := asyncio.current_task()) is not None:  # from here on it has effects: they are not given up
                connection.keep(task)
            if served.waits_for_members:  # and these need memory for their requests
                budget.give(drawn_bytes)
                drawn_bytes = 0
            response = served.handler(self._context(connection, version, client_id), request)
            if isinstance(response, CoroutineType):
                response = await response
            await self._answer_in_slices(header, response, answer)
        except (MalformedRequest, AnswerTooLarge) as error:
            log.warning("closing the connection from %s: %s", connection.host, error)
            _abandon(connection, answer)
        except Exception:
            log.exception("unexpected error while serving a request from %s", connection.host)
            _abandon(connection, answer)
        finally:
            if drawn_bytes:
                budget.give(drawn_bytes)

    def _encode(
        self, connection: Connection, header: RequestHeader, served: _Served, response: Any, answer: Answer
    ) -> None:
        """Answer now, or in slices where the answer turns out to be long."""
        slices = self._services.slices
        encoding = codec.encode_response_slices(ApiKey(header.api_key), header.api_version, response, slices=slices)
        try:
            next(encoding)
        except StopIteration as end:
            _send(header, end.value, answer)
        else:
            self._begin(self._encode_rest(connection, header, encoding, answer), served.name)

    async def _encode_rest(
        self, connection: Connection, header: RequestHeader, encoding: Slices[bytearray], answer: Answer
    ) -> None:
        try:
            await self._services.slices.yield_to_loop()
            _send(header, await self._services.slices.run(encoding), answer)
        except AnswerTooLarge as error:
            log.warning("closing the connection from %s: %s", connection.host, error)
            _abandon(connection, answer)
        except Exception:
            log.exception("unexpected error while answering %s", connection.host)
            _abandon(connection, answer)

    async def _answer_in_slices(self, header: RequestHeader, response: Any, answer: Answer) -> None:
        slices = self._services.slices
        encoding = codec.encode_response_slices(ApiKey(header.api_key), header.api_version, response, slices=slices)
        _send(header, await slices.run(encoding), answer)

    async def _await(
        self,
        connection: Connection,
        header: RequestHeader,
        served: _Served,
        response: Coroutine[Any, Any, Any],
        answer: Answer,
    ) -> None:
        try:
            if served.is_hot:
                _answer(header, served, await response, answer)
            else:
                await self._answer_in_slices(header, await response, answer)
        except AnswerTooLarge as error:
            log.warning("closing the connection from %s: %s", connection.host, error)
            _abandon(connection, answer)
        except Exception:
            log.exception("unexpected error while serving a request from %s", connection.host)
            _abandon(connection, answer)

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

    def _load(self, key: int) -> _Served | None:
        """The first request of an API brings in its handler and its codec."""
        api = APIS.get(key)  # type: ignore[call-overload]
        if api is None:
            return None
        decode, encode = _codec_of(api.key)
        served = _Served(
            name=api.key.name,
            first=api.min_version,
            last=api.max_version,
            pipelined=api.pipelined,
            waits_for_members=api.waits_for_members,
            is_hot=api.key in (ApiKey.PRODUCE, ApiKey.FETCH),
            handler=api.handler(),
            decode=decode,
            encode=encode,
        )
        self._served[key] = served
        return served

    async def drain(self, within_seconds: float) -> None:
        """Let begun requests end; those that wait for something that will not come are cancelled."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within_seconds)
        for task in tuple(self._tasks):
            task.cancel()


def _codec_of(key: ApiKey) -> tuple[Decode, Encode]:
    """How requests of an API are read and its answers written; imported, like the handler, when first needed."""
    match key:
        case ApiKey.PRODUCE:
            from ottla.wire.hot import produce as hot_produce

            return (
                lambda frame, version, at: hot_produce.decode_produce_request(frame[at:], version),
                lambda version, response: hot_produce.encode_produce_response(response, version),
            )
        case ApiKey.FETCH:
            from ottla.wire.hot import fetch as hot_fetch

            return (
                lambda frame, version, at: hot_fetch.decode_fetch_request(frame[at:], version),
                lambda version, response: hot_fetch.encode_fetch_response(response, version),
            )
        case _:
            return (
                lambda frame, version, at: codec.decode_request(key, version, frame, at),
                lambda version, response: codec.encode_response(key, version, response),
            )


def _answer(header: RequestHeader, served: _Served, response: Any, answer: Answer) -> None:
    if response is None:  # acks=0: there is no answer, and its place must not be waited for
        answer.send(())
        return
    head = response_header(header.api_key, header.api_version, header.correlation_id)
    body = served.encode(header.api_version, response)
    if isinstance(body, bytes):
        answer.send((_LENGTH.pack(len(head) + len(body)) + head + body,))
    else:
        size = len(head) + sum(part_size(part) for part in body)
        answer.send((_LENGTH.pack(size) + head, *body))


def _send(header: RequestHeader, body: bytearray, answer: Answer) -> None:
    head = response_header(header.api_key, header.api_version, header.correlation_id)
    if len(body) < _JOIN_BYTES_MAX:
        answer.send((_LENGTH.pack(len(head) + len(body)) + head + body,))
    else:
        answer.send((_LENGTH.pack(len(head) + len(body)) + head, body))


def _abandon(connection: Connection, answer: Answer) -> None:
    """The stream of requests and answers is no longer in step: only a new connection can mend it."""
    connection.close()
    if answer.parts is None:
        answer.send(())
