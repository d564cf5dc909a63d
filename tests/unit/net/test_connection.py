"""Connections over real sockets, plain ones and with TLS, with a dispatcher of a few lines in place of the broker."""

import asyncio
import tempfile
from functools import partial
from pathlib import Path

import pytest

from ottla.core.files import FileRegion, SystemFile
from ottla.core.security_protocols import SecurityProtocol
from ottla.limits.budget import ByteBudget
from ottla.net.config import NetConfig
from ottla.net.connection import BUFFER_BYTES
from ottla.net.server import ListenerAddress, Listeners
from tests.support.echo import LENGTH, Echo, framed, read_frame
from tests.support.waiting import until
from tests.unit.net.conftest import LOOPS, Connect

pytestmark = pytest.mark.loop("uvloop")


@pytest.fixture(params=[SecurityProtocol.PLAINTEXT, SecurityProtocol.SSL], ids=("plaintext", "tls"))
def protocol(request: pytest.FixtureRequest) -> SecurityProtocol:
    found: SecurityProtocol = request.param
    return found


@LOOPS
async def test_answers_come_back_whole_and_in_order_however_the_bytes_arrive(connect: Connect, loop: str) -> None:
    reader, writer = await connect()
    payloads = [b"a", b"", b"x" * 1000, b"y" * (BUFFER_BYTES * 3), b"z"]
    stream = b"".join(framed(payload) for payload in payloads)
    for at in range(0, len(stream), 777):
        writer.write(stream[at : at + 777])
        await writer.drain()

    assert [await read_frame(reader) for _ in payloads] == payloads
    writer.close()


async def test_a_later_request_waits_for_a_slow_earlier_one(echo: Echo, connect: Connect) -> None:
    reader, writer = await connect()
    writer.write(framed(b"later 1") + framed(b"second"))
    await until(lambda: len(echo.begun) == 1)
    echo.release()

    assert await read_frame(reader) == b"later 1"
    assert await read_frame(reader) == b"second"
    assert echo.begun == [b"later 1", b"second"]
    writer.close()


async def test_pipelined_requests_are_begun_together_and_answered_in_order(echo: Echo, connect: Connect) -> None:
    reader, writer = await connect()
    writer.write(framed(b"later pipelined 1") + framed(b"later pipelined 2") + framed(b"third"))
    await until(lambda: len(echo.begun) == 3)
    echo.held.reverse()
    echo.release()
    echo.release()

    assert [await read_frame(reader) for _ in range(3)] == [b"later pipelined 1", b"later pipelined 2", b"third"]
    writer.close()


async def test_callbacks_of_one_name_replace_each_other_and_come_at_once_after_the_loss(
    echo: Echo, connect: Connect
) -> None:
    _, writer = await connect()
    writer.write(framed(b"later"))
    await until(lambda: bool(echo.held))
    connection, calls = echo.held[0][1].connection, list[str]()
    for turn in range(3):
        for name in ("a", "b"):
            connection.call_when_lost(name, partial(calls.append, f"{name}{turn}"))
    assert calls == []
    writer.close()
    await until(lambda: bool(calls))
    assert calls == ["a2", "b2"]
    connection.call_when_lost("a", partial(calls.append, "late"))
    assert calls == ["a2", "b2", "late"]


async def test_a_request_without_an_answer_leaves_no_hole(connect: Connect) -> None:
    reader, writer = await connect()
    writer.write(framed(b"none") + framed(b"after"))

    assert await read_frame(reader) == b"after"
    writer.close()


