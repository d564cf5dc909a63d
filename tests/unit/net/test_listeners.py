"""Tests the listening sockets: bound early, refusing connections until the broker listens, for both address families."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from ottla.limits.budget import ByteBudget
from ottla.net.config import NetConfig
from ottla.net.connection import PendingResponse, ServerConnection
from ottla.net.server import ListenerAddress, Listeners
from tests.support.async_tests import setup_of
from tests.unit.net.conftest import LOOPS


@pytest.fixture
async def listeners(request: pytest.FixtureRequest) -> AsyncIterator[Listeners]:
    """Listeners that are bound, and do not listen yet."""
    listeners = Listeners(NetConfig(), budget=ByteBudget(1 << 20), now=asyncio.get_running_loop().time)
    await listeners.bind(ListenerAddress("PLAINTEXT", setup_of(request).get("host", "127.0.0.1"), 0))
    yield listeners
    await listeners.close(within_seconds=1)


def serve_nothing(connection: ServerConnection, frame: memoryview, response: PendingResponse) -> None:
    raise AssertionError("no request is sent")


async def is_accepted(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


@LOOPS
async def test_a_bound_address_refuses_connections_until_the_broker_listens(
    listeners: Listeners, port: int, loop: str
) -> None:
    assert port > 0
    assert not await is_accepted("127.0.0.1", port)
    await listeners.listen(serve_nothing)
    assert await is_accepted("127.0.0.1", port)


@LOOPS
async def test_an_address_in_use_is_refused_before_the_broker_listens(
    listeners: Listeners, port: int, loop: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(OSError, match="in use") as refused:
        await listeners.bind(ListenerAddress("PLAINTEXT", "127.0.0.1", other.getsockname()[1]))
    assert refused.value.errno == 98


@LOOPS
async def test_a_program_that_listened_first_at_a_bound_address_is_named_with_the_address(
    listeners: Listeners, port: int, loop: str
) -> None:
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(OSError, match=f"cannot listen at PLAINTEXT://127.0.0.1:{port}: .*in use"),
    ):
        await listeners.listen(serve_nothing)


@LOOPS
@pytest.mark.parametrize("host", [pytest.param(host, marks=pytest.mark.setup(host=host)) for host in ("", "::")])
async def test_all_addresses_means_those_of_both_families_at_one_port(
    listeners: Listeners, port: int, loop: str, host: str
) -> None:
    await listeners.listen(serve_nothing)
    assert await is_accepted("::1", port)
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    while not listeners.connections:  # noqa: ASYNC110 - the server's side comes by the loop
        await asyncio.sleep(0)
    hosts = {connection.host for connection in listeners.connections}
    writer.close()
    assert "127.0.0.1" in hosts, f"an IPv4 client is named {hosts}"
