"""Limits connections: how many of the broker, of a listener and of an address, and how fast they may begin.

The rules are Kafka's (KIP-308, KIP-402, KIP-612) where it has some. Kafka leaves connections over a limit in a queue of
the kernel; here they are closed, and the client learns of it. Those that come too fast wait before their first request
is read, as they would wait in that queue.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from ottla.core.settings import INT_MAX
from ottla.net.config import NetConfig

if TYPE_CHECKING:  # with the first rate
    from ottla.core.rates import SampledRate

SHARE_OF_AN_ADDRESS: Final = 2
"""Without `max.connections.per.ip` one address, if it is not of this host, may have this part of the connections."""

ADDRESSES_MAX: Final = 10_000
"""Of more addresses than this the rates of new connections are forgotten."""


class Connection(Protocol):
    """The part of a connection that is limited."""

    listener: str
    host: str
    last_active: float


ConnectionT = TypeVar("ConnectionT", bound=Connection)


class Admission(NamedTuple):
    """Says what becomes of a new connection."""

    refusal: str = ""  # why it is closed, if it is
    wait_s: float = 0.0  # before its first request is read; of a refused one before it is closed


ADMITTED: Final = Admission()


class ConnectionLimits:
    """Counts the connections of a broker. `protected` is the listener between brokers, if clients have another one.

    A connection of the protected listener is let in although the broker has as many as it may: a client's is closed.
    """

    def __init__(
        self,
        config: NetConfig,
        of_listener: Callable[[str], NetConfig] | None = None,
        *,
        now: Callable[[], float],
        handles_for: int | None = None,
        protected: str = "",
        window_num: int = 11,
        window_seconds: int = 1,
    ) -> None:
        self._now = now
        self._handles_for = handles_for  # connections there are file handles for; None for no limit
        self._protected = protected
        self._window_num, self._window_ms = window_num, window_seconds * 1000
        self._rates: dict[str, SampledRate] = {}  # by listener; of all but the protected one under ""
        self._rates_of_hosts: dict[str, SampledRate] = {}
        self._limit_of_hosts: dict[str, float] = {}
        self._limit_of_any_host: float | None = None
        self._of_listener: dict[str, NetConfig] = {}
        self._count = 0
        self.created: Counter[str] = Counter()  # by listener, since the start of the broker
        self.refused: Counter[str] = Counter()
        self._per_listener: Counter[str] = Counter()
        self._per_host: Counter[str] = Counter()
        self.configure(config, of_listener)

    def configure(self, config: NetConfig, of_listener: Callable[[str], NetConfig] | None = None) -> None:
        """Apply settings from now on: those of the broker, and as each listener has them."""
        self._config = config
        self._find_of_listener = of_listener or (lambda _: config)
        self._of_listener.clear()
        self._per_ip = parse_counts(config.connections_per_ip_overrides)
        for listener, rate in self._rates.items():
            rate.limit = self._rate_of(listener)

    def use_rates(self, by_address: Mapping[str, float], of_any: float | None) -> None:
        """Limit the rate of new connections of an address, or of each that has no limit of its own."""
        self._limit_of_hosts = {normal_address(address): limit for address, limit in by_address.items()}
        self._limit_of_any_host = of_any
        for host, rate in list(self._rates_of_hosts.items()):
            limit = self._limit_of_hosts.get(host, of_any)
            if limit is None:
                del self._rates_of_hosts[host]
            else:
                rate.limit = limit

    # ---- Connections

    def open(self, listener: str, host: str) -> Admission:
        """Count a new connection, and decide what becomes of it. `close` is called for a refused one, too."""
        self._count += 1
        self._per_listener[listener] += 1
        self._per_host[host] += 1
        self.created[listener] += 1
        refusal = self._refusal(listener, host)
        if refusal:
            self.refused[listener] += 1
            return Admission(refusal)
        now_ms = int(self._now() * 1000)
        if wait_ms := self._wait_of_host(host, now_ms):
            return Admission(
                f"too many new connections of {host}: its quota is connection_creation_rate", wait_ms / 1000
            )
        wait_ms = 0
        keys = (listener,) if listener == self._protected else (listener, "")
        rates = [rate for rate in map(self._rate, keys) if rate is not None]
        for rate in rates:
            rate.record(1.0, now_ms)
            wait_ms = max(wait_ms, rate.throttle_ms(now_ms))
        if wait_ms > self._window_num * self._window_ms:  # the client would give up: it does not count
            for rate in rates:
                rate.record(-1.0, now_ms)
            return Admission("too many new connections: max.connection.creation.rate")
        return Admission(wait_s=wait_ms / 1000) if wait_ms else ADMITTED

    def close(self, listener: str, host: str) -> None:
        """Note that a connection has ended."""
        self._count -= 1
        for counter, key in ((self._per_listener, listener), (self._per_host, host)):
            counter[key] -= 1
            if not counter[key]:
                del counter[key]

    @property
    def per_listener(self) -> Mapping[str, int]:
        """Return how many connections there are, by listener."""
        return self._per_listener

    @property
    def excess(self) -> int:
        """Return how many connections there are above the limits of the broker."""
        at_most = self._config.connections_max
        return self._count - (at_most if self._handles_for is None else min(at_most, self._handles_for))

    def least_recently_used(self, connections: Iterable[ConnectionT], count: int) -> list[ConnectionT]:
        """Return the connections to close for those of the protected listener."""
        unprotected = [
            connection for connection in connections if not self._protected or connection.listener != self._protected
        ]
        return sorted(unprotected, key=lambda connection: connection.last_active)[:count]

    def _refusal(self, listener: str, host: str) -> str:
        """Return which limit a new connection exceeds; empty if none."""
        config, of_listener = self._config, self._settings_of(listener)
        if listener != self._protected and self._handles_for is not None and self._count > self._handles_for:
            return f"there are file handles for {self._handles_for} connections (ulimit -n)"
        if listener != self._protected and self._count > config.connections_max:
            return f"max.connections={config.connections_max} reached"
        if self._per_listener[listener] > of_listener.connections_max:
            return f"max.connections={of_listener.connections_max} of listener {listener} reached"
        at_most = self._per_ip.get(host, config.connections_per_ip_max)
        if self._per_host[host] > at_most:
            return f"max.connections.per.ip={at_most} reached by {host}"
        share = config.connections_max // SHARE_OF_AN_ADDRESS
        if at_most == INT_MAX and self._per_host[host] > share and not _is_of_this_host(host):
            return f"{host} has half of max.connections; max.connections.per.ip would let it have more"
        return ""

    # ---- Rates

    def _settings_of(self, listener: str) -> NetConfig:
        config = self._of_listener.get(listener)
        if config is None:
            config = self._of_listener[listener] = self._find_of_listener(listener)
        return config

    def _rate_of(self, listener: str) -> float:
        config = self._settings_of(listener) if listener else self._config
        return config.connection_rate_max

    def _rate(self, listener: str) -> SampledRate | None:
        """Return the rate of a listener, or under "" of the broker; None without a limit."""
        limit = self._rate_of(listener)
        if limit == INT_MAX:
            return None
        rate = self._rates.get(listener)
        if rate is None:
            rate = self._rates[listener] = self._new_rate(limit)
        return rate

    def _new_rate(self, limit: float) -> SampledRate:
        from ottla.core.rates import SampledRate

        return SampledRate(limit, sample_count=self._window_num, window_ms=self._window_ms)

    def _wait_of_host(self, host: str, now_ms: int) -> int:
        """Count a new connection of an address unless there are too many; return how long to hold it then."""
        limit = self._limit_of_hosts.get(host, self._limit_of_any_host)
        if limit is None:
            return 0
        rate = self._rates_of_hosts.get(host)
        if rate is None:
            if len(self._rates_of_hosts) >= ADDRESSES_MAX:
                self._rates_of_hosts.clear()
            rate = self._rates_of_hosts[host] = self._new_rate(limit)
        rate.record(1.0, now_ms)
        wait_ms = min(rate.throttle_ms(now_ms), self._window_ms)
        if wait_ms:
            rate.record(-1.0, now_ms)
        return wait_ms


def parse_counts(text: str) -> dict[str, int]:
    """Parse numbers of connections by address. Raises ValueError.

    >>> parse_counts("10.0.0.1:5, ::1:7")
    {'10.0.0.1': 5, '::1': 7}
    """
    counts: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        address, _, count = item.rpartition(":")
        counts[normal_address(address.strip("[] "))] = int(count)
        if int(count) < 0:
            raise ValueError(f"{item}: the number is below 0")
    return counts


def normal_address(text: str) -> str:
    """Return an address as the system writes that of a client. Raises ValueError if it is none."""
    address = ipaddress.ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _is_of_this_host(host: str) -> bool:
    return host == "::1" or host.startswith("127.")
