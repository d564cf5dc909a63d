"""Declares the kinds of handlers. Each module of `broker/handlers/` ends with one of them, as its `HANDLER`.

The first argument, `MESSAGES` of the API's module in `wire/generated/`, ties the handler to the request and the response
of its API: mypy refuses a function that takes another request or returns another response.

| Kind | For | Function |
| --- | --- | --- |
| `Inline` | an answer from memory, about one thing | `(request, body) -> response` |
| `ElementWise` | an answer from memory, about each of many | `(request, body, view) -> response or InParts` |
| `Awaited` | one thing that must wait: a coordinator, the controller | `async (request, body) -> response` |
| `ElementWiseAfter` | a wait, and then an answer about each of many | `async (request, body) -> found`, then `(request, body, found, view) -> response or InParts` |
| `Deferred` | Produce and Fetch: they complete the pending response themselves, and have codecs of their own | see there |
| `Enveloped` | Envelope: a request within a request | see there |

`access` is what the client must be allowed to do (authorization.py); `refuse` makes the response to a request that is
denied as a whole, where more is needed than its error code.
"""  # noqa: E501 - a table

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeAlias, TypeVar

from ottla.broker.requests.authorization import Access
from ottla.broker.requests.elements import InParts
from ottla.broker.requests.loaded_api import LoadedApi
from ottla.broker.requests.request import Request
from ottla.core.errors import KafkaError
from ottla.core.slices import WorkSlice
from ottla.metadata_store.cluster_view import ClusterView
from ottla.net.connection import PendingResponse
from ottla.net.identity import ConnectionIdentity
from ottla.wire import codec
from ottla.wire.apis import ApiKey
from ottla.wire.compiled_codec import Slices
from ottla.wire.headers import RequestHeader
from ottla.wire.schema import Messages

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")
DecodedT = TypeVar("DecodedT")
FoundT = TypeVar("FoundT")

Refuse: TypeAlias = Callable[[Request, RequestT, KafkaError], ResponseT | InParts[ResponseT]]
"""Makes the response to a request that is denied as a whole."""


class Row(NamedTuple):
    """The part of the registry's row that the driver uses."""

    first: int
    last: int
    controller_only: bool
    waits_for_members: bool


class Handler(Protocol):
    """The interface of all kinds."""

    @property
    def key(self) -> ApiKey:
        """Return the API."""
        ...

    @property
    def access(self) -> Sequence[Access]:
        """Return what the client must be allowed to do."""
        ...

    def load(self, row: Row) -> LoadedApi:
        """Take the handler apart for the driver."""
        ...


class _OfMessages(Generic[RequestT, ResponseT]):
    """A handler whose request and response the general codec decodes and encodes."""

    def __init__(
        self,
        messages: Messages[RequestT, ResponseT],
        access: Sequence[Access],
        refuse: Refuse[RequestT, ResponseT] | None,
    ) -> None:
        self.messages = messages
        self.access = access
        self.refuse = refuse

        self._checked: _Checked | None = None

    @property
    def key(self) -> ApiKey:
        """Return the API."""
        return ApiKey(self.messages.key)

    def checking(self, elements: Callable[[RequestT], Iterable[Any]], check: Callable[[Any], None]) -> Self:
        """Have elements of a request checked where it is decoded; `check` raises MalformedRequest.

        For what Kafka refuses as malformed, before it asks whether the client may send such a request.
        """
        self._checked = _Checked(elements, check)
        return self

    def _load(
        self,
        row: Row,
        handle: Callable[..., Any],
        *,
        is_coroutine: bool = False,
        is_eager: bool = False,
        is_element_wise: bool = False,
        unwraps: bool = False,
        unsupported: Callable[[], ResponseT] | None = None,
    ) -> LoadedApi:
        fields = {field.name for field in self.messages.response.WIRE}  # type: ignore[attr-defined] # of every Struct
        refuse: Callable[..., Any] | None = self.refuse
        if refuse is None and "error_code" in fields:
            refuse = partial(_refused, self.messages.response, says_why="error_message" in fields)
        demanded = tuple(access for access in self.access if access.name is not None)
        assert refuse is not None or not demanded, f"{self.key.name} cannot say that it is denied"
        decode: Callable[..., Any] = codec.request_decoder(self.key)
        decode_slices: Callable[..., Slices[Any]] = partial(codec.decode_request_slices, self.key)
        if self._checked is not None:
            decode = partial(_decode_checked, self._checked, decode)
            decode_slices = partial(_decode_slices_checked, self._checked, decode_slices)
        return LoadedApi(
            key=self.key,
            first=row.first,
            last=row.last,
            controller_only=row.controller_only,
            waits_for_members=row.waits_for_members,
            decode=decode,
            decode_slices=decode_slices,
            encode=partial(codec.encode_response_slices, self.key),
            handle=handle,
            is_coroutine=is_coroutine,
            is_eager=is_eager,
            is_element_wise=is_element_wise,
            unwraps=unwraps,
            has_throttle_time="throttle_time_ms" in fields,
            demanded=demanded,
            refuse=refuse,
            unsupported=unsupported,
            request_bytes_max=codec.REQUEST_BYTES_MAX,
        )


