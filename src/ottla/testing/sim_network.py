"""Simulates TCP between the processes of a `SimLoop`: delays, pieces, resets, refusals, one-way blocks, power cuts.

Transports call production's `Protocol` and `BufferedProtocol` in asyncio's order: `connection_made` first, then data,
`pause_writing` at the limit, `connection_lost` last. Bytes of one direction arrive in order, in pieces and after delays
that the seed chooses. Each connection has its own delays, so bytes of a connection that its client has closed may
arrive after those of the next one.

    network.block("broker-1", "broker-2")     what broker-1 sends to broker-2 waits, also new connections; one way
    network.heal()                            all waiting bytes arrive
    network.reset_all("broker-1")             all connections of a host break
    network.process_ended(process)            the kernel closes the connections of a killed process
    network.power_cut("broker-1")             nothing more arrives from this host, until it has power again
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ottla.testing.sim_loop import SimLoop, SimProcess, current_process

_HIGH_BYTES = 64 << 10
_LOW_BYTES = 16 << 10
_FIRST_PORT = 40_000
_CONNECT_SECONDS = 30.0  # a connection attempt without an answer fails after this time


@dataclass(slots=True)
class NetworkOptions:
    """The delays of the simulated network."""

    delay_s: float = 0.0005  # the usual time of one way; each piece takes half to twice of it
    slow_share: float = 0.01  # of the pieces
    slow_s: float = 0.05  # the most that a slow piece takes
    split_share: float = 0.2  # of the pieces that arrive in two parts


class SimNetwork:
    """All connections and listening sockets of a simulation."""

    def __init__(self, loop: SimLoop, options: NetworkOptions | None = None) -> None:
        self.loop = loop
        self.options = options or NetworkOptions()
        self._servers: dict[tuple[str, int], SimServer] = {}
        self._connections: list[_Connection] = []
        self._numbered = 0
        self._context = contextvars.Context()  # packets belong to a process that never pauses and never ends
        self._context.run(current_process.set, loop.process("network"))
        self._blocked: dict[tuple[str, str], None] = {}
        self._without_power: dict[str, None] = {}
        self._waiting: dict[tuple[str, str], list[Callable[[], None]]] = {}  # until a block ends
        loop.network = self

    # ---- Faults

    def block(self, source: str, target: str) -> None:
        """Hold what one host sends to another one."""
        self._blocked[source, target] = None

    def unblock(self, source: str, target: str) -> None:
        """Deliver what was held."""
        self._blocked.pop((source, target), None)
        self._release((source, target))

    def heal(self) -> None:
        """End all blocks."""
        for source, target in tuple(self._blocked):
            self.unblock(source, target)

    def reset_all(self, host: str, other: str | None = None) -> int:
        """Break the connections of a host, or those with one other host. Returns their number."""
        broken = 0
        for connection in tuple(self._connections):
            hosts = {side.host for side in connection.sides}
            if host in hosts and (other is None or other in hosts):
                connection.reset()
                broken += 1
        return broken

    def process_ended(self, process: SimProcess) -> None:
        """Close the sockets of a killed process: its peers receive what it has sent, then a reset."""
        for place in [place for place, server in self._servers.items() if server.process is process]:
            del self._servers[place]
        for connection in tuple(self._connections):
            for side in connection.sides:
                if side.process is process:
                    side.kernel_closes()

    def power_cut(self, host: str) -> None:
        """Lose a host: its peers hear nothing, and what it has sent and was not delivered is lost."""
        self._without_power[host] = None
        for place in [place for place in self._servers if place[0] == host]:
            del self._servers[place]
        for connection in self._connections:
            for side in connection.sides:
                if side.host == host:
                    side.is_lost = True

    def power_on(self, host: str) -> None:
        """Answer again: peers that still have a connection from before receive a reset."""
        self._without_power.pop(host, None)
        for connection in tuple(self._connections):
            for side in connection.sides:
                if side.host == host and side.is_lost:
                    connection.reset()

    # ---- For the loop

    async def create_server(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str | list[bytes] | None,
        port: int,
        *,
        start_serving: bool = True,
    ) -> SimServer:
        """Listen at a port of the current process's host, or of the one address that is named.

        Without `start_serving` the port is taken, and connections are refused until the server's `start_serving`.
        """
        process = current_process.get()
        place = (host[0].decode() if isinstance(host, list) else host) or process.host
        if port == 0:
            port = _FIRST_PORT
            while (place, port) in self._servers:
                port += 1
        if (place, port) in self._servers:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        server = self._servers[place, port] = SimServer(self, factory, process, place, port, is_serving=start_serving)
        return server

    def close_server(self, server: SimServer) -> None:
        """Stop listening."""
        if self._servers.get((server.host, server.port)) is server:
            del self._servers[server.host, server.port]

    async def create_connection(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        """Connect from the current process. Raises ConnectionRefusedError; TimeoutError without an answer."""
        process = current_process.get()
        self._numbered += 1
        connection = _Connection(self, self._numbered, process, host, port)
        opened: asyncio.Future[bool] = self.loop.create_future()
        timer = self.loop.call_later(_CONNECT_SECONDS, _expire, opened)
        self._send(process.host, host, connection.delay(0), lambda: self._syn(connection, opened))
        try:
            is_open = await opened
        finally:
            timer.cancel()
        if not is_open:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        protocol = factory()
        transport = connection.sides[0]
        transport.open(protocol)
        return transport, protocol

    def _syn(self, connection: _Connection, opened: asyncio.Future[bool]) -> None:
        """Answer a connection request that has arrived."""
        client, server_side = connection.sides
        server = self._servers.get((server_side.host, server_side.port))

        def answer() -> None:
            if not opened.done():
                opened.set_result(server is not None)

        if server is None or server.process.is_dead or not server.is_serving:
            server = None
        else:
            server_side.process = server.process
            server_side.context = server.context
            self._connections.append(connection)
            self.loop.call_soon(server_side.open_with, server.factory, context=server.context)
        self._send(server_side.host, client.host, connection.delay(1), lambda: self._in(client, answer))

    def _in(self, side: SimTransport, callback: Callable[..., object], *args: object) -> None:
        """Call in the process of one side."""
        self.loop.call_soon(callback, *args, context=side.context)

    def _send(self, source: str, target: str, delay_s: float, arrive: Callable[[], None]) -> None:
        """Call `arrive` after the delay, and not before the way is free."""
        context = self._context

        def due() -> None:
            if (source, target) in self._blocked:
                self._waiting.setdefault((source, target), []).append(due)
            elif target not in self._without_power:
                arrive()

        self.loop.call_later(delay_s, due, context=context)

    def _release(self, way: tuple[str, str]) -> None:
        for due in self._waiting.pop(way, []):
            self.loop.call_soon(due, context=self._context)

    def forget(self, connection: _Connection) -> None:
        """Forget a connection whose sides are both closed. The objects are kept until the end of the run."""
        if connection in self._connections:
            self._connections.remove(connection)
        self.loop.keep(connection)


class SimServer:
    """A listening socket, with what the broker uses of asyncio's `Server`."""

    def __init__(
        self,
        network: SimNetwork,
        factory: Callable[[], asyncio.BaseProtocol],
        process: SimProcess,
        host: str,
        port: int,
        *,
        is_serving: bool,
    ) -> None:
        self.network, self.factory, self.process, self.host, self.port = network, factory, process, host, port
        self.is_serving = is_serving
        self.context = contextvars.copy_context()

    @property
    def sockets(self) -> list[SimServer]:
        """The sockets: one."""
        return [self]

    def fileno(self) -> int:
        """Return a number, which an open socket has."""
        return self.port

    def getsockname(self) -> tuple[str, int]:
        """Return the address."""
        return self.host, self.port

    async def start_serving(self) -> None:
        """Accept connections from now on."""
        self.is_serving = True

    def close(self) -> None:
        """Stop listening. Connections stay open."""
        self.network.close_server(self)

    async def wait_closed(self) -> None:
        """Return at once: there is nothing to wait for."""


