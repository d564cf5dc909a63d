"""Keeps what each client has used of its quotas, in a bounded number of rates that expire as in Kafka.

A rate belongs to the quota and to who shares it (`Limit`), not to a connection. The rates of a client are looked up
once for each pair of user and client id; a change of the quotas drops what was looked up and keeps the rates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ottla.core.rates import SampledRate, TokenBucket
from ottla.security.config import QuotaConfig
from ottla.security.quotas.entities import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from ottla.security.quotas.matching import QuotaTable

EXPIRE_MS: Final = 3600 * 1000  # as Kafka's sensors
RATES_MAX: Final = 10_000
"""Clients choose their client ids: of more rates than this the least recently used half is forgotten."""

_SWEEP_MS: Final = 60 * 1000
THROTTLED_MAX: Final = 1_000
"""Users and client ids whose throttle times are counted each for itself; the rest is counted together."""

OTHERS: Final = ("", "other")


class ClientLimits:
    """The rates that count for one client; None where it has no quota."""

    __slots__ = ("fetch", "fetch_bytes_max", "is_limited", "mutations", "produce", "request_time")

    def __init__(
        self,
        produce: SampledRate | None,
        fetch: SampledRate | None,
        request_time: SampledRate | None,
        mutations: TokenBucket | None,
    ) -> None:
        self.produce = produce
        self.fetch = fetch
        self.request_time = request_time  # in percent of the time of the event loop
        self.mutations = mutations
        self.is_limited = not (produce is None and fetch is None and request_time is None and mutations is None)
        self.fetch_bytes_max: int | None = None  # a larger response would never be within the quota
        if fetch is not None:
            self.fetch_bytes_max = int(fetch.limit * (fetch.sample_count - 1) * fetch.window_ms / 1000)


class ClientQuotas:
    """The quotas of all clients of this broker, and what they have used."""

    def __init__(self, config: QuotaConfig, table: QuotaTable, now: Callable[[], float]) -> None:
        self._config, self._table = config, table
        self.now = now  # monotonic, in seconds
        self._clients: dict[tuple[str, str], ClientLimits] = {}
        self._rates: dict[tuple[str, str, str], SampledRate] = {}
        self._buckets: dict[tuple[str, str], TokenBucket] = {}
        self._sweep_at_ms = self.now_ms() + _SWEEP_MS
        self.throttled_ms: dict[tuple[str, str], int] = {}  # by user and client id, since the start

    def count_throttled(self, user: str, client_id: str, throttle_ms: int) -> None:
        """Count how long a client has to wait."""
        key = user, client_id
        if key not in self.throttled_ms and len(self.throttled_ms) >= THROTTLED_MAX:
            key = OTHERS
        self.throttled_ms[key] = self.throttled_ms.get(key, 0) + throttle_ms

    def __len__(self) -> int:
        return len(self._rates) + len(self._buckets)

    def now_ms(self) -> int:
        """Return the time in milliseconds, of the same clock as `now`."""
        return int(self.now() * 1000)

    def look_up_again(self) -> None:
        """Apply the table as it is now: what was used before still counts."""
        self._clients.clear()

    @property
    def throttle_ms_max(self) -> int:
        """Return how long a client waits at most at a time because of its request time."""
        return self._config.window_seconds * 1000

    def of(self, user: str, client_id: str) -> ClientLimits:
        """Return the rates of a client."""
        limits = self._clients.get((user, client_id))
        if limits is None:
            self._sweep(self.now_ms())
            limits = self._clients[user, client_id] = ClientLimits(
                self._rate(PRODUCER_BYTE_RATE, user, client_id),
                self._rate(CONSUMER_BYTE_RATE, user, client_id),
                self._rate(REQUEST_PERCENTAGE, user, client_id),
                self._bucket(user, client_id),
            )
        return limits

    def _rate(self, key: str, user: str, client_id: str) -> SampledRate | None:
        limit = self._table.limit(key, user, client_id)
        if limit is None:
            return None
        shared = (key, limit.user, limit.client_id)
        rate = self._rates.get(shared)
        if rate is None:
            config = self._config
            rate = SampledRate(limit.value, sample_count=config.window_num, window_ms=config.window_seconds * 1000)
            rate.used_ms = self.now_ms()
            self._rates[shared] = rate
        rate.limit = limit.value
        return rate

    def _bucket(self, user: str, client_id: str) -> TokenBucket | None:
        limit = self._table.limit(CONTROLLER_MUTATION_RATE, user, client_id)
        if limit is None:
            return None
        bucket = self._buckets.get((limit.user, limit.client_id))
        if bucket is None:
            config = self._config
            bucket = self._buckets[limit.user, limit.client_id] = TokenBucket(
                limit.value,
                sample_count=config.controller_window_num,
                window_ms=config.controller_window_seconds * 1000,
                now_ms=self.now_ms(),
            )
        bucket.limit = limit.value
        return bucket

    def _sweep(self, now_ms: int) -> None:
        """Forget what was not used for an hour, and more if there is too much: called before a client is added.

        A client that is looked up already keeps its rates only until then: all are looked up again.
        """
        is_full = len(self) >= RATES_MAX or len(self._clients) >= RATES_MAX
        if now_ms < self._sweep_at_ms and not is_full:
            return
        self._sweep_at_ms = now_ms + _SWEEP_MS
        oldest_ms = now_ms - EXPIRE_MS
        if len(self) >= RATES_MAX:
            used = sorted(
                [rate.used_ms for rate in self._rates.values()] + [bucket.used_ms for bucket in self._buckets.values()]
            )
            oldest_ms = max(oldest_ms, used[len(used) // 2] + 1)
        self._clients.clear()
        self._rates = {shared: rate for shared, rate in self._rates.items() if rate.used_ms >= oldest_ms}
        self._buckets = {shared: bucket for shared, bucket in self._buckets.items() if bucket.used_ms >= oldest_ms}