@pytest.mark.parametrize("size", [1, 5 << 20])
async def test_a_file_region_arrives_byte_for_byte_even_at_a_slow_reader(
    echo: Echo, connect: Connect, size: int
) -> None:
    content = bytes(range(256)) * (size // 256 + 2)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "segment"
        path.write_bytes(content)
        echo.region = FileRegion(SystemFile(path, create=False), 3, size)
        reader, writer = await connect(limit=1024)
        writer.write(framed(b"file") + framed(b"after"))

        assert await read_frame(reader) == content[3 : 3 + size]
        assert await read_frame(reader) == b"after"
        writer.close()
        echo.region.file.close()


@pytest.mark.setup(config=NetConfig(request_bytes_max=1999))
async def test_an_oversized_frame_ends_the_connection_before_its_bytes_are_held(echo: Echo, connect: Connect) -> None:
    reader, writer = await connect()
    writer.write(LENGTH.pack(2000) + b"x")

    assert await reader.read() == b""
    assert not echo.begun
    writer.close()


@pytest.mark.setup(budget_bytes=250_000)
async def test_large_requests_wait_for_the_budget_and_all_are_served_in_the_end(connect: Connect) -> None:
    size = 200_000
    clients = [await connect() for _ in range(4)]

    async def ask(number: int) -> bytes:
        reader, writer = clients[number]
        writer.write(framed(bytes([number]) * size))
        answer = await read_frame(reader)
        writer.close()
        return answer

    answers = await asyncio.gather(*(ask(number) for number in range(4)))

    assert answers == [bytes([number]) * size for number in range(4)]


@pytest.mark.setup(config=NetConfig(connections_max=1))
async def test_connections_above_the_limit_are_closed_and_those_below_go_on(
    listeners: Listeners, connect: Connect
) -> None:
    first = await connect()
    await until(lambda: len(listeners.connections) == 1)
    try:
        reader, writer = await connect()
    except ConnectionError:  # during the handshake of TLS
        pass
    else:
        assert await reader.read() == b""
        writer.close()
    first[1].write(framed(b"still here"))
    assert await read_frame(first[0]) == b"still here"
    first[1].close()


async def test_a_client_that_leaves_while_it_waits_is_forgotten(
    echo: Echo, listeners: Listeners, connect: Connect
) -> None:
    _, writer = await connect()
    writer.write(framed(b"later"))
    await until(lambda: bool(echo.held))
    writer.close()
    await until(lambda: not listeners.connections)

    echo.release()


async def test_a_stop_answers_what_has_begun(echo: Echo, listeners: Listeners, connect: Connect) -> None:
    reader, writer = await connect()
    writer.write(framed(b"later"))
    await until(lambda: bool(echo.held))
    stopping = asyncio.ensure_future(listeners.close(within_seconds=5))
    await asyncio.sleep(0)
    echo.release()

    assert await read_frame(reader) == b"later"
    await stopping
    writer.close()


class ManualClock:
    """A clock that the test owns. Until the test moves it, busy polling goes on and reads it once in each turn."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.reads = 0

    def __call__(self) -> float:
        self.reads += 1
        return self.seconds

    async def is_polled(self) -> bool:
        """Whether turns of the loop in which nothing happens read the clock."""
        before = self.reads
        for _ in range(5):
            await asyncio.sleep(0)
        return self.reads >= before + 4


async def test_a_response_that_comes_later_begins_busy_polling_as_well() -> None:
    """Responses of a group commit do: they are sent from a callback of their own, not while the request is read."""
    echo, clock = Echo(), ManualClock()
    config = NetConfig(busy_poll_us=1_000_000)
    listeners = Listeners(config, budget=ByteBudget(1 << 30), now=clock)
    endpoint = await listeners.bind(ListenerAddress("PLAINTEXT", "127.0.0.1", 0))
    await listeners.listen(echo)
    reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
    writer.write(framed(b"later pipelined"))
    await until(lambda: bool(echo.held))
    assert not await clock.is_polled()

    echo.release()
    assert await clock.is_polled()
    assert await read_frame(reader) == b"later pipelined"

    clock.seconds = 2.0
    await asyncio.sleep(0)
    assert not await clock.is_polled()
    writer.close()
    await listeners.close(within_seconds=1)


async def test_after_a_response_to_a_follower_the_loop_sleeps() -> None:
    echo, clock = Echo(), ManualClock()
    config = NetConfig(busy_poll_us=1_000_000)
    listeners = Listeners(config, budget=ByteBudget(1 << 30), now=clock)
    endpoint = await listeners.bind(ListenerAddress("PLAINTEXT", "127.0.0.1", 0))
    await listeners.listen(echo)
    reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
    writer.write(framed(b"later, of a follower"))
    await until(lambda: bool(echo.held))

    echo.release()
    assert not await clock.is_polled()
    assert await read_frame(reader) == b"later, of a follower"
    writer.close()
    await listeners.close(within_seconds=1)
