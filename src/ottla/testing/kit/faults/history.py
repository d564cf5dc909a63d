"""Records the requests of clients and their responses, so that a test can assert how its client behaves.

Messages are kept as bytes and decoded when a test looks at them. What is kept is bounded; the oldest requests go first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from ottla.broker.requests.request import Request
from ottla.core.files import FileRegion
from ottla.net.outbound import Part
from ottla.testing.kit.faults.names import name_of
from ottla.testing.kit.faults.responses import errors_in
from ottla.wire import codec
from ottla.wire.apis import ApiKey
from ottla.wire.headers import parse_response_header

REQUESTS_MAX = 10_000
BYTES_MAX = 64 << 20
_LENGTH_BYTES = 4


class ClientRequest:
    """A request that a client has sent, and the response to it.

    `time_ms` is the brokers' time of day when it came, `duration_ms` what its response took, None while there is none
    (a fault may have dropped it). `faults` lists the faults that have changed something.
    """

    def __init__(self, request: Request, key: ApiKey, frame: bytes) -> None:
        self.api = name_of(key)
        self.version = request.api_version
        self.client_id = request.client_id
        self.broker = request.services.node_id
        self.time_ms = request.services.clock.wall_ms()
        self.duration_ms: float | None = None
        self.faults: list[str] = []
        self.size_bytes = len(frame)
        self._key, self._frame, self._body_at = key, frame, request.header[4]
        self._began = request.services.clock.monotonic()
        self._response_version = self.version
        self._response: bytes | None = None  # without records; None: not answered, or without a response (acks=0)

    def __repr__(self) -> str:
        answer = "not answered" if self.duration_ms is None else " ".join(self.errors) or "ok"
        return f"{self.api} v{self.version} of {self.client_id!r} to broker {self.broker}: {answer}"

    @property
    def is_answered(self) -> bool:
        """Return whether the request has been answered, or needs no response (acks=0)."""
        return self.duration_ms is not None

    @property
    def _needs_no_response(self) -> bool:
        return self._key is ApiKey.PRODUCE and self.body.acks == 0

    @cached_property
    def body(self) -> Any:
        """Return the decoded request: a struct with the fields of Kafka's message in snake_case."""
        return codec.decode_request(self._key, self.version, self._frame, self._body_at)

    @cached_property
    def response(self) -> Any | None:
        """Return the decoded response, in which records may be zeros; None if there is none."""
        if self._response is None:
            return None
        _, body_at = parse_response_header(self._response, self._key, self._response_version)
        return codec.decode_response(self._key, self._response_version, self._response, body_at)

    @property
    def errors(self) -> tuple[str, ...]:
        """Return the names of the errors in the response, each once."""
        response = self.response
        return () if response is None else tuple(error.name for error in errors_in(response))

    def answered(self, request: Request, parts: Sequence[Part]) -> int:
        """Note the response; returns the bytes that it takes."""
        if not parts and not self._needs_no_response:
            return 0  # the connection was closed
        self.duration_ms = (request.services.clock.monotonic() - self._began) * 1000
        if not parts:
            return 0
        whole = b"".join(bytes(part.size) if isinstance(part, FileRegion) else part for part in parts)
        self._response, self._response_version = whole[_LENGTH_BYTES:], request.api_version
        self.__dict__.pop("response", None)
        return len(whole)


class History:
    """The last requests of the clients of one kit. Written on the brokers' loop, read anywhere."""

    def __init__(self) -> None:
        self.dropped = 0  # requests that are not kept any more
        self._requests: deque[ClientRequest] = deque()
        self._bytes = 0
        self._unanswered: dict[Request, ClientRequest] = {}

    def begin(self, request: Request, frame: memoryview) -> ClientRequest | None:
        """Record a request that came. None if its API is not served."""
        api = request.api
        if api is None or not api.first <= request.api_version <= api.last:
            return None
        recorded = self._unanswered[request] = ClientRequest(request, api.key, bytes(frame))
        self._requests.append(recorded)
        self._bytes += len(frame)
        if len(self._requests) > REQUESTS_MAX or self._bytes > BYTES_MAX:
            self._drop()
        return recorded

    def of(self, request: Request) -> ClientRequest | None:
        """Return what is recorded of a request that is not answered."""
        return self._unanswered.get(request)

    def end(self, request: Request) -> None:
        """Record the response of a request."""
        recorded = self._unanswered.pop(request, None)
        if recorded is not None:
            size_bytes = recorded.answered(request, request.pending.parts or ())
            recorded.size_bytes += size_bytes
            self._bytes += size_bytes

    def _drop(self) -> None:
        while len(self._requests) > REQUESTS_MAX or (self._bytes > BYTES_MAX and len(self._requests) > 1):
            oldest = self._requests.popleft()
            self._bytes -= oldest.size_bytes
            self.dropped += 1
        if len(self._unanswered) > 2 * REQUESTS_MAX:
            kept = set(self._requests)
            self._unanswered = {request: recorded for request, recorded in self._unanswered.items() if recorded in kept}

    def requests(
        self, key: ApiKey | None = None, client_id: str | None = None, broker: int | None = None
    ) -> list[ClientRequest]:
        """Return the requests, in the order in which they came."""
        return [
            request
            for request in list(self._requests)
            if (key is None or request.api == name_of(key))
            and client_id in (None, request.client_id)
            and broker in (None, request.broker)
        ]
