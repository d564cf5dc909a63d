"""Opens the listening sockets and enforces limits on connections: how many, how idle, how slow."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from ottla.core.events import EventKind, EventLog
from ottla.core.executors import Executor
from ottla.core.runtime import make_executor
from ottla.core.security_protocols import SecurityProtocol
from ottla.net.busy_poll import BusyPoller
from ottla.net.config import NetConfig
from ottla.net.connection import Budget, Dispatch, ReceiveBuffer, ServerConnection
from ottla.net.connection_limits import ConnectionLimits
from ottla.net.malformed_requests import MalformedRequestLog
from ottla.net.tls import CIPHERTEXT_BYTES, NO_TLS, Handshakes, ListenerTls, TlsClient, TlsStream

log = logging.getLogger(__name__)

SWEEP_SECONDS = 5.0
SWEPT_AT_ONCE = 500  # connections, well under 1 ms; those that are closed take 10 us each
_DISK_THREADS = 2
QUIET_SECONDS = 10.0  # after which a connection gives its buffer back
_ALL_ADDRESSES = ("", "::")


class ListenerAddress(NamedTuple):
    """An address to listen on, or to advertise."""

    listener: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener}://{host}:{self.port}"


class Listeners:
    """All listening sockets of this broker and their connections.

    `bind` takes the addresses, which connections are refused at until `listen`.
    """

    def __init__(
        self,
        config: NetConfig,
        *,
        budget: Budget,
        sign_in_budget: Budget | None = None,
        now: Callable[[], float],
        limits: ConnectionLimits | None = None,
        events: EventLog | None = None,
    ) -> None:
        self._config, self._budget, self._sign_in_budget, self._now = config, budget, sign_in_budget, now
        self.limits = limits or ConnectionLimits(config, now=now)
        self._dispatch: Dispatch | None = None
        self._servers: dict[Any, ListenerAddress] = {}  # of asyncio, uvloop or the simulated loop
        self._busy_poller = BusyPoller(seconds=config.busy_poll_us / 1e6, now=now) if config.busy_poll_us else None
        self.connections: dict[ServerConnection, None] = {}  # in the order of their beginning
        self._sweeper: asyncio.Handle | None = None
        self._full_since: float | None = None
        self._events = events
        self._malformed = MalformedRequestLog(events)
        self._shared = ReceiveBuffer()
        self._disk: Executor | None = None  # with the first listener that uses TLS, as what follows
        self._handshakes: Handshakes | None = None
        self._ciphertext = memoryview(b"")

    async def bind(
        self,
        endpoint: ListenerAddress,
        protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT,
        tls: ListenerTls | None = None,
    ) -> ListenerAddress:
        """Take an address. Returns it with the port the system chose. Raises OSError (in use, not allowed)."""
        create: Any = asyncio.get_running_loop().create_server
        where: dict[str, Any] = (
            {"sock": _dual_stack_socket(endpoint)}
            if endpoint.host in _ALL_ADDRESSES
            else {"host": _addresses(endpoint.host), "port": endpoint.port, "reuse_address": True}
        )
        assert protocol.uses_tls == (tls is not None), "a listener uses TLS or not"
        server: Any = await create(  # its `sockets` are a list in uvloop, a tuple in asyncio
            self._factory(endpoint.listener, protocol, tls), **where, backlog=self._config.backlog, start_serving=False
        )
        place = ListenerAddress(endpoint.listener, endpoint.host, server.sockets[0].getsockname()[1])
        self._servers[server] = place
        return place

    async def listen(self, dispatch: Dispatch) -> None:
        """Accept connections from now on. Raises OSError if another program has begun to listen meanwhile."""
        self._dispatch = dispatch
        for server, place in self._servers.items():
            try:
                await server.start_serving()
            except OSError as error:
                raise _cannot_listen(place, error) from None
            if any(each.fileno() < 0 for each in server.sockets):  # uvloop raises nothing and closes the socket
                raise _cannot_listen(place, OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE)))
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)

    async def close(self, *, within_seconds: float) -> None:
        """Refuse new connections and requests; wait a limited time for the responses to those that have begun."""
        for server in self._servers:
            server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in tuple(self.connections):
            connection.stop_requests()
        deadline = self._now() + within_seconds
        while self._now() < deadline and any(  # noqa: ASYNC110 - once, at the end of the process
            connection.answering for connection in self.connections
        ):
            await asyncio.sleep(0.005)
        for connection in tuple(self.connections):
            connection.close()
        await asyncio.sleep(0)  # let the loop call connection_lost
        if self._disk is not None:
            self._disk.close()
        if self._handshakes is not None:
            self._handshakes.close()
        self._malformed.close(self._now())

    def _connection(self, listener: str, protocol: SecurityProtocol) -> ServerConnection:
        assert self._dispatch is not None, "`listen` comes first"
        return ServerConnection(
            dispatch=self._dispatch,
            on_open=self._opened,
            on_close=self._closed,
            shared=self._shared,
            budget=self._budget,
            busy_poller=self._busy_poller,
            frame_bytes_max=self._config.request_bytes_max,
            sign_in_frame_bytes_max=self._config.sign_in_request_bytes_max,
            sign_in_budget=self._sign_in_budget,
            now=self._now,
            listener=listener,
            security_protocol=protocol,
            malformed=self._malformed,
        )

    def _factory(
        self, listener: str, protocol: SecurityProtocol, tls: ListenerTls | None
    ) -> Callable[[], asyncio.BufferedProtocol]:
        """Return what makes the protocol of each accepted socket."""
        if tls is None:
            return lambda: self._connection(listener, protocol)
        if self._disk is None or self._handshakes is None:
            post = asyncio.get_running_loop().call_soon_threadsafe
            self._disk = make_executor("reads for TLS", post, threads=_DISK_THREADS)
            self._handshakes = Handshakes(self._now, make_executor("TLS handshakes", post))
            self._ciphertext = memoryview(bytearray(CIPHERTEXT_BYTES))
        disk, handshakes = self._disk, self._handshakes

        def stream() -> TlsStream:
            connection = self._connection(listener, protocol)
            return TlsStream(
                connection,
                tls,
                handshakes,
                self._ciphertext,
                disk,
                on_secured=partial(_handshake_finished, connection, tls),
                on_refused=partial(_handshake_refused, connection, tls),
            )

        return stream

    def _opened(self, connection: ServerConnection) -> bool:
        self.connections[connection] = None
        admission = self.limits.open(connection.listener, connection.host)
        if admission.refusal:
            self._log_refusal(admission.refusal, connection.host)
            if not admission.wait_s:
                return False
            asyncio.get_running_loop().call_later(admission.wait_s, connection.close)
        if admission.wait_s:
            connection.mute(admission.wait_s)
        self.close_excess()
        return True

    def _closed(self, connection: ServerConnection) -> None:
        if connection in self.connections:
            del self.connections[connection]
            self.limits.close(connection.listener, connection.host)

    @property
    def unfinished_handshakes(self) -> int:
        """Return how many TLS handshakes have begun and are not finished."""
        return 0 if self._handshakes is None else self._handshakes.unfinished

    def close_excess(self) -> None:
        """Close connections of clients that there are too many of: others are protected, or the limit was lowered."""
        if (excess := self.limits.excess) > 0:
            self._log_refusal(f"{excess} connections of clients are closed: max.connections is reached")
            for connection in self.limits.least_recently_used(self.connections, excess):
                connection.close()

    def _log_refusal(self, why: str, host: str = "") -> None:
        """Log refusals at most once a minute: a flood of connections must not become a flood of log lines."""
        if self._events is not None:
            self._events.record(EventKind.REFUSED_CONNECTION, why, client=host, error="connection limit")
        now = self._now()
        if self._full_since is None or now - self._full_since > 60:
            self._full_since = now
            log.warning("refusing connections: %s", why)

    def _sweep(self) -> None:
        """Look for idle and slow connections, in slices: no connection has a timer of its own."""
        self._sweep_on(tuple(self.connections))

    def _sweep_on(self, connections: tuple[ServerConnection, ...]) -> None:
        now = self._now()
        for connection in connections[:SWEPT_AT_ONCE]:
            self._check(connection, now)
        loop = asyncio.get_running_loop()
        if len(connections) > SWEPT_AT_ONCE:
            self._sweeper = loop.call_soon(self._sweep_on, connections[SWEPT_AT_ONCE:])
        else:
            self._malformed.report(now)
            self._sweeper = loop.call_later(SWEEP_SECONDS, self._sweep)

    def _check(self, connection: ServerConnection, now: float) -> None:
        idle_seconds, slow_seconds = self._config.idle_ms / 1000, self._config.request_receive_ms / 1000
        if connection.is_handshaking:
            if now - connection.last_active > self._config.handshake_ms / 1000:
                connection.log_malformed("slow handshake", "its TLS handshake took too long")
                connection.close()
        elif connection.receiving and now - connection.frame_began > slow_seconds:
            log.info("closing the connection from %s: its request took too long to arrive", connection.host)
            connection.close()
        elif connection.answering:
            return
        elif 0 <= idle_seconds < now - connection.last_active:
            connection.close()
        elif now - connection.last_active > QUIET_SECONDS:
            connection.shrink()


def _handshake_finished(connection: ServerConnection, tls: ListenerTls, client: TlsClient) -> None:
    connection.handshake_finished(client)
    if tls.on_handshake is not None and client.identity is connection.identity:
        tls.on_handshake(connection.host, client.identity, "")


def _handshake_refused(connection: ServerConnection, tls: ListenerTls, kind: str, why: str) -> None:
    connection.handshake_refused(kind, why)
    if tls.on_handshake is not None and kind != NO_TLS:
        tls.on_handshake(connection.host, None, why)


def _dual_stack_socket(endpoint: ListenerAddress) -> socket.socket:
    """Bind a socket for all IPv4 and IPv6 addresses, as Java does; without IPv6 here for IPv4. Raises OSError."""
    if endpoint.host or _has_ipv6():
        server = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        host = "::"
    else:
        server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        host = "0.0.0.0"  # noqa: S104 - asked for
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if server.family == socket.AF_INET6:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        server.bind((host, endpoint.port))
    except OSError as error:
        server.close()
        raise _cannot_listen(endpoint, error) from None
    return server


def _cannot_listen(place: ListenerAddress, error: OSError) -> OSError:
    return OSError(error.errno, f"cannot listen at {place}: {(error.strerror or str(error)).lower()}")


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def _addresses(host: str) -> Any:  # of asyncio's types, bytes are missing
    """Return what the loop is to bind. A str would be encoded by `idna`, whose import costs more than the socket."""
    return [host.encode()] if host.isascii() else host