class _Connection:
    """One TCP connection: the client's side and the server's side."""

    def __init__(self, network: SimNetwork, number: int, client: SimProcess, host: str, port: int) -> None:
        self.network, self.number = network, number
        names = f"{client.host}>{host}"
        self._rngs = [network.loop.rng_for(f"net/{names}/{way}") for way in ("there", "back")]
        context = contextvars.copy_context()
        self.sides: list[SimTransport] = [
            SimTransport(self, 0, client.host, _FIRST_PORT + 10_000 + number % 10_000, client, context),
            SimTransport(self, 1, host, port, None, context),
        ]

    def delay(self, way: int) -> float:
        """Draw the time that a piece takes; way 0 is from the client to the server."""
        rng, options = self._rngs[way], self.network.options
        if rng.random() < options.slow_share:
            return rng.random() * options.slow_s
        return options.delay_s * (0.5 + 1.5 * rng.random())

    def cut(self, way: int, size: int) -> int:
        """Draw where a piece is cut; `size` if it is not."""
        rng = self._rngs[way]
        if size > 1 and rng.random() < self.network.options.split_share:
            return 1 + int(rng.random() * (size - 1))
        return size

    def reset(self) -> None:
        """Break both sides."""
        for side in self.sides:
            side.broken(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))


_EOF, _RESET = b"eof", b"reset"


