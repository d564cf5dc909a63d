"""Connections over real sockets that are muted, come too fast, or give their place to a broker's."""

from __future__ import annotations

import asyncio

import pytest

from ottla.core.security_protocols import SecurityProtocol
from ottla.net.config import NetConfig
from ottla.net.server import ListenerAddress, Listeners
from tests.support.echo import Echo, framed, read_frame
from tests.support.waiting import until
from tests.unit.net.conftest import LOOPS, Connect

MUTED_S = 0.2


@pytest.fixture(params=[SecurityProtocol.PLAINTEXT, SecurityProtocol.SSL], ids=lambda protocol: protocol.name)
def protocol(request: pytest.FixtureRequest) -> SecurityProtocol:
    protocol: SecurityProtocol = request.param
    return protocol


@LOOPS
async def test_a_muted_connection_begins_no_request_until_its_time_is_over(
    listeners: Listeners, connect: Connect, echo: Echo, loop: str
) -> None:
    reader, writer = await connect()
    writer.write(framed(b"later") + framed(b"second"))
    await until(lambda: bool(echo.held))
    now, (connection,) = asyncio.get_running_loop().time, listeners.connections
    begin = now()
    connection.mute(MUTED_S)
    connection.mute(MUTED_S / 4)  # changes nothing: it ends before the other
    writer.write(framed(b"third"))
    echo.release()
    assert await read_frame(reader) == b"later"  # a response is sent all the same
    assert echo.begun == [b"later"]  # and the request that has arrived does not begin
    assert [await read_frame(reader), await read_frame(reader)] == [b"second", b"third"]
    assert now() - begin >= MUTED_S - 0.01
    writer.close()


@LOOPS
async def test_a_client_may_leave_while_its_connection_is_muted(
    listeners: Listeners, connect: Connect, loop: str
) -> None:
    reader, writer = await connect()
    writer.write(framed(b"first"))
    await read_frame(reader)
    (connection,) = listeners.connections
    connection.mute(MUTED_S)
    writer.close()
    await until(lambda: not listeners.connections)
    assert connection._mute is None


@LOOPS
async def test_a_connection_above_the_rate_of_its_address_is_held_and_closed(
    listeners: Listeners, connect: Connect, echo: Echo, loop: str
) -> None:
    listeners.limits._window_ms = 100
    listeners.limits.use_rates({"127.0.0.1": 1.0}, None)  # one second: one connection
    reader, writer = await connect()
    writer.write(framed(b"first"))
    assert await read_frame(reader) == b"first"
    for _ in range(2):
        try:
            other_reader, other = await connect()
            other.write(framed(b"second"))
            assert await other_reader.read() == b""
            other.close()
        except OSError:  # with TLS its handshake may not even begin
            pass
    assert echo.begun == [b"first"]
    writer.close()


@LOOPS
@pytest.mark.setup(config=NetConfig(connection_rate_max=1))
async def test_a_connection_above_the_rate_of_the_broker_is_served_later(
    listeners: Listeners, connect: Connect, loop: str
) -> None:
    limits, now = listeners.limits, asyncio.get_running_loop().time
    limits._window_ms = 100  # ten windows are a second: one connection
    begin = now()
    for _ in range(2):
        reader, writer = await connect()
        writer.write(framed(b"first"))
        assert await read_frame(reader) == b"first"
        writer.close()
    assert now() - begin >= 0.9


@LOOPS
@pytest.mark.setup(config=NetConfig(connections_max=2))
async def test_a_brokers_connection_takes_the_place_of_the_quietest_client(
    listeners: Listeners, connect: Connect, echo: Echo, protocol: SecurityProtocol, loop: str
) -> None:
    listeners.limits._protected = "INTERNAL"
    between = await listeners.bind(ListenerAddress("INTERNAL", "127.0.0.1", 0))
    await listeners.listen(echo)
    quiet_reader, quiet = await connect()
    reader, writer = await connect()
    for each, answers in ((quiet, quiet_reader), (writer, reader)):
        each.write(framed(b"hello"))
        await read_frame(answers)
    broker_reader, broker = await asyncio.open_connection("127.0.0.1", between.port)
    broker.write(framed(b"hello"))
    assert await read_frame(broker_reader) == b"hello"
    assert await quiet_reader.read() == b""
    writer.write(framed(b"still here"))
    assert await read_frame(reader) == b"still here"
    for each in (quiet, writer, broker):
        each.close()
