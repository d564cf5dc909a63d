"""Counts the requests of each API and how long they took: the driver's `Accounting` while metrics are served.

As Kafka splits it: **queue** from the arrival of the bytes to the driver, **local** until the request is answered or
waits for something, **remote** what it waited, **throttle** what its client has to wait afterwards. A response is
written in the turn of the loop that completes it, after this is called: it has no time of its own.

Only plain integers are changed here. `collectors/requests.py` reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from ottla.broker.requests.request import Request
from ottla.broker.requests.slow_requests import SlowRequestLog
from ottla.core.histogram import Histogram
from ottla.net.connection import NO_FETCH

T = TypeVar("T")

_US: Final = 1_000_000


class ApiTimes:
    """The requests of one API."""

    __slots__ = ("local", "queue", "remote", "request_bytes", "requests", "throttle", "total", "versions")

    def __init__(self) -> None:
        self.requests = 0
        self.request_bytes = 0
        self.versions: dict[int, int] = {}
        self.total, self.queue, self.local = Histogram(), Histogram(), Histogram()
        self.remote, self.throttle = Histogram(), Histogram()


class RequestTimes:
    """Measures all requests. It changes none: what throttles is `inner`, or the accounting of quotas around it."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.apis: dict[int, ApiTimes] = {}  # by API key
        self.fetched_bytes = 0  # records that consumers got
        self.slow: SlowRequestLog | None = None  # the reader sets it, once the broker serves
        self._now = now  # monotonic, in seconds, the clock of the connections

    def begin(self, request: Request, frame_bytes: int) -> None:
        """Note that a request has arrived."""
        key = request.header[0]
        times = self.apis.get(key)
        if times is None:
            times = self.apis[key] = ApiTimes()
        times.requests += 1
        times.request_bytes += frame_bytes
        version = request.header[1]
        times.versions[version] = times.versions.get(version, 0) + 1
        request.begun = self._now()

    def throttle_time_ms(self, _request: Request, record_bytes: int) -> int:
        """Throttle no client; count what a Fetch sends."""
        if record_bytes != NO_FETCH:
            self.fetched_bytes += record_bytes
        return 0

    def pause(self, request: Request) -> None:
        """Note when a request begins to wait."""
        if request.left_loop == 0.0 and request.pending.parts is None:
            request.left_loop = self._now()

    def measure(self, _request: Request, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Return the work as it is."""
        return work

    def forwarded(self, _request: Request, _answer: bytes) -> None:
        """Ignore the controller's response."""

    def account(self, request: Request) -> None:
        """Count what a request took."""
        times = self.apis.get(request.header[0])
        if times is None:  # the accounting changed meanwhile
            return
        now, begun, pending = self._now(), request.begun, request.pending
        left = request.left_loop or now
        times.queue.record(int((begun - request.arrived) * _US))
        times.local.record(int((left - begun) * _US))
        if request.left_loop:
            times.remote.record(int((now - left) * _US))
        times.total.record(int((now - request.arrived) * _US) + pending.throttle_time_ms * 1000)
        if pending.throttle_time_ms:
            times.throttle.record(pending.throttle_time_ms * 1000)
        slow = self.slow
        if slow is not None and now - request.arrived >= slow.slow_s:
            slow.look_at(request, now)