def _refused(response: type[Any], _request: Request, _body: object, error: KafkaError, *, says_why: bool) -> Any:
    return response(error_code=error.code, error_message=error.message) if says_why else response(error_code=error.code)


class _Checked(NamedTuple):
    """The elements of a request that are checked when it is decoded, and how."""

    elements: Callable[[Any], Iterable[Any]]
    check: Callable[[Any], None]


def _decode_checked(checked: _Checked, decode: Callable[..., Any], *frame: Any) -> Any:
    body = decode(*frame)
    for element in checked.elements(body):
        checked.check(element)
    return body


def _decode_slices_checked(
    checked: _Checked, decode: Callable[..., Slices[Any]], *frame: Any, slices: WorkSlice
) -> Slices[Any]:
    body = yield from decode(*frame, slices=slices)
    for element in checked.elements(body):
        checked.check(element)
        if slices.spend():
            yield
    return body


class Inline(_OfMessages[RequestT, ResponseT]):
    """A function that returns the response at once. `unsupported` answers a version that is not served (KIP-511)."""

    def __init__(
        self,
        messages: Messages[RequestT, ResponseT],
        handle: Callable[[Request, RequestT], ResponseT],
        *,
        access: Sequence[Access],
        unsupported: Callable[[], ResponseT] | None = None,
        refuse: Refuse[RequestT, ResponseT] | None = None,
    ) -> None:
        super().__init__(messages, access, refuse)
        self._handle, self._unsupported = handle, unsupported

    def load(self, row: Row) -> LoadedApi:
        """Take the handler apart for the driver."""
        return self._load(row, self._handle, unsupported=self._unsupported)


class ElementWise(_OfMessages[RequestT, ResponseT]):
    """A function that answers each element of a request from one snapshot of the cluster; see elements.py."""

    def __init__(
        self,
        messages: Messages[RequestT, ResponseT],
        answer: Callable[[Request, RequestT, ClusterView], ResponseT | InParts[ResponseT]],
        *,
        access: Sequence[Access],
        refuse: Refuse[RequestT, ResponseT] | None = None,
    ) -> None:
        super().__init__(messages, access, refuse)
        self.answer = answer

    def load(self, row: Row) -> LoadedApi:
        """Take the handler apart for the driver."""
        return self._load(row, self._handle, is_element_wise=True)

    def _handle(self, request: Request, body: RequestT) -> ResponseT | InParts[ResponseT]:
        view = request.services.cluster.current
        answer = self.answer(request, body, view)
        if type(answer) is InParts:
            answer.view = view  # the parts are of the snapshot that the answer itself is of
        return answer


class Awaited(_OfMessages[RequestT, ResponseT]):
    """A coroutine function. An eager one begins in the turn that reads the request: see net/eager_tasks.py."""

    def __init__(
        self,
        messages: Messages[RequestT, ResponseT],
        handle: Callable[[Request, RequestT], Coroutine[Any, Any, ResponseT]],
        *,
        access: Sequence[Access],
        eager: bool = False,
        refuse: Refuse[RequestT, ResponseT] | None = None,
    ) -> None:
        super().__init__(messages, access, refuse)
        self._handle, self._is_eager = handle, eager

    def load(self, row: Row) -> LoadedApi:
        """Take the handler apart for the driver."""
        return self._load(row, self._handle, is_coroutine=True, is_eager=self._is_eager)


