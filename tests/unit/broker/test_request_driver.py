"""Every row of the registry passes every stage of the driver exactly once, whatever happens to the request."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.handlers.envelope import FORWARDED_IN_PART
from ottla.broker.requests.authorization import AuthorizableRequest, on_cluster
from ottla.broker.requests.driver import RequestDriver
from ottla.broker.requests.forwarded_identity import decode_identity, encode_identity
from ottla.broker.requests.inner_response import InnerResponse
from ottla.broker.requests.loaded_api import LoadedApi
from ottla.broker.requests.registry import APIS, INTER_BROKER_APIS, Api
from ottla.broker.requests.request import Request
from ottla.broker.requests.stages import T
from ottla.core.acls import CLUSTER_NAME, AclOperation, PatternType, PermissionType, ResourceType
from ottla.core.error_codes import ErrorCode
from ottla.core.errors import NotController
from ottla.limits.budget import ByteBudget
from ottla.metadata_store.cluster_view import ClusterView
from ottla.net.connection import NO_FETCH, PendingResponse
from ottla.net.identity import ANONYMOUS, ConnectionIdentity
from ottla.testing.requests import connection_without_socket
from ottla.wire import codec
from ottla.wire.apis import ApiKey
from ottla.wire.codec import PLAIN_BYTES_MAX
from ottla.wire.errors import LongRequest, MalformedRequest
from ottla.wire.generated.envelope import EnvelopeRequest, EnvelopeResponse
from ottla.wire.headers import encode_request_header, parse_response_header
from tests.support.requests import bare_services
from tests.support.waiting import until

ROWS = [*APIS.values(), *INTER_BROKER_APIS.values()]
DEMANDING = [row for row in ROWS if any(access.name is not None for access in row.handler().access)]
"""The APIs that a client must be allowed to use as a whole."""
OF_THE_CONTROLLER = [row for row in APIS.values() if row.controller_only]
VALID: dict[ApiKey, dict[str, int]] = {
    ApiKey.DESCRIBE_ACLS: {
        "resource_type_filter": ResourceType.ANY,
        "pattern_type_filter": PatternType.ANY,
        "operation": AclOperation.ANY,
        "permission_type": PermissionType.ANY,
    }
}
"""The fields of the requests that are malformed with the values by default."""
MEMORY_BYTES = 1 << 30
CORRELATION_ID = 7
THROTTLE_MS = 250
ALICE = ConnectionIdentity("User", "alice")

each_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.module)


class Stages:
    """The stages that requests pass, in order. It is what is plugged into the driver, and the channel to the controller."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.by_api: list[tuple[str, str]] = []
        self.accounted: list[Request] = []
        self.denies = False
        self.take_over: Callable[[Request, bytearray], Coroutine[Any, Any, bytearray | None]] | None = None
        self.controller_is_elsewhere = False
        self.answer_of_controller: bytes | None = None

    def note(self, stage: str, api: LoadedApi | None) -> None:
        self.passed.append(stage)
        self.by_api.append(("?" if api is None else api.name, stage))

    def admit(self, request: Request, frame: memoryview) -> Coroutine[Any, Any, bytearray | None] | None:
        assert len(frame) >= 10
        self.note("admit", request.api)
        return None if self.take_over is None else self.take_over(request, bytearray(frame))

    def is_super_user(self, identity: ConnectionIdentity) -> bool:
        return False

    def is_allowed(
        self,
        request: AuthorizableRequest,
        operation: AclOperation,
        resource: ResourceType,
        name: str,
        *,
        log_if_denied: bool = True,
    ) -> bool:
        assert isinstance(request, Request) and (resource, name) == (ResourceType.CLUSTER, CLUSTER_NAME)
        assert operation is AclOperation.CLUSTER_ACTION and log_if_denied
        self.note("authorize", request.api)
        return not self.denies

    def is_allowed_for_any(self, request: AuthorizableRequest, operation: AclOperation, resource: ResourceType) -> bool:
        raise AssertionError("the handlers of this test do nothing")

    def begin(self, request: Request, frame_bytes: int) -> None:
        assert request.header[2] is not None and frame_bytes >= 10

    def throttle_time_ms(self, request: Request, record_bytes: int) -> int:
        assert record_bytes == NO_FETCH
        return THROTTLE_MS

    def pause(self, request: Request) -> None:
        pass

    def measure(self, request: Request, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        return work

    def forwarded(self, request: Request, answer: bytes) -> None:
        assert answer == self.answer_of_controller

    def account(self, request: Request) -> None:
        self.note("account", request.api)
        self.accounted.append(request)

    @property
    def must_forward(self) -> bool:
        self.passed.append("route")
        return self.controller_is_elsewhere

    async def forward(self, frame: bytes, *, client_host: str, principal: bytes) -> bytes:
        assert (client_host, decode_identity(principal)) == ("127.0.0.1", (ANONYMOUS, "PLAINTEXT"))
        if self.answer_of_controller is None:
            raise NotController
        return self.answer_of_controller


class Driven:
    """A driver whose handlers return empty responses, and one connection."""

    def __init__(self) -> None:
        self.stages = Stages()
        services = bare_services(
            controller=SimpleNamespace(is_active=True),
            controller_channel=self.stages,
            cluster=SimpleNamespace(current=ClusterView()),
        )
        self.memory = ByteBudget(MEMORY_BYTES)
        self.driver = RequestDriver(
            services, self.memory, admission=self.stages, authorizer=self.stages, accounting=self.stages
        )
        self.connection = connection_without_socket()
        self.handled: list[Request] = []

    def watch(self, row: Api) -> LoadedApi:
        """Count the stages of an API that are its own functions."""
        api = self.driver._load(row.key)
        assert api is not None
        decode, decode_slices, encode, handle = api.decode, api.decode_slices, api.encode, api.handle
        response = codec.shape_class(row.key, "Response")

        def counted_decode(frame: memoryview | bytes | bytearray, version: int, at: int) -> Any:
            if api.is_deferred and len(frame) > PLAIN_BYTES_MAX:
                raise LongRequest
            self.stages.note("decode", api)
            return decode(frame, version, at)

        def counted_decode_slices(*arguments: Any, **named: Any) -> Any:
            self.stages.note("decode", api)
            return decode_slices(*arguments, **named)

        def counted_encode(*arguments: Any, **named: Any) -> Any:
            self.stages.note("encode", api)
            return encode(*arguments, **named)

        def handled(request: Request, body: Any) -> Any:
            self.stages.note("handle", api)
            self.handled.append(request)
            return handle(request, body) if row.key == ApiKey.ENVELOPE else response()

        async def awaited(request: Request, body: Any) -> Any:
            await asyncio.sleep(0)
            return handled(request, body)

        def deferred(request: Request, _body: Any, pending: PendingResponse) -> None:
            self.stages.note("handle", api)
            assert pending.throttle is not None and pending.throttle(NO_FETCH) == THROTTLE_MS
            pending.send((b"response",))

        async def long(request: Request, _frame: Any, _at: int, pending: PendingResponse) -> None:
            self.stages.note("decode", api)
            deferred(request, None, pending)

        api.demanded = (on_cluster(AclOperation.CLUSTER_ACTION),)
        api.decode, api.decode_slices, api.encode = counted_decode, counted_decode_slices, counted_encode
        api.handle = deferred if api.is_deferred else awaited if api.is_coroutine else handled
        api.handle_long = long
        return api

    async def send(self, frame: bytes) -> PendingResponse:
        """Send a request; returns its response once it is completed and all its tasks have ended."""
        pending = PendingResponse(self.connection)
        self.driver(self.connection, memoryview(bytearray(frame)), pending)
        await until(lambda: pending.parts is not None and not self.driver._tasks)
        assert self.memory.used_bytes == 0
        return pending

    @property
    def is_closed(self) -> bool:
        return self.connection._closing


def frame_of(row: Api, *, version: int | None = None, body: bytes | None = None, padding: int = 0) -> bytes:
    number = row.max_version if version is None else version
    header = encode_request_header(row.key, number, CORRELATION_ID, "client")
    if body is None:
        fields = VALID.get(row.key, {})
        body = codec.encode_request(row.key, row.max_version, codec.shape_class(row.key, "Request")(**fields))
    return header + body + bytes(padding)


def stages_of(row: Api, api: LoadedApi, *, before: tuple[str, ...] = ("admit", "decode", "authorize")) -> list[str]:
    """All stages of a request that is served here. An answer of Produce and Fetch is encoded while it is handled."""
    route = ["route"] if row.controller_only else []
    return [*before, *route, "handle", *([] if api.is_deferred else ["encode"]), "account"]


@each_row
@pytest.mark.parametrize("padding", [0, PLAIN_BYTES_MAX], ids=["short", "long"])
async def test_each_request_passes_each_stage_once(row: Api, padding: int) -> None:
    driven = Driven()
    api = driven.watch(row)

    pending = await driven.send(frame_of(row, padding=padding))

    if api.is_deferred and padding:  # it is decoded while it is handled
        assert driven.stages.passed == stages_of(row, api, before=("admit", "authorize", "decode"))
    else:
        assert driven.stages.passed == stages_of(row, api)
    assert [request.pending for request in driven.stages.accounted] == [pending]
    assert pending.parts and not driven.is_closed


@each_row
async def test_a_delayed_request_passes_each_stage_once(row: Api) -> None:
    driven = Driven()
    api = driven.watch(row)

    async def wait(_request: Request, frame: bytearray) -> bytearray:
        return await asyncio.sleep(0, frame)

    driven.stages.take_over = wait
    await driven.send(frame_of(row))
    assert driven.stages.passed == stages_of(row, api)


@each_row
async def test_a_request_that_is_not_admitted_ends_there(row: Api) -> None:
    async def refuse(_request: Request, _frame: bytearray) -> None:
        raise MalformedRequest("sign in first")

    driven = Driven()
    driven.watch(row)
    driven.stages.take_over = refuse
    await driven.send(frame_of(row))
    assert driven.stages.passed == ["admit", "account"]
    assert driven.is_closed


@each_row
async def test_a_request_may_be_answered_before_it_begins(row: Api) -> None:
    async def answer(request: Request, _frame: bytearray) -> None:
        request.pending.send((b"answer",))

    driven = Driven()
    driven.watch(row)
    driven.stages.take_over = answer
    pending = await driven.send(frame_of(row))
    assert driven.stages.passed == ["admit", "account"]
    assert pending.parts == (b"answer",)


@each_row
async def test_the_response_to_a_request_may_go_into_another_one(row: Api) -> None:
    inner_frames: list[bytes] = []

    async def observe(request: Request, frame: bytearray) -> bytearray:
        outer = request.pending

        def answer(inner_frame: bytes) -> None:
            inner_frames.append(inner_frame)
            request.pending = outer
            outer.send((b"answer",))

        request.pending = InnerResponse(outer, answer)
        return frame

    driven = Driven()
    api = driven.watch(row)
    driven.stages.take_over = observe
    pending = await driven.send(frame_of(row))
    assert driven.stages.passed == stages_of(row, api)
    assert pending.parts == (b"answer",)
    assert len(inner_frames) == 1
    if not api.is_deferred:
        assert int.from_bytes(inner_frames[0][4:8], "big") == CORRELATION_ID


@pytest.mark.parametrize("row", DEMANDING, ids=lambda row: row.module)
async def test_a_denied_request_is_not_handled(row: Api) -> None:
    driven = Driven()
    driven.watch(row)
    driven.stages.denies = True

    pending = await driven.send(frame_of(row))

    assert driven.stages.passed == ["admit", "decode", "authorize", "encode", "account"]
    assert not driven.is_closed
    error_code = getattr(response_of(row, pending), "error_code", ErrorCode.NONE)  # others have that of each element
    assert error_code in (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.NONE)  # older versions have no field


@each_row
async def test_an_unsupported_version_is_admitted_and_accounted(row: Api) -> None:
    driven = Driven()
    driven.watch(row)
    pending = await driven.send(frame_of(row, version=row.max_version + 1))
    answered = row.key == ApiKey.API_VERSIONS
    assert driven.stages.passed == ["admit", *(["encode"] if answered else []), "account"]
    assert bool(pending.parts) == answered != driven.is_closed


async def test_an_old_produce_is_admitted_answered_and_accounted() -> None:
    driven = Driven()
    body = struct.pack(">hii", 1, 1000, 0)
    pending = await driven.send(frame_of(APIS[ApiKey.PRODUCE], version=2, body=body))
    assert driven.stages.passed == ["admit", "account"]
    assert pending.parts and not driven.is_closed


@pytest.mark.parametrize("key", [-1, 4, 9999])
async def test_an_unknown_api_is_admitted_and_accounted(key: int) -> None:
    driven = Driven()
    await driven.send(struct.pack(">hhih", key, 0, CORRELATION_ID, -1))
    assert driven.stages.by_api == [("?", "admit"), ("?", "account")]
    assert driven.is_closed


@pytest.mark.parametrize("frame", [b"", b"\0\3", struct.pack(">hhih", 3, 0, 1, 99)], ids=["empty", "short", "name"])
async def test_a_malformed_header_is_accounted(frame: bytes) -> None:
    driven = Driven()
    await driven.send(frame)
    assert driven.stages.by_api == [("?", "account")]
    assert driven.is_closed


@each_row
async def test_a_malformed_request_ends_at_its_decoding(row: Api) -> None:
    driven = Driven()
    driven.watch(row)
    whole = frame_of(row)
    header = len(frame_of(row, body=b""))
    await driven.send(whole[:header])
    if len(whole) > header:  # there are requests without a body
        assert driven.stages.passed == ["admit", "decode", "account"]
    assert driven.is_closed == (len(whole) > header)


@pytest.mark.parametrize("row", OF_THE_CONTROLLER, ids=lambda row: row.module)
@pytest.mark.parametrize("padding", [0, PLAIN_BYTES_MAX], ids=["short", "long"])
async def test_a_request_for_another_controller_is_forwarded_once(row: Api, padding: int) -> None:
    driven = Driven()
    driven.watch(row)
    driven.stages.controller_is_elsewhere, driven.stages.answer_of_controller = True, b"theirs"
    pending = await driven.send(frame_of(row, padding=padding))
    assert driven.stages.passed == ["admit", "decode", "authorize", "route", "account"]
    assert pending.parts == (struct.pack(">i", 6), b"theirs")


@pytest.mark.parametrize("row", OF_THE_CONTROLLER, ids=lambda row: row.module)
@pytest.mark.parametrize("padding", [0, PLAIN_BYTES_MAX], ids=["short", "long"])
async def test_a_request_that_no_controller_answers_is_handled_here(row: Api, padding: int) -> None:
    driven = Driven()
    api = driven.watch(row)
    driven.stages.controller_is_elsewhere = True
    await driven.send(frame_of(row, padding=padding))
    assert driven.stages.passed == stages_of(row, api)


@pytest.mark.parametrize(
    "row", [*OF_THE_CONTROLLER, *(APIS[key] for key in FORWARDED_IN_PART)], ids=lambda row: row.module
)
async def test_a_forwarded_request_enters_at_authorize_as_the_clients(row: Api) -> None:
    driven = Driven()
    envelope, inner = driven.watch(INTER_BROKER_APIS[ApiKey.ENVELOPE]), driven.watch(row)
    driven.connection.listener = "INTERNAL"
    request = EnvelopeRequest(
        request_data=frame_of(row),
        request_principal=encode_identity(ALICE, "EXTERNAL"),
        client_host_address=bytes([10, 0, 0, 9]),
    )
    body = codec.encode_request(ApiKey.ENVELOPE, 0, request)

    pending = await driven.send(frame_of(INTER_BROKER_APIS[ApiKey.ENVELOPE], body=body))

    assert driven.stages.by_api == [
        *((envelope.name, stage) for stage in ("admit", "decode", "authorize", "handle")),
        *((inner.name, stage) for stage in ("decode", "authorize", "handle", "encode", "account")),
        *((envelope.name, stage) for stage in ("encode", "account")),
    ]
    forwarded = driven.handled[-1]
    assert (forwarded.identity, forwarded.listener, forwarded.client_host) == (ALICE, "EXTERNAL", "10.0.0.9")
    assert forwarded.is_forwarded and forwarded.client_id == "client"
    answer = response_of(INTER_BROKER_APIS[ApiKey.ENVELOPE], pending)
    assert isinstance(answer, EnvelopeResponse) and answer.error_code == ErrorCode.NONE
    assert answer.response_data is not None and answer.response_data[:4] == struct.pack(">i", CORRELATION_ID)


async def test_a_malformed_request_in_an_envelope_does_not_close_the_brokers_connection() -> None:
    driven = Driven()
    driven.watch(INTER_BROKER_APIS[ApiKey.ENVELOPE])
    driven.watch(APIS[ApiKey.CREATE_TOPICS])
    request = EnvelopeRequest(request_data=frame_of(APIS[ApiKey.CREATE_TOPICS], body=b""), request_principal=None)
    body = codec.encode_request(ApiKey.ENVELOPE, 0, request)
    pending = await driven.send(frame_of(INTER_BROKER_APIS[ApiKey.ENVELOPE], body=body))
    assert response_of(INTER_BROKER_APIS[ApiKey.ENVELOPE], pending).error_code == ErrorCode.INVALID_REQUEST
    assert not driven.is_closed


@each_row
async def test_a_failed_handler_closes_the_connection_once(row: Api) -> None:
    def fail(*_arguments: Any) -> Any:
        raise RuntimeError("a bug")

    async def fail_later(*_arguments: Any) -> Any:
        await asyncio.sleep(0)
        raise RuntimeError("a bug")

    driven = Driven()
    api = driven.watch(row)
    api.handle = fail_later if api.is_coroutine else fail
    pending = await driven.send(frame_of(row))
    assert driven.stages.passed[-1] == "account" and driven.stages.passed.count("account") == 1
    assert driven.is_closed and pending.parts == ()


@each_row
async def test_the_driver_sets_the_throttle_time_of_each_response_that_has_one(row: Api) -> None:
    driven = Driven()
    if driven.watch(row).is_deferred:
        return  # `deferred` above
    answer = response_of(row, await driven.send(frame_of(row)))
    if hasattr(answer, "throttle_time_ms"):
        assert answer.throttle_time_ms == THROTTLE_MS


def response_of(row: Api, pending: PendingResponse) -> Any:
    """Decode a response of the newest version."""
    frame = b"".join(bytes(part) for part in pending.parts or ())[4:]  # type: ignore[arg-type]
    _, at = parse_response_header(frame, row.key, row.max_version)
    return codec.decode_response(row.key, row.max_version, frame, at)
