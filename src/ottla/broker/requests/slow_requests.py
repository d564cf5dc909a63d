"""Finds requests that take long, from their arrival to their response, and where the time was spent.

While metrics are served each request is timed anyway (metrics/request_times.py), and a slow one is recorded by
`SlowRequestLog`. If a setting asks for it requests are timed without metrics, too, by `SlowRequests`.

The times that a client asks for do not count: its fetches wait for data, and members of groups for each other.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from ottla.broker.requests.request import Request
from ottla.broker.requests.stages import Accounting
from ottla.core.clock import Clock
from ottla.core.events import EventKind, EventLog
from ottla.security.audit_log import api_name
from ottla.wire.apis import ApiKey

T = TypeVar("T")
log = logging.getLogger(__name__)

WAITING: Final = frozenset({ApiKey.FETCH, ApiKey.SHARE_FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP})
"""The requests that wait by their nature."""

LOGGED_PER_S: Final = 10
"""More slow requests of a second are counted, and the next line says how many."""


class SlowRequestLog:
    """Records requests that are known to be slow: an event, and a line in the log."""

    def __init__(self, clock: Clock, events: EventLog, *, slow_s: float) -> None:
        self.slow_s = slow_s
        self._clock, self._events = clock, events
        self._second, self._logged, self._left_out = 0, 0, 0

    def look_at(self, request: Request, now: float) -> None:
        """Record a request that ends now, by the clock of its connection, if it was slow."""
        seconds = now - request.arrived
        if seconds < self.slow_s or request.header[0] in WAITING:
            return
        left = request.left_loop or now
        spent = {
            "queue": request.begun - request.arrived,  # until it was begun
            "local": left - request.begun,  # until it was answered, or began to wait
            "remote": now - left,  # for replicas, the disk, other brokers or members
            "throttle": request.pending.throttle_time_ms / 1000,  # afterwards
        }
        self._record(request, seconds, {part: round(value, 3) for part, value in spent.items() if value >= 0.0005})

    def _record(self, request: Request, seconds: float, spent: dict[str, float]) -> None:
        name = api_name(request.header[0])
        where = request_id(request)
        split = ", ".join(f"{part} {value:.3g} s" for part, value in spent.items())
        self._events.record(
            EventKind.SLOW_REQUEST,
            f"{name} took {seconds:.3g} s" + (f" ({split})" if split else ""),
            client=request.client_id or "",
            request=where,
            numbers={"seconds": round(seconds, 3), "version": request.api_version, **spent},
            api=name,
        )
        second = int(self._clock.monotonic())
        if second != self._second:
            self._second, self._logged = second, 0
        if self._logged >= LOGGED_PER_S:
            self._left_out += 1
            return
        self._logged += 1
        more = f"; {self._left_out} more since the last line" if self._left_out else ""
        self._left_out = 0
        text = "slow request %s: %s version %d of client %s at %s took %.3f s: %s%s"
        log.warning(
            text, where, name, request.api_version, request.client_id or "-", request.client_host, seconds, split, more
        )


class SlowRequests:
    """`Accounting` that times requests to find the slow ones; `inner` is that of the broker itself."""

    def __init__(self, clock: Clock, events: EventLog, *, slow_s: float, inner: Accounting | None = None) -> None:
        self._now, self._log = clock.monotonic, SlowRequestLog(clock, events, slow_s=slow_s)
        self._inner = inner

    def begin(self, request: Request, frame_bytes: int) -> None:
        """Note when it was begun."""
        request.begun = self._now()
        if self._inner is not None:
            self._inner.begin(request, frame_bytes)

    def throttle_time_ms(self, request: Request, record_bytes: int) -> int:
        """Pass it on."""
        return 0 if self._inner is None else self._inner.throttle_time_ms(request, record_bytes)

    def pause(self, request: Request) -> None:
        """Note when it begins to wait."""
        if self._inner is not None:
            self._inner.pause(request)
        if request.left_loop == 0.0 and request.pending.parts is None:
            request.left_loop = self._now()

    def measure(self, request: Request, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Pass it on."""
        return work if self._inner is None else self._inner.measure(request, work)

    def forwarded(self, request: Request, answer: bytes) -> None:
        """Pass it on."""
        if self._inner is not None:
            self._inner.forwarded(request, answer)

    def account(self, request: Request) -> None:
        """Record the request if it was slow."""
        if self._inner is not None:
            self._inner.account(request)
        self._log.look_at(request, self._now())


def request_id(request: Request) -> str:
    """Return the id of a request as events and log lines have it: of its connection, and the client's own number."""
    return f"{request.connection_id & 0xFFFFFFFF:08x}-{request.header[2]}"
