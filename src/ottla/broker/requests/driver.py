"""Serves every request in the same stages: admit, decode, authorize, route, handle, encode, account.

- **admit**: a client of a listener with SASL has signed in (sign_in.py stands before the driver until then). The
  header is read and the API looked up; `Admission` may refuse, delay, change or answer the request. A long request
  waits for memory, and is served in slices from a copy of its frame.
- **decode**: the body, by the codec of its API and version.
- **authorize**: the authorizer may deny the request as a whole; the handler asks it about single elements.
- **route**: here, or to the controller in an Envelope. Coordinators of other brokers answer NOT_COORDINATOR, or are
  asked by the handlers. A request that came in an Envelope enters at *authorize*, as the client's.
- **handle**: the handler of the API (handler.py says which kinds there are).
- **encode**: the response, in slices if it is long. Produce and Fetch encode theirs themselves.
- **account**: a response's errors are counted before it is encoded (broker/request_errors.py). When the pending
  response is completed, whatever the outcome, memory is released and `Accounting` is called.

Each stage is one place below. An unexpected error of any of them is a bug of ours: it is logged with its traceback and
closes the connection. It is caught in `__call__` alone; that of a task comes from the task to `_ended`. Elsewhere any
exception is caught only where it must not end other work: it becomes the error of one partition, or a task that runs as
long as the broker logs it and goes on.

Step 3 of 9 on the path of a batch (ARCHITECTURE.md). Before: wire/frame.py. Next: broker/handlers/produce.py.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.requests.authorization import Authorizer
from ottla.broker.requests.elements import InParts, complete
from ottla.broker.requests.handler import Unwrapped
from ottla.broker.requests.loaded_api import LoadedApi
from ottla.broker.requests.registry import ADMINISTRATIVE, APIS, INTER_BROKER_APIS
from ottla.broker.requests.request import Request
from ottla.broker.requests.stages import Accounting, Admission
from ottla.broker.services import Services
from ottla.core.errors import KafkaError
from ottla.limits.budget import ByteBudget
from ottla.net.connection import NO_FETCH, PendingResponse, ServerConnection
from ottla.wire import codec
from ottla.wire.apis import ApiKey
from ottla.wire.compiled_codec import Slices
from ottla.wire.errors import LongRequest, MalformedRequest
from ottla.wire.headers import parse_request_header, response_header

if TYPE_CHECKING:  # imported where the audit log is on, and in a cluster with ACLs
    from ottla.metadata_store.snapshot_age import SnapshotAge
    from ottla.security.audit_log import AuditLog

log = logging.getLogger(__name__)

_LENGTH: Final = struct.Struct(">i")
_JOIN_BYTES_MAX: Final = 64 << 10  # a longer response is not copied to follow its header in one piece


class RequestDriver:
    """Called by each connection with each whole frame."""

    def __init__(
        self,
        services: Services,
        decoded: ByteBudget,
        *,
        admission: Admission | None = None,
        authorizer: Authorizer | None = None,
        accounting: Accounting | None = None,
        audit_log: AuditLog | None = None,
        snapshot_age: SnapshotAge | None = None,
    ) -> None:
        self._services = services
        self._errors = services.request_errors
        self._decoded = decoded  # memory for long requests once they are decoded, and for their responses
        self._admission, self._authorizer, self._accounting = admission, authorizer, accounting
        self._snapshot_age = snapshot_age  # of what the authorizer decides by
        self._audit_log = audit_log  # of administrative changes; denials are the authorizer's to record
        self._loaded: dict[int, LoadedApi] = {}
        self._tasks: dict[asyncio.Task[None], Request] = {}

    def __call__(
        self, connection: ServerConnection, frame: memoryview, pending: PendingResponse, begun: Request | None = None
    ) -> None:
        """Begin one request (see net/connection.py for the contract), or go on with one that had to wait."""
        try:
            if begun is None:
                spare = connection.spare_request  # clients repeat themselves, and most requests end in their own turn
                if self._accounting is None and isinstance(spare, Request):
                    connection.spare_request, request = None, spare
                    request.pending = pending
                else:
                    request = self._new_request(connection, pending)
                header = key, version, pending.correlation_id, client_id, body_at = parse_request_header(frame)
                api = self._loaded.get(key) or self._load(key)
                request.header, request.api, request.api_version, request.client_id = header, api, version, client_id
                request.arrived, request.identity = connection.last_active, connection.identity
                if self._accounting is not None:
                    self._accounting.begin(request, len(frame))
                if self._admission is not None and (admitting := self._admission.admit(request, frame)) is not None:
                    self._begin(self._admit_later(request, admitting), request)
                    return
            else:
                request, api, version, body_at = begun, begun.api, begun.api_version, begun.header[4]
            if api is None or not api.first <= version <= api.last:
                self._refuse(request, frame)
                return
            if (body := request.body) is None:
                try:
                    if not api.is_deferred and len(frame) > codec.PLAIN_BYTES_MAX:  # their decoders count elements
                        raise LongRequest
                    body = api.decode(frame, version, body_at)
                except LongRequest:
                    self._begin_long(request, api, frame)
                    return
            if self._authorizer is not None and not request.is_routed and self._is_denied(request, api, body, begun):
                return
            if api.controller_only and self._must_forward(request):
                self._begin(self._forward(request, body, bytes(frame)), request)
                return
            if api.is_administrative:
                request.body = body  # for the audit log
            if api.is_deferred:
                is_long = request.reserved_bytes > 0
                work = (
                    api.handle_long(request, body, body_at, pending) if is_long else api.handle(request, body, pending)
                )
                if work is not None:
                    self._begin_cancellable(self._finish(request, work), request)
                    return
            elif not api.is_coroutine:
                self.respond(request, api, api.handle(request, body))
            elif (task := api.start(self._await(request, api, api.handle(request, body)), api.name)) is not None:
                self._keep(task, request)
                return
            if self._accounting is not None:
                self._accounting.pause(request)
            elif begun is None and (api.is_deferred or pending.parts is not None):
                connection.spare_request = request
        except Exception as error:  # noqa: BLE001 - it is logged there
            pending.fail(error)

    # ---- Admit

    def _new_request(self, connection: ServerConnection, pending: PendingResponse) -> Request:
        request = Request(self._services, connection, pending)
        request.authorizer = self._authorizer
        if self._accounting is not None:
            pending.on_completed, pending.throttle = partial(self._account, request), partial(self._throttle, request)
        return request

    def _load(self, key: int) -> LoadedApi | None:
        """Import the handler, at the first request of its API."""
        row = APIS.get(key) or INTER_BROKER_APIS.get(key)  # type: ignore[call-overload]
        if row is None:
            return None
        api: LoadedApi = row.load()
        api.is_administrative = self._audit_log is not None and key in ADMINISTRATIVE
        self._loaded[key] = api
        return api

    async def _admit_later(self, request: Request, admitting: Coroutine[Any, Any, bytearray | None]) -> None:
        frame = await admitting
        if frame is not None:
            self(request.connection, memoryview(frame), request.pending, request)

    def _refuse(self, request: Request, frame: memoryview) -> None:
        """Respond to an API or version that is not served.

        ApiVersions is answered in version 0 so that any client can read it (KIP-511); an old Produce in its own
        layout, because it is advertised (KAFKA-18659). For the rest Kafka closes the connection, as a client that sends
        what was never advertised could not read any response either.
        """
        key, version, correlation_id, _, body_at = request.header
        api = request.api
        if api is not None and api.unsupported is not None:
            request.api_version = 0
            self.respond(request, api, api.unsupported())
        elif key == ApiKey.PRODUCE and 0 <= version < APIS[ApiKey.PRODUCE].min_version:
            from ottla.wire.hot import produce_old

            refusal = produce_old.refusal(frame[body_at:], version)
            if not refusal:  # with acks=0 there is no response: only closing the connection can signal it
                raise MalformedRequest(f"Produce version {version} is not served")
            request.pending.send((_LENGTH.pack(4 + len(refusal)) + _LENGTH.pack(correlation_id) + refusal,))
        else:
            raise MalformedRequest(f"api key {key} version {version} is not served")

    def prepare_refusal(
        self, connection: ServerConnection, frame: memoryview, pending: PendingResponse, error: KafkaError
    ) -> Callable[[], None]:
        """Return what responds with an error to a short request that is not served. It may be called later.

        Where the request is malformed, or its API has no such response, the connection is closed.
        """
        try:
            header = key, version, pending.correlation_id, client_id, body_at = parse_request_header(frame)
            api = self._loaded.get(key) or self._load(key)
            if api is None or api.refuse is None or not api.first <= version <= api.last:
                return pending.abandon
            if len(frame) > codec.PLAIN_BYTES_MAX:
                return pending.abandon
            body = api.decode(frame, version, body_at)
        except MalformedRequest:
            return pending.abandon
        request = self._new_request(connection, pending)
        request.header, request.api, request.api_version, request.client_id = header, api, version, client_id
        return partial(self._refuse_all, request, api, body, error)

    # ---- Decode

    def _begin_long(self, request: Request, api: LoadedApi, frame: memoryview) -> None:
        """Begin a request of so many elements that it must not hold the loop: in slices, and in a bounded memory."""
        if len(frame) > api.request_bytes_max:
            raise MalformedRequest(f"a {api.name} request of {len(frame)} bytes; the limit is {api.request_bytes_max}")
        request.pending.on_completed = partial(self._account, request)
        self._begin_cancellable(self._decode_long(request, api, api.copy_frame(frame)), request)

    async def _decode_long(self, request: Request, api: LoadedApi, frame: bytes | bytearray) -> None:
        """Decode in slices, once there is memory for it. From then on a lost connection does not end the request."""
        slices = self._services.slices
        decoded_bytes = codec.decoded_bytes_max(len(frame))
        await self._decoded.reserve(decoded_bytes)
        request.reserved_bytes = decoded_bytes
        if api.is_deferred:
            request.body = frame  # the handler decodes it
        else:
            _, version, _, _, body_at = request.header
            request.body = await slices.run(api.decode_slices(version, frame, body_at, slices=slices))
        if api.waits_for_members:  # and these need memory for their requests
            self._release(request)
        self(request.connection, memoryview(frame), request.pending, request)

    # ---- Authorize

    def _is_denied(self, request: Request, api: LoadedApi, body: Any, begun: Request | None) -> bool:
        """Respond to a request that is denied as a whole.

        While the ACLs may be older than they may be the client is disconnected, which it takes for what it is: another
        broker may know more. The clock is read only if the answer may not be the same as when the request arrived.
        """
        age, authorizer = self._snapshot_age, self._authorizer
        if (
            age is not None
            and authorizer is not None
            and (begun is not None or request.arrived > age.holds_until_s)
            and request.connection.is_signed_in
            and age.is_too_old()
            and not authorizer.is_super_user(request.identity)
        ):
            request.pending.abandon()
            return True
        for access in api.demanded:
            if access.name is not None and access.denies(request, access.name(body)):
                self._refuse_all(request, api, body, access.error)
                return True
        return False

    def _refuse_all(self, request: Request, api: LoadedApi, body: Any, error: KafkaError) -> None:
        """Respond with an error to all that a request asks for."""
        assert api.refuse is not None, "it was looked for when the handler was imported"
        answer = api.refuse(request, body, error)
        if isinstance(answer, InParts):
            answer.view = self._services.cluster.current
        self.respond(request, api, answer, is_refusal=True)

    # ---- Route

    def _must_forward(self, request: Request) -> bool:
        return not (request.is_routed or request.is_forwarded) and self._services.controller_channel.must_forward

    async def _forward(self, request: Request, body: Any, frame: bytes) -> None:
        """Respond with the controller's response. If there is none, the handler here says so."""
        from ottla.broker.requests.forwarded_identity import encode_identity

        channel, principal = self._services.controller_channel, encode_identity(request.identity, request.listener)
        try:
            answer = await channel.forward(frame, client_host=request.client_host, principal=principal)
        except KafkaError as error:
            log.info("a request could not be forwarded to the controller: %s", error.message)
            request.is_routed, request.body = True, body
            self(request.connection, memoryview(frame), request.pending, request)
        else:
            if self._accounting is not None:
                self._accounting.forwarded(request, answer)
            request.pending.send((_LENGTH.pack(len(answer)), answer))

    async def _serve_unwrapped(self, envelope: Request, api: LoadedApi, unwrapped: Unwrapped) -> None:
        """Serve the request within an Envelope."""
        from ottla.broker.requests.inner_response import InnerResponse

        forwarded, slices = unwrapped.request, self._services.slices
        key, version, _, client_id, body_at = forwarded.header
        inner = self._loaded.get(key) or self._load(key)
        assert inner is not None, "the handler of Envelope knows the API"

        def answer_envelope(response: bytes) -> None:
            self.respond(envelope, api, unwrapped.wrap(response[_LENGTH.size :]))

        pending = InnerResponse(envelope.pending, answer_envelope)
        request = self._new_request(envelope.connection, pending)
        request.header, request.api, request.api_version, request.client_id = (
            forwarded.header,
            inner,
            version,
            client_id,
        )
        request.identity, request.listener = forwarded.identity, forwarded.listener
        request.client_host, request.is_forwarded = forwarded.client_host, True
        request.arrived, pending.correlation_id = envelope.arrived, forwarded.header[2]
        if self._accounting is not None:
            self._accounting.begin(request, len(forwarded.frame))
        try:
            request.body = await slices.run(inner.decode_slices(version, forwarded.frame, body_at, slices=slices))
        except MalformedRequest:
            self.respond(envelope, api, unwrapped.malformed())
        else:
            self(request.connection, memoryview(forwarded.frame), pending, request)

    # ---- Handle

    def _begin(self, waiting: Coroutine[Any, Any, None], request: Request) -> asyncio.Task[None]:
        name = request.api.name if request.api is not None else ""
        if self._accounting is not None:
            waiting = self._accounting.measure(request, waiting)
        task = asyncio.get_running_loop().create_task(waiting, name=name)
        self._keep(task, request)
        return task

    def _begin_cancellable(self, waiting: Coroutine[Any, Any, None], request: Request) -> None:
        """Begin what ends with the client's connection."""
        task = self._begin(waiting, request)
        request.connection.cancel_when_lost(task)
        task.add_done_callback(request.connection.keep)

    def _keep(self, task: asyncio.Task[None], request: Request) -> None:
        self._tasks[task] = request
        if self._accounting is not None:
            self._accounting.pause(request)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        pending = self._tasks.pop(task).pending
        if task.cancelled():
            if pending.parts is None:
                pending.abandon()
        elif isinstance(error := task.exception(), Exception):
            pending.fail(error)

    async def _await(self, request: Request, api: LoadedApi, work: Coroutine[Any, Any, Any]) -> None:
        if self._accounting is not None:
            work = self._accounting.measure(request, work)
        self.respond(request, api, await work)

    async def _finish(self, request: Request, work: Coroutine[Any, Any, Any]) -> None:
        """Run what is left of a request of a deferred API: it uses many partitions."""
        rest = await work
        self._release(request)
        if rest is not None:  # it waits for data
            await rest

    # ---- Encode

    def respond(self, request: Request, api: LoadedApi, answer: Any, *, is_refusal: bool = False) -> None:
        """Encode and send the response now, or in slices if it turns out to be long."""
        if api.unwraps and isinstance(answer, Unwrapped):
            self._begin(self._serve_unwrapped(request, api, answer), request)
            return
        throttle_time_ms = 0 if self._accounting is None else self._throttle(request, NO_FETCH)
        encoding = None
        if (api.is_element_wise or is_refusal) and isinstance(answer, InParts):
            encoding = self._complete_and_encode(request, api, answer)
            answer = answer.answer
        else:
            places = api.error_places or api.find_error_places()
            self._errors.look_at(api.key, places, answer, request.client_id)
            if api.is_administrative:
                encoding = self._record_and_encode(request, api, answer)
        if throttle_time_ms and api.has_throttle_time:
            answer.throttle_time_ms = throttle_time_ms
        if encoding is None:
            encoding = api.encode(request.api_version, answer, slices=self._services.slices)
        try:
            next(encoding)
        except StopIteration as end:
            _send(request, end.value)
        else:
            self._begin(self._encode_rest(request, encoding), request)

    def _complete_and_encode(self, request: Request, api: LoadedApi, answer: InParts[Any]) -> Slices[bytearray]:
        response = yield from complete(request, answer)
        places = api.error_places or api.find_error_places()
        self._errors.look_at(api.key, places, response, request.client_id)
        body: bytearray = yield from self._record_and_encode(request, api, response)
        return body

    def _record_and_encode(self, request: Request, api: LoadedApi, response: Any) -> Slices[bytearray]:
        """Encode a response; what an administrative request has changed is recorded in the audit log before."""
        if api.is_administrative and self._audit_log is not None and request.body is not None:
            from ottla.broker.requests import audited_changes

            asked, request.body = request.body, None
            yield from audited_changes.record(self._audit_log, request, asked, response)
        body: bytearray = yield from api.encode(request.api_version, response, slices=self._services.slices)
        return body

    async def _encode_rest(self, request: Request, encoding: Slices[bytearray]) -> None:
        await self._services.slices.yield_to_loop()
        _send(request, await self._services.slices.run(encoding))

    # ---- Account

    def account_with(self, accounting: Accounting | None) -> None:
        """Measure all requests that arrive from now on, or none."""
        self._accounting = accounting

    def _throttle(self, request: Request, record_bytes: int) -> int:
        """Set and return the throttle time of a response that is about to be encoded."""
        if self._accounting is None:
            return 0
        throttle_time_ms = self._accounting.throttle_time_ms(request, record_bytes)
        request.pending.throttle_time_ms = throttle_time_ms
        return throttle_time_ms

    def _account(self, request: Request, _pending: PendingResponse) -> None:
        self._release(request)
        if self._accounting is not None:
            self._accounting.account(request)

    def _release(self, request: Request) -> None:
        reserved_bytes, request.reserved_bytes = request.reserved_bytes, 0
        if reserved_bytes:
            self._decoded.release(reserved_bytes)

    async def drain(self, within_seconds: float) -> None:
        """Let begun requests end; cancel those that do not."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_seconds
        while self._tasks and (left := deadline - loop.time()) > 0:
            await asyncio.wait(self._tasks, timeout=left)
        for task in tuple(self._tasks):
            task.cancel()


def _send(request: Request, body: bytearray) -> None:
    key, _, correlation_id, _, _ = request.header
    head = response_header(key, request.api_version, correlation_id)
    if len(body) < _JOIN_BYTES_MAX:
        request.pending.send((_LENGTH.pack(len(head) + len(body)) + head + body,))
    else:
        request.pending.send((_LENGTH.pack(len(head) + len(body)) + head, body))