class ElementWiseAfter(_OfMessages[RequestT, ResponseT], Generic[RequestT, ResponseT, FoundT]):
    """A coroutine function `first`, and a function that answers each element from what it returned.

    The snapshot is that after the wait. Elements are checked before it with `elements.collect`. `eager`: as in Awaited.
    """

    def __init__(
        self,
        messages: Messages[RequestT, ResponseT],
        *,
        first: Callable[[Request, RequestT], Coroutine[Any, Any, FoundT]],
        answer: Callable[[Request, RequestT, FoundT, ClusterView], ResponseT | InParts[ResponseT]],
        access: Sequence[Access],
        eager: bool = False,
        refuse: Refuse[RequestT, ResponseT] | None = None,
    ) -> None:
        super().__init__(messages, access, refuse)
        self.first, self.answer, self._is_eager = first, answer, eager

    def load(self, row: Row) -> LoadedApi:
        """Take the handler apart for the driver."""
        return self._load(row, self._handle, is_coroutine=True, is_eager=self._is_eager, is_element_wise=True)

    async def _handle(self, request: Request, body: RequestT) -> ResponseT | InParts[ResponseT]:
        found = await self.first(request, body)
        view = request.services.cluster.current
        answer = self.answer(request, body, found, view)
        if type(answer) is InParts:
            answer.view = view
        return answer


class Deferred(Generic[DecodedT]):
    """Functions that complete the pending response themselves, now or later.

    `handle` returns None, or what is left to be run as a task. It must not keep the Request when it returns None: the
    connection's next request takes it. `handle_long` decodes, handles and answers a request of many elements, from a
    copy of its frame; it returns what is left to do if the request has to wait.
    """

    def __init__(
        self,
        key: ApiKey,
        *,
        decode: Callable[[memoryview, int, int], DecodedT],
        handle: Callable[[Request, DecodedT, PendingResponse], Coroutine[Any, Any, Any] | None],
        handle_long: Callable[[Request, Any, int, PendingResponse], Coroutine[Any, Any, Any]],
        access: Sequence[Access],
    ) -> None:
        self.key = key
        self.access = access
        self._decode, self._handle, self._handle_long = decode, handle, handle_long

    def load(self, row: Row) -> LoadedApi:
        """Take the handler apart for the driver."""
        is_produce = self.key == ApiKey.PRODUCE
        decode: Callable[..., Any] = self._decode
        return LoadedApi(
            key=self.key,
            first=row.first,
            last=row.last,
            controller_only=row.controller_only,
            waits_for_members=row.waits_for_members,
            decode=decode,
            handle=self._handle,
            handle_long=self._handle_long,
            is_deferred=True,
            copy_frame=bytearray if is_produce else bytes,  # batches are changed in place
            request_bytes_max=codec.LENGTH_MAX if is_produce else codec.REQUEST_BYTES_MAX,
        )


class ForwardedRequest(NamedTuple):
    """A request within an Envelope."""

    header: RequestHeader
    frame: bytes
    client_host: str
    identity: ConnectionIdentity
    listener: str


class Enveloped(_OfMessages[RequestT, ResponseT]):
    """Functions that take a request out of an envelope, and put the frame of its response into one.

    The driver serves the request within from *authorize* on.
    """

    def __init__(
        self,
        messages: Messages[RequestT, ResponseT],
        *,
        unwrap: Callable[[Request, RequestT], ForwardedRequest | ResponseT],
        wrap: Callable[[bytes], ResponseT],
        malformed: Callable[[], ResponseT],
        access: Sequence[Access],
    ) -> None:
        super().__init__(messages, access, None)
        self._unwrap, self.wrap, self.malformed = unwrap, wrap, malformed

    def load(self, row: Row) -> LoadedApi:
        """Take the handler apart for the driver."""
        return self._load(row, self._handle, unwraps=True)

    def _handle(self, request: Request, body: RequestT) -> Unwrapped | ResponseT:
        inner = self._unwrap(request, body)
        return Unwrapped(inner, self.wrap, self.malformed) if isinstance(inner, ForwardedRequest) else inner


class Unwrapped(NamedTuple):
    """A request within an Envelope, and how to answer it."""

    request: ForwardedRequest
    wrap: Callable[[bytes], Any]
    malformed: Callable[[], Any]


AnyHandler: TypeAlias = (
    Inline[Any, Any]
    | ElementWise[Any, Any]
    | Awaited[Any, Any]
    | ElementWiseAfter[Any, Any, Any]
    | Deferred[Any]
    | Enveloped[Any, Any]
)