class SimTransport(asyncio.Transport):
    """One side of a connection."""

    def __init__(
        self,
        connection: _Connection,
        way: int,
        host: str,
        port: int,
        process: SimProcess | None,
        context: contextvars.Context,
    ) -> None:
        super().__init__()
        self.host, self.port, self.process, self.context = host, port, process, context
        self.is_lost = False  # with the power of its host
        self._connection, self._network, self._way = connection, connection.network, way
        self._loop = connection.network.loop
        self._protocol: asyncio.BaseProtocol | None = None
        self._is_closing = self._is_closed = self._is_reading_paused = self._is_writing_paused = False
        self._unacknowledged = 0  # bytes written that the peer's protocol has not received
        self._last_arrival = 0.0
        self._arrived: deque[tuple[bytes, bool]] = deque()  # not yet delivered to the protocol; data, or a signal

    # ---- Opening and closing

    def open_with(self, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        """Accept: the server's side."""
        self.open(factory())

    def open(self, protocol: asyncio.BaseProtocol) -> None:
        """Begin: the protocol is connected."""
        self._protocol = protocol
        protocol.connection_made(self)
        self._deliver()

    def close(self) -> None:
        """Close after what was written has been sent."""
        if not self._is_closing:
            self._is_closing = True
            self._transmit(_EOF, is_signal=True)
            self._loop.call_soon(self._lost, None, context=self.context)

    def abort(self) -> None:
        """Close now."""
        if not self._is_closed:
            self._is_closing = True
            self._transmit(_RESET, is_signal=True)
            self._loop.call_soon(self._lost, None, context=self.context)

    def kernel_closes(self) -> None:
        """Close the side of a process that is gone; the protocol hears nothing."""
        if not self._is_closed:
            self._is_closing = self._is_closed = True
            self._transmit(_RESET, is_signal=True)
            self._network.forget(self._connection)

    def broken(self, error: Exception) -> None:
        """Close because the network has reset the connection."""
        if not self._is_closed and self._protocol is not None:
            self._is_closing = True
            self._loop.call_soon(self._lost, error, context=self.context)

    def _lost(self, error: Exception | None) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._arrived.clear()
        self._loop.keep(self)
        if self._connection.sides[1 - self._way].is_closing():
            self._network.forget(self._connection)
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    def is_closing(self) -> bool:
        """Return whether the transport is closed or about to be."""
        return self._is_closing

    # ---- Writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes."""
        if self._is_closing or self.is_lost or not len(data):
            return
        whole = bytes(data)
        self._unacknowledged += len(whole)
        at = self._connection.cut(self._way, len(whole))
        self._transmit(whole[:at])
        if at < len(whole):
            self._transmit(whole[at:])
        if self._unacknowledged > _HIGH_BYTES and not self._is_writing_paused:
            self._is_writing_paused = True
            assert self._protocol is not None
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        """Send several pieces as one."""
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        """Return the bytes that the peer has not received."""
        return self._unacknowledged

    def _transmit(self, data: bytes, *, is_signal: bool = False) -> None:
        """Send a piece or a signal after all before it."""
        if self.is_lost:
            return
        peer, now = self._connection.sides[1 - self._way], self._loop.time()
        at = max(now + self._connection.delay(self._way), self._last_arrival)
        self._last_arrival = at
        self._network._send(self.host, peer.host, at - now, lambda: peer._arrive(data, is_signal))  # noqa: SLF001

    def _acknowledged(self, size: int) -> None:
        self._unacknowledged -= size
        if self._is_writing_paused and self._unacknowledged <= _LOW_BYTES:
            self._is_writing_paused = False
            if not self._is_closed and self._protocol is not None:
                self._loop.call_soon(self._resume, context=self.context)

    def _resume(self) -> None:
        if not self._is_closed and self._protocol is not None:
            self._protocol.resume_writing()

    # ---- Reading

    def pause_reading(self) -> None:
        """Deliver nothing."""
        self._is_reading_paused = True

    def resume_reading(self) -> None:
        """Deliver again."""
        if self._is_reading_paused:
            self._is_reading_paused = False
            self._loop.call_soon(self._deliver, context=self.context)

    def is_reading(self) -> bool:
        """Return whether data is delivered."""
        return not self._is_reading_paused and not self._is_closing

    def _arrive(self, data: bytes, is_signal: bool) -> None:
        if self.is_lost:
            return
        if self._is_closed:
            if not is_signal:  # data for a closed socket: the kernel answers with a reset
                self._transmit(_RESET, is_signal=True)
            return
        if is_signal and data == _RESET:
            self._arrived.clear()
        self._arrived.append((data, is_signal))
        if self._protocol is not None:
            self._loop.call_soon(self._deliver, context=self.context)

    def _deliver(self) -> None:
        peer = self._connection.sides[1 - self._way]
        while self._arrived and not self._is_closed and self._protocol is not None:
            data, is_signal = self._arrived[0]
            if is_signal and data == _RESET:
                self._arrived.popleft()
                self._is_closing = True
                self._lost(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))
                return
            if self._is_reading_paused or self._is_closing:
                return
            self._arrived.popleft()
            if is_signal:
                self._end_of_stream()
                return
            self._loop.note(data)
            self._receive(data)
            peer._acknowledged(len(data))  # noqa: SLF001

    def _receive(self, data: bytes) -> None:
        protocol = self._protocol
        if not isinstance(protocol, asyncio.BufferedProtocol):
            assert isinstance(protocol, asyncio.Protocol)
            protocol.data_received(data)
            return
        while data and not self._is_closed:
            if self._is_reading_paused:
                self._arrived.appendleft((data, False))
                return
            buffer = memoryview(protocol.get_buffer(len(data)))
            size = min(len(buffer), len(data))
            assert size, "the protocol gave an empty buffer"
            buffer[:size] = data[:size]
            data = data[size:]
            protocol.buffer_updated(size)

    def _end_of_stream(self) -> None:
        assert isinstance(self._protocol, asyncio.Protocol | asyncio.BufferedProtocol)
        if not self._protocol.eof_received():
            self.close()

    # ---- What asyncio needs besides

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the peer's name; there is no socket."""
        if name == "peername":
            peer = self._connection.sides[1 - self._way]
            return peer.host, peer.port
        return (self.host, self.port) if name == "sockname" else default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Replace the protocol."""
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        assert self._protocol is not None
        return self._protocol


def _expire(opened: asyncio.Future[bool]) -> None:
    if not opened.done():
        opened.set_exception(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))
