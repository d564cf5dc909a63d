"""Buffers, descriptors and memory of connections on which nothing is asked, and requests beside those of other connections."""

import asyncio
import gc
import os
import socket
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from pathlib import Path

import pytest

from ottla.compiled import is_plain
from ottla.core.files import FileRegion, SystemFile
from ottla.limits.budget import ByteBudget
from ottla.net.config import NetConfig
from ottla.net.connection import BUFFER_BYTES
from ottla.net.server import SWEPT_AT_ONCE, ListenerAddress, Listeners
from tests.support.echo import Echo, framed, read_frame
from tests.support.waiting import until
from tests.unit.net.conftest import LOOPS
from tests.unit.net.test_connection import ManualClock

pytestmark = pytest.mark.loop("uvloop")

CONNECTIONS = 200
BYTES_MAX = {"compiled": 2_600, "plain": 4_000}
"""Of Python's memory for one idle connection, its transport included. A change that needs more says in its commit what for."""


class Serving:
    """Listeners, and clients that are connected to them before the loop accepts them."""

    def __init__(self, listeners: Listeners, port: int, stack: ExitStack) -> None:
        self.listeners, self.port, self._stack = listeners, port, stack

    def connect(self, count: int) -> list[socket.socket]:
        return [self._stack.enter_context(socket.create_connection(("127.0.0.1", self.port))) for _ in range(count)]


@asynccontextmanager
async def served(echo: Echo, clock: ManualClock | None = None) -> AsyncIterator[Serving]:
    config = NetConfig(busy_poll_us=0, backlog=4096)
    now = clock or asyncio.get_running_loop().time
    listeners = Listeners(config, budget=ByteBudget(1 << 30), now=now)
    place = await listeners.bind(ListenerAddress("PLAINTEXT", "127.0.0.1", 0))
    await listeners.listen(echo)
    with ExitStack() as stack:
        try:
            yield Serving(listeners, place.port, stack)
        finally:
            await listeners.close(within_seconds=0 if clock else 1)


@contextmanager
def file_region(directory: Path, content: bytes) -> Iterator[FileRegion]:
    path = directory / "segment"
    path.write_bytes(content)
    with closing(SystemFile(path, create=False)) as file:
        yield FileRegion(file, 0, len(content))


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def test_an_idle_connection_needs_one_descriptor() -> None:
    async with served(Echo()) as serving:
        clients = serving.connect(CONNECTIONS)
        before = descriptors()
        await until(lambda: len(serving.listeners.connections) == len(clients))
        assert descriptors() - before == len(clients)


async def test_the_memory_of_an_idle_connection_does_not_grow() -> None:
    echo = Echo()
    async with served(echo) as serving:
        first = serving.connect(1)
        first[0].sendall(framed(b"a"))  # what is made once is made
        await until(lambda: len(serving.listeners.connections) == 1)
        clients = serving.connect(CONNECTIONS)
        for client in clients:
            client.sendall(framed(b"x" * 1000))
        gc.collect()
        tracemalloc.start()
        await until(lambda: len(serving.listeners.connections) == 1 + len(clients))
        await until(lambda: len(echo.begun) == 1 + len(clients))
        for connection in serving.listeners.connections:
            connection.shrink()
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        each = held // CONNECTIONS
        assert each <= BYTES_MAX["plain" if is_plain() else "compiled"], f"{each} bytes"


async def test_half_a_request_stays_whole_while_other_connections_receive() -> None:
    async with served(Echo()) as serving:
        halves = [framed(bytes([65 + number]) * (BUFFER_BYTES // 2)) for number in range(5)]
        streams = [await asyncio.open_connection("127.0.0.1", serving.port) for _ in halves]
        for at in range(0, len(halves[0]), 3000):
            for (_, writer), whole in zip(streams, halves, strict=True):
                writer.write(whole[at : at + 3000])
                await writer.drain()
        for (reader, writer), whole in zip(streams, halves, strict=True):
            assert await read_frame(reader) == whole[4:]
            writer.close()


async def test_a_request_that_may_not_begin_yet_stays_whole_while_other_connections_receive() -> None:
    echo = Echo()
    async with served(echo) as serving:
        reader, writer = await asyncio.open_connection("127.0.0.1", serving.port)
        writer.write(framed(b"later 1") + framed(b"second"))
        await until(lambda: bool(echo.held))
        other_reader, other = await asyncio.open_connection("127.0.0.1", serving.port)
        other.write(framed(b"another client's") * 100)
        for _ in range(100):
            assert await read_frame(other_reader) == b"another client's"
        echo.release()
        assert [await read_frame(reader), await read_frame(reader)] == [b"later 1", b"second"]
        writer.close()
        other.close()


async def test_a_quiet_connection_gives_its_own_buffer_back() -> None:
    clock = ManualClock()
    async with served(Echo(), clock) as serving:
        reader, writer = await asyncio.open_connection("127.0.0.1", serving.port)
        whole = framed(b"y" * (3 * BUFFER_BYTES))
        writer.write(whole)
        assert await read_frame(reader) == whole[4:]
        (connection,) = serving.listeners.connections
        assert len(connection._buffer) > BUFFER_BYTES
        clock.seconds = 11.0
        serving.listeners._sweep()
        assert connection._buffer is serving.listeners._shared.bytes
        writer.write(framed(b"again"))
        assert await read_frame(reader) == b"again"
        writer.close()


async def test_many_idle_connections_are_closed_in_slices() -> None:
    clock = ManualClock()
    async with served(Echo(), clock) as serving:
        clients = serving.connect(SWEPT_AT_ONCE + 20)
        await until(lambda: len(serving.listeners.connections) == len(clients))
        clock.seconds = 601.0
        serving.listeners._sweep()
        closing_now = sum(each._closing for each in serving.listeners.connections)
        assert closing_now == SWEPT_AT_ONCE
        await until(lambda: not serving.listeners.connections)


@LOOPS
@pytest.mark.parametrize("as_file", [True, False])
async def test_pipelined_answers_reach_a_slow_reader_in_order(loop: str, tmp_path: Path, *, as_file: bool) -> None:
    """Each is larger than what the kernel takes, so that every one of them waits for space."""
    echo, content, count = Echo(), os.urandom(6 << 20), 3
    with file_region(tmp_path, content) as echo.region:
        async with served(echo) as serving:
            reader, writer = await asyncio.open_connection("127.0.0.1", serving.port, limit=1024)
            for _ in range(count):
                writer.write(framed(b"file") if as_file else framed(content))
            for _ in range(count):
                assert await read_frame(reader) == content
            writer.write(framed(b"after"))
            assert await read_frame(reader) == b"after"
            writer.close()


async def test_a_client_that_leaves_before_its_answer_ends_frees_the_connection(tmp_path: Path) -> None:
    echo = Echo()
    with file_region(tmp_path, bytes(6 << 20)) as echo.region:
        async with served(echo) as serving:
            (client,) = serving.connect(1)
            client.sendall(framed(b"file"))
            await until(lambda: any(each.answering for each in serving.listeners.connections))
            before = descriptors()
            client.close()
            await until(lambda: not serving.listeners.connections)
            await until(lambda: descriptors() == before - 2)
