"""Holds clients to their quotas: measures what each request uses, and has its client wait.

As in Kafka a client that is over a quota learns in the response how long it should wait, and meanwhile nothing is read
from its connection. Requests that only brokers send are exempt; of a forwarded one the broker that has the client's
connection has it wait.
"""

from __future__ import annotations

import struct
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from ottla.broker.requests.request import Request
from ottla.broker.requests.stages import Accounting
from ottla.core.events import EventKind, EventLog
from ottla.core.settings import INT_MAX
from ottla.net.connection import NO_FETCH
from ottla.security.quotas.client_quotas import ClientQuotas
from ottla.security.quotas.request_cost import RequestCost
from ottla.wire import codec
from ottla.wire.apis import BETWEEN_BROKERS, ApiKey
from ottla.wire.headers import parse_response_header

T = TypeVar("T")

_THROTTLE_TIME: Final = struct.Struct(">i")


class QuotaAccounting:
    """`Accounting` while the cluster has quotas; `inner` is that of the broker itself."""

    def __init__(self, quotas: ClientQuotas, inner: Accounting | None = None, events: EventLog | None = None) -> None:
        self.quotas = quotas
        self._inner, self._events = inner, events

    def begin(self, request: Request, frame_bytes: int) -> None:
        """Find the quotas of the client."""
        if self._inner is not None:
            self._inner.begin(request, frame_bytes)
        if request.header[0] not in BETWEEN_BROKERS:  # of followers' fetches the responses ask for no throttle time
            quotas = self.quotas
            limits = quotas.of(request.identity.principal_name, request.client_id or "")
            if limits.is_limited:
                request.cost = RequestCost(limits, frame_bytes, quotas.now)

    def throttle_time_ms(self, request: Request, record_bytes: int) -> int:
        """Record what the request has used; return how long the client has to wait for its quotas."""
        if self._inner is not None:
            self._inner.throttle_time_ms(request, record_bytes)
        cost = request.cost
        if cost is None:
            return 0
        quotas, limits, key = self.quotas, cost.limits, request.header[0]
        now_ms, throttle_ms = quotas.now_ms(), cost.throttle_ms
        if cost.mutations is not None:
            throttle_ms = max(throttle_ms, cost.mutations.throttle_ms)
        if limits.request_time is not None:
            limits.request_time.record(cost.take_used_percent(), now_ms)
            throttle_ms = max(throttle_ms, min(limits.request_time.throttle_ms(now_ms), quotas.throttle_ms_max))
        if key == ApiKey.PRODUCE and limits.produce is not None:
            limits.produce.record(cost.request_bytes, now_ms)
            throttle_ms = max(throttle_ms, limits.produce.throttle_ms(now_ms))
        elif record_bytes != NO_FETCH and limits.fetch is not None:
            limits.fetch.record(record_bytes, now_ms)
            throttle_ms = max(throttle_ms, limits.fetch.throttle_ms(now_ms))
            if throttle_ms and key == ApiKey.FETCH:  # then nothing is sent
                limits.fetch.record(-record_bytes, now_ms)
        cost.throttle_ms = min(throttle_ms, INT_MAX)
        if limits.request_time is not None:
            cost.run()  # encoding counts, too
        return cost.throttle_ms

    def pause(self, request: Request) -> None:
        """Note that the loop turns to others."""
        if self._inner is not None:
            self._inner.pause(request)
        cost = request.cost
        if cost is not None and cost.limits.request_time is not None:
            cost.pause()

    def measure(self, request: Request, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Have the steps of a coroutine measured."""
        cost = request.cost
        if cost is None or cost.limits.request_time is None:
            return work
        cost.pause()
        return cost.measure(work)

    def forwarded(self, request: Request, answer: bytes) -> None:
        """Have the client wait as long as the controller says."""
        cost, key, version = request.cost, request.header[0], request.api_version
        first = codec.shape_class(ApiKey(key), "Response").WIRE[0]
        if cost is not None and first.name == "throttle_time_ms" and version >= first.since:
            (cost.throttle_ms,) = _THROTTLE_TIME.unpack_from(answer, parse_response_header(answer, key, version)[1])

    def account(self, request: Request) -> None:
        """Record the rest of the time, and have the connection wait."""
        if self._inner is not None:
            self._inner.account(request)
        cost = request.cost
        if cost is None:
            return
        if cost.limits.request_time is not None:
            cost.limits.request_time.record(cost.take_used_percent(), self.quotas.now_ms())
        if cost.throttle_ms > 0 and not request.is_forwarded:
            self.quotas.count_throttled(request.identity.principal_name, request.client_id or "", cost.throttle_ms)
            self._record(request)
            request.connection.mute(cost.throttle_ms / 1000)

    def _record(self, request: Request) -> None:
        if self._events is None or request.api is None:
            return
        api = request.api.name.title().replace("_", "")
        who = f"client-id {request.client_id or '-'}, user {request.identity.principal_name}"
        self._events.record(
            EventKind.THROTTLED, f"{api} of {who} waits for a quota", api=api, client=request.client_id or ""
        )
