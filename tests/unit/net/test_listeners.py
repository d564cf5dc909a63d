"""Tests the listening sockets: bound early, refusing connections until the broker listens, for both address families."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from ottla.limits.budget import ByteBudget
from ottla.net.config import NetConfig
from ottla.net.connection import PendingResponse, ServerConnection
from ottla.net.server import ListenerAddress, Listeners

LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
Run = Callable[[Any], Any]


def with_bound(run: Run, host: str, scenario: Callable[[Listeners, int], Awaitable[None]]) -> None:
    async def main() -> None:
        listeners = Listeners(NetConfig(), budget=ByteBudget(1 << 20), now=asyncio.get_running_loop().time)
        try:
            place = await listeners.bind(ListenerAddress("PLAINTEXT", host, 0))
            await asyncio.wait_for(scenario(listeners, place.port), 30)
        finally:
            await listeners.close(within_seconds=1)

    run(main())


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
def test_a_bound_address_refuses_connections_until_the_broker_listens(run: Run) -> None:
    async def scenario(listeners: Listeners, port: int) -> None:
        assert port > 0
        assert not await is_accepted("127.0.0.1", port)
        await listeners.listen(serve_nothing)
        assert await is_accepted("127.0.0.1", port)

    with_bound(run, "127.0.0.1", scenario)


@LOOPS
def test_an_address_in_use_is_refused_before_the_broker_listens(run: Run) -> None:
    async def scenario(listeners: Listeners, port: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(OSError, match="in use") as refused:
            await listeners.bind(ListenerAddress("PLAINTEXT", "127.0.0.1", other.getsockname()[1]))
        assert refused.value.errno == 98

    with_bound(run, "127.0.0.1", scenario)


@LOOPS
def test_a_program_that_listened_first_at_a_bound_address_is_named_with_the_address(run: Run) -> None:
    async def scenario(listeners: Listeners, port: int) -> None:
        with (
            socket.create_server(("127.0.0.1", port)),
            pytest.raises(OSError, match=f"cannot listen at PLAINTEXT://127.0.0.1:{port}: .*in use"),
        ):
            await listeners.listen(serve_nothing)

    with_bound(run, "127.0.0.1", scenario)


@LOOPS
@pytest.mark.parametrize("host", ["", "::"])
def test_all_addresses_means_those_of_both_families_at_one_port(run: Run, host: str) -> None:
    async def scenario(listeners: Listeners, port: int) -> None:
        await listeners.listen(serve_nothing)
        assert await is_accepted("::1", port)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        while not listeners.connections:  # noqa: ASYNC110 - the server's side comes by the loop
            await asyncio.sleep(0)
        hosts = {connection.host for connection in listeners.connections}
        writer.close()
        assert "127.0.0.1" in hosts, f"an IPv4 client is named {hosts}"

    with_bound(run, host, scenario)
