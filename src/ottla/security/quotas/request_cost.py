"""Measures what one request costs its client: bytes, time of the event loop, and mutations of the controller."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Protocol, TypeVar

from ottla.core.error_codes import ErrorCode
from ottla.core.errors import KafkaError, error_for
from ottla.core.rates import TokenBucket
from ottla.security.quotas.client_quotas import ClientLimits

T = TypeVar("T")


class FetchLimits(Protocol):
    """The part of a fetch request that a quota bounds."""

    max_bytes: int
    min_bytes: int


class MutationQuota:
    """The quota of controller mutations (KIP-599) as one request uses it.

    A strict one refuses mutations once the bucket is below zero, and lets the request that empties it pass whole. Of a
    version that does not know the error, all pass, and the client waits.
    """

    __slots__ = ("_bucket", "_is_strict", "_now", "_recorded_ms", "_throttle_ms")

    def __init__(self, bucket: TokenBucket, now: Callable[[], float], *, is_strict: bool) -> None:
        self._bucket, self._now, self._is_strict = bucket, now, is_strict
        self._throttle_ms = self._recorded_ms = 0

    def refusal(self, mutations: int) -> KafkaError | None:
        """Count mutations; return the error if they are refused."""
        now_ms = int(self._now() * 1000)
        if self._is_strict and (throttle_ms := self._bucket.throttle_ms(now_ms)):
            self._throttle_ms, self._recorded_ms = throttle_ms, now_ms
            return error_for(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded.")
        self._bucket.take(mutations, now_ms)
        if not self._is_strict:
            self._throttle_ms, self._recorded_ms = self._bucket.throttle_ms(now_ms), now_ms
        return None

    @property
    def throttle_ms(self) -> int:
        """Return how long the client has to wait, less what has passed since the mutations."""
        return max(0, self._throttle_ms - (int(self._now() * 1000) - self._recorded_ms))


class RequestCost:
    """Measures what one request uses, until its response."""

    __slots__ = ("_now", "_running_since", "limits", "mutations", "request_bytes", "throttle_ms", "used_s")

    def __init__(self, limits: ClientLimits, request_bytes: int, now: Callable[[], float]) -> None:
        self.limits = limits
        self.request_bytes = request_bytes
        self.used_s = 0.0  # of the loop's time, and not recorded yet
        self.throttle_ms = 0
        self.mutations: MutationQuota | None = None
        self._now = now
        self._running_since: float | None = now()

    def run(self) -> None:
        """Note that the loop works for this request from now on."""
        if self._running_since is None:
            self._running_since = self._now()

    def pause(self) -> None:
        """Note that the loop turns to others."""
        if self._running_since is not None:
            self.used_s += self._now() - self._running_since
            self._running_since = None

    def take_used_percent(self) -> float:
        """Return what the request has used since the last call, as a percentage of one second."""
        self.pause()
        used_s, self.used_s = self.used_s, 0.0
        return used_s * 100

    def mutation_quota(self, *, is_strict: bool) -> MutationQuota | None:
        """Return the quota of mutations that counts for the request; None if there is none."""
        if self.limits.mutations is not None and self.mutations is None:
            self.mutations = MutationQuota(self.limits.mutations, self._now, is_strict=is_strict)
        return self.mutations

    def limit_fetch(self, request: FetchLimits) -> None:
        """Bound what a fetch asks for by what can be within the quota at all, as Kafka does."""
        bytes_max = self.limits.fetch_bytes_max
        if bytes_max is not None:
            request.max_bytes = min(request.max_bytes, bytes_max)
            request.min_bytes = min(request.min_bytes, request.max_bytes)

    async def measure(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and measure each of its steps, not the time between them."""
        result: T = await _Measured(self, work)
        return result


class _Measured:
    """Awaits a coroutine step by step."""

    __slots__ = ("_cost", "_work")

    def __init__(self, cost: RequestCost, work: Coroutine[Any, Any, Any]) -> None:
        self._cost, self._work = cost, work

    def __await__(self) -> Generator[Any, Any, Any]:
        cost, step, argument = self._cost, self._work.send, None
        try:
            while True:
                cost.run()
                try:
                    waited_for = step(argument)
                except StopIteration as end:
                    return end.value
                finally:
                    cost.pause()
                try:
                    argument = yield waited_for
                    step = self._work.send
                except BaseException as error:  # noqa: BLE001 - it is the coroutine's, which may go on
                    step, argument = self._work.throw, error
        finally:
            self._work.close()
