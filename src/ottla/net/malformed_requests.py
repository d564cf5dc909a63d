"""Logs malformed requests: the first of a source in full, further ones as a count per interval.

A source is a client's address and a kind of error. While a source goes on, its counts are logged at intervals that
double up to an hour; after an interval without a malformed request it is forgotten, and its next one is logged in full.
"""

from __future__ import annotations

import logging
from typing import Final

from ottla.core.events import EventKind, EventLog
from ottla.wire.frame import TLS_HANDSHAKE

log = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 60.0
INTERVAL_SECONDS_MAX: Final = 3600.0
SOURCES_MAX: Final = 1000
"""Further sources are counted together."""

OTHERS: Final = "other addresses"

_HTTP_METHODS: Final = (b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI ")


def foreign_protocol(first_bytes: bytes, listener: str, security_protocol: str) -> str:
    """Describe another protocol's first bytes where a frame should begin; empty if they are not recognised.

    >>> foreign_protocol(b"GET / HTTP/1.1", "PLAINTEXT", "PLAINTEXT")
    'it sent an HTTP request; listener PLAINTEXT serves the Kafka protocol. Use a Kafka client for this port.'
    """
    if first_bytes.startswith(_HTTP_METHODS):
        return (
            f"it sent an HTTP request; listener {listener} serves the Kafka protocol. Use a Kafka client for this port."
        )
    if first_bytes.startswith(TLS_HANDSHAKE):
        return (
            f"it began a TLS handshake; listener {listener} does not use TLS. "
            f"Set security.protocol={security_protocol} in the client."
        )
    return ""


class _Source:
    """Counts the malformed requests of one source in the current interval."""

    __slots__ = ("count", "interval_seconds", "last", "since")

    def __init__(self, now: float) -> None:
        self.since = now
        self.interval_seconds = INTERVAL_SECONDS
        self.count = 0  # beyond what is logged
        self.last = ""


class MalformedRequestLog:
    """Counts the malformed requests of all connections of a broker."""

    def __init__(self, events: EventLog | None = None) -> None:
        self._events = events
        self._sources: dict[tuple[str, str], _Source] = {}

    def record(self, host: str, kind: str, message: str, now: float) -> None:
        """Log the request, or count it if its source has sent one before."""
        if self._events is not None:
            self._events.record(EventKind.REFUSED_CONNECTION, message, client=host, error=kind)
        source = self._sources.get((host, kind))
        if source is None:
            if len(self._sources) >= SOURCES_MAX:
                host = OTHERS
                source = self._sources.get((host, kind))
            if source is None:
                self._sources[host, kind] = _Source(now)
                log.warning("closing the connection from %s: %s", host, message)
                return
        source.count += 1
        source.last = message

    def report(self, now: float) -> None:
        """Log the counts of the intervals that are over. Called every few seconds."""
        for key, source in tuple(self._sources.items()):
            if now - source.since < source.interval_seconds:
                continue
            if source.count:
                self._summarize(key[0], source, now)
                source.since, source.count = now, 0
                source.interval_seconds = min(2 * source.interval_seconds, INTERVAL_SECONDS_MAX)
            else:
                del self._sources[key]

    def close(self, now: float) -> None:
        """Log all counts: the broker stops."""
        for (host, _), source in self._sources.items():
            if source.count:
                self._summarize(host, source, now)
        self._sources.clear()

    @staticmethod
    def _summarize(host: str, source: _Source, now: float) -> None:
        log.warning(
            "closed %d more connections from %s in the last %.0f s for malformed requests; the last: %s",
            source.count,
            host,
            now - source.since,
            source.last,
        )
