"""Finds requests that take long, from their arrival to their response, if the settings ask for it.

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


class SlowRequests:
    """`Accounting` that finds slow requests; `inner` is that of the broker itself."""

    def __init__(self, clock: Clock, events: EventLog, *, slow_s: float, inner: Accounting | None = None) -> None:
        self._clock, self._events, self._slow_s, self._inner = clock, events, slow_s, inner
        self._second, self._logged, self._left_out = 0, 0, 0

    def begin(self, request: Request, frame_bytes: int) -> None:
        """Pass it on."""
        if self._inner is not None:
            self._inner.begin(request, frame_bytes)

    def throttle_time_ms(self, request: Request, record_bytes: int) -> int:
        """Pass it on."""
        return 0 if self._inner is None else self._inner.throttle_time_ms(request, record_bytes)

    def pause(self, request: Request) -> None:
        """Pass it on."""
        if self._inner is not None:
            self._inner.pause(request)

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
        seconds = self._clock.monotonic() - request.arrived
        if seconds >= self._slow_s and request.header[0] not in WAITING:
            self._record(request, seconds)

    def _record(self, request: Request, seconds: float) -> None:
        name = api_name(request.header[0])
        where = request_id(request)
        cause = f"{name} took {seconds:.3g} s"
        self._events.record(
            EventKind.SLOW_REQUEST,
            cause,
            client=request.client_id or "",
            request=where,
            numbers={"seconds": round(seconds, 3), "version": request.api_version},
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
        text = "slow request %s: %s version %d of client %s at %s took %.3f s%s"
        log.warning(
            text, where, name, request.api_version, request.client_id or "-", request.client_host, seconds, more
        )


def request_id(request: Request) -> str:
    """Return the id of a request as events and log lines have it: of its connection, and the client's own number."""
    return f"{request.connection_id & 0xFFFFFFFF:08x}-{request.header[2]}"
