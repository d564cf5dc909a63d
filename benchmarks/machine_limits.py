"""Measures what the machine allows: the round trip over a socket, fdatasync, and copies into and out of the page cache.

Each limit is what a broker would reach that did nothing but receive, write and send the bytes.
"""

from __future__ import annotations

import os
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path

from benchmarks import memory
from benchmarks.clients import Latencies, summary

REQUEST_BYTES = 330  # a Produce request of one record of 200 B
RESPONSE_BYTES = 60
BATCH_BYTES = 270  # what such a request appends to the log
BULK_BYTES = 500_000
MIB = 1 << 20


def measure(seconds: float, status: Callable[[str], None]) -> dict[str, float]:
    """Measure every limit for about so many seconds each."""
    found: dict[str, float] = {}
    for producers in (1, 32):
        status(f"limit: socket round trip, {producers}")
        echo = round_trips(producers, seconds)
        found[f"socket, {producers}: requests/s"] = echo.per_second
        found[f"socket, {producers}: p50, ms"] = echo.p50_ms
        found[f"socket, {producers}: p99, ms"] = echo.p99_ms
    status("limit: fdatasync")
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as directory:
        synced = syncs(Path(directory, "synced"), seconds)
        found["fdatasync: p50, ms"], found["fdatasync: p99, ms"] = synced.p50_ms, synced.p99_ms
        shared = syncs(Path(directory, "shared"), seconds, appends=32)
        found["fdatasync of 32 appends: p50, ms"], found["fdatasync of 32 appends: p99, ms"] = (
            shared.p50_ms,
            shared.p99_ms,
        )
        status("limit: memory, page cache")
        found["memory touched for the first time, us/page"] = memory.touch(2 * memory.GIB)
        found["memory touched again, us/page"] = memory.touch(2 * memory.GIB)
        found["page cache write, MB/s"] = statistics.median(write_rate(Path(directory, "bulk")) for _ in range(3)) / 1e6
        found["page cache read to a socket, MB/s"] = (
            statistics.median(read_rate(Path(directory, "bulk")) for _ in range(3)) / 1e6
        )
    started = [bare_python() for _ in range(5)]
    found["start of Python, s"] = statistics.median(took for took, _ in started)
    found["memory of Python, MiB"] = statistics.median(memory for _, memory in started)
    return found


def _echo(listening: socket.socket, busy: bool) -> None:
    """Answer requests of a fixed size until every connection is closed; polls without sleeping if `busy`."""
    response = b"r" * RESPONSE_BYTES
    with selectors.EpollSelector() as selector:
        selector.register(listening, selectors.EVENT_READ)
        open_connections, seen = 0, False
        while open_connections or not seen:
            for key, _ in selector.select(0 if busy else 5):
                ready = key.fileobj
                assert isinstance(ready, socket.socket)
                if ready is listening:
                    connection, _ = listening.accept()
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    selector.register(connection, selectors.EVENT_READ)
                    open_connections, seen = open_connections + 1, True
                elif _received(ready):
                    ready.send(response)
                else:
                    selector.unregister(ready)
                    ready.close()
                    open_connections -= 1


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except ConnectionResetError:  # closed with a response unread
        return b""


@contextmanager
def _served(target: Callable[..., None], *arguments: object) -> Iterator[int]:
    """Run a server process for the block; yields its port."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        process = get_context("fork").Process(target=target, args=(listening, *arguments), daemon=True)
        process.start()
        port = listening.getsockname()[1]
    try:
        yield port
    finally:
        process.join(10)
        process.kill()


def round_trips(producers: int, seconds: float) -> Latencies:
    """Exchange requests and responses of a synchronous producer's size with a process that only echoes."""
    request = b"q" * REQUEST_BYTES
    times: list[float] = []
    clock = time.perf_counter
    with _served(_echo, producers == 1) as port:
        connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(producers)]
        for connection in connections:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        began = now = clock()
        if producers == 1:
            while now < began + seconds:
                before = now
                connections[0].sendall(request)
                connections[0].recv(65536)
                now = clock()
                times.append(now - before)
        else:
            sent: dict[socket.socket, float] = {}
            with selectors.EpollSelector() as selector:
                for connection in connections:
                    selector.register(connection, selectors.EVENT_READ)
                    sent[connection] = clock()
                    connection.sendall(request)
                while now < began + seconds:
                    for key, _ in selector.select(5):
                        connection = key.fileobj  # type: ignore[assignment]
                        connection.recv(65536)
                        now = clock()
                        times.append(now - sent[connection])
                        sent[connection] = now
                        connection.sendall(request)
        for connection in connections:
            connection.close()
    return summary(times, now - began)


def syncs(path: Path, seconds: float, appends: int = 1) -> Latencies:
    """Append small batches and call fdatasync, again and again."""
    times: list[float] = []
    clock = time.perf_counter
    data = os.urandom(BATCH_BYTES)
    with path.open("wb", buffering=0) as file:
        began = now = clock()
        while now < began + seconds:
            before = now
            for _ in range(appends):
                file.write(data)
            os.fdatasync(file.fileno())
            now = clock()
            times.append(now - before)
    return summary(times, now - began)


def write_rate(path: Path, size: int = 512 * MIB) -> float:
    """Write a new file in pieces of a bulk batch; returns bytes per second."""
    path.unlink(missing_ok=True)
    data = os.urandom(BULK_BYTES)
    began = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(size // len(data)):
            file.write(data)
    return size / (time.perf_counter() - began)


def _send_file(listening: socket.socket, path: str) -> None:
    connection, _ = listening.accept()
    with open(path, "rb") as file, connection, suppress(OSError):  # noqa: PTH123
        connection.sendfile(file)


def read_rate(path: Path) -> float:
    """Send a file in the page cache to another process by sendfile; returns bytes per second."""
    buffer = bytearray(4 * MIB)
    total = 0
    with _served(_send_file, str(path)) as port, socket.create_connection(("127.0.0.1", port)) as connection:
        began = time.perf_counter()
        while size := connection.recv_into(buffer):
            total += size
        return total / (time.perf_counter() - began)


def bare_python() -> tuple[float, float]:
    """Start Python with nothing imported; returns the seconds and its resident memory in MiB."""
    program = "print(next(l for l in open('/proc/self/status') if l.startswith('VmRSS')).split()[1])"
    began = time.perf_counter()
    out = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, check=True, text=True).stdout
    return time.perf_counter() - began, int(out) / 1024
