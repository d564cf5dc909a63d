"""Tests of the simulated processes and network: what asyncio and TCP guarantee, and what they do not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from ottla.testing.sim_loop import Deadlock, SimLoop, SimProcess
from ottla.testing.sim_network import NetworkOptions, SimNetwork

Scenario = Callable[["EchoHarness"], Awaitable[None]]


class EchoHarness:
    """A network with a server that returns what it receives."""

    def __init__(self, seed: int, options: NetworkOptions | None = None) -> None:
        self.loop = SimLoop(random.Random(seed), limit_s=1000, turn_s=1e-5, seed=seed)
        self.network = SimNetwork(self.loop, options)
        self.server, self.client = self.loop.process("server"), self.loop.process("client")
        self.received: list[bytes] = []
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self) -> None:
        await self.loop.create_server(lambda: Echo(self), "server", 9)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        streams = await self.loop.run_in(self.client, asyncio.open_connection("server", 9))
        self.writers.append(streams[1])
        return streams


class Echo(asyncio.BufferedProtocol):
    def __init__(self, harness: EchoHarness) -> None:
        self.harness, self.buffer = harness, bytearray(7)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.harness.received.append(bytes(self.buffer[:nbytes]))
        self.transport.write(self.buffer[:nbytes])

    def connection_lost(self, exc: BaseException | None) -> None:
        self.harness.received.append(b"lost" if exc is None else b"broken")


def run(scenario: Scenario, seed: int = 1, options: NetworkOptions | None = None) -> EchoHarness:
    harness = EchoHarness(seed, options)

    async def main() -> None:
        await harness.loop.run_in(harness.server, harness.serve())
        await scenario(harness)

    try:
        harness.loop.run_until_complete(main())
    finally:
        for writer in harness.writers:
            writer.transport.abort()  # asyncio warns of a writer that was dropped and not closed
    assert not harness.loop.unseen
    return harness


async def exchange(harness: EchoHarness) -> None:
    reader, writer = await harness.connect()
    writer.write(bytes(range(100)))
    assert await reader.readexactly(100) == bytes(range(100))
    writer.close()
    await writer.wait_closed()
    await asyncio.sleep(1)


def test_bytes_arrive_in_order_and_the_same_seed_gives_the_same_run() -> None:
    harnesses = [run(exchange, seed) for seed in (1, 1, 2)]
    for harness in harnesses:
        assert b"".join(harness.received) == bytes(range(100)) + b"lost"
    first, second, other = (harness.loop.trace_hash for harness in harnesses)
    assert first == second != other


def test_a_port_without_a_server_refuses() -> None:
    async def scenario(harness: EchoHarness) -> None:
        with pytest.raises(ConnectionRefusedError):
            await harness.loop.run_in(harness.client, asyncio.open_connection("server", 10))

    run(scenario)


def test_a_block_holds_one_direction_only() -> None:
    async def scenario(harness: EchoHarness) -> None:
        reader, writer = await harness.connect()
        harness.network.block("server", "client")
        writer.write(b"12345")
        await asyncio.sleep(10)
        assert b"".join(harness.received) == b"12345"
        answer = asyncio.ensure_future(reader.readexactly(5))
        await asyncio.sleep(10)
        assert not answer.done()
        harness.network.heal()
        assert await answer == b"12345"

    run(scenario)


def test_a_connection_attempt_into_a_block_times_out() -> None:
    async def scenario(harness: EchoHarness) -> None:
        harness.network.block("client", "server")
        with pytest.raises(TimeoutError):
            await harness.connect()

    run(scenario)


def test_a_reset_is_seen_by_both_sides() -> None:
    async def scenario(harness: EchoHarness) -> None:
        reader, writer = await harness.connect()
        writer.write(b"1")
        await reader.readexactly(1)
        assert harness.network.reset_all("server") == 1
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        await asyncio.sleep(1)
        assert harness.received == [b"1", b"broken"]

    run(scenario)


@pytest.mark.parametrize("with_power", [True, False])
def test_a_killed_process_does_nothing_more(with_power: bool) -> None:
    async def scenario(harness: EchoHarness) -> None:
        reader, writer = await harness.connect()
        writer.write(b"1")
        await reader.readexactly(1)
        harness.loop.kill(harness.server)
        if with_power:
            harness.network.process_ended(harness.server)
        else:
            harness.network.power_cut("server")
        writer.write(b"2")
        answer = asyncio.ensure_future(reader.read())
        await asyncio.sleep(5)
        assert harness.received == [b"1"]
        assert answer.done() == with_power
        harness.network.power_on("server")
        with pytest.raises(ConnectionResetError):
            await answer

    run(scenario)


def test_a_paused_process_continues_later() -> None:
    async def scenario(harness: EchoHarness) -> None:
        reader, writer = await harness.connect()
        harness.loop.pause(harness.server)
        writer.write(b"1")
        await asyncio.sleep(5)
        assert not harness.received
        harness.loop.resume(harness.server)
        assert await reader.readexactly(1) == b"1"

    run(scenario)


def test_writing_pauses_while_the_peer_does_not_read() -> None:
    async def scenario(harness: EchoHarness) -> None:
        _, writer = await harness.connect()
        harness.loop.pause(harness.server)
        writer.write(bytes(200_000))
        draining = asyncio.ensure_future(writer.drain())
        await asyncio.sleep(5)
        assert not draining.done()
        harness.loop.resume(harness.server)
        await draining

    run(scenario)


def test_a_killed_process_keeps_its_tasks_from_running() -> None:
    ran: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            ran.append("finally")

    async def scenario(harness: EchoHarness) -> None:
        process: SimProcess = harness.loop.process("other")
        harness.loop.run_in(process, work())
        await asyncio.sleep(1)
        harness.loop.kill(process)
        await asyncio.sleep(20)

    harness = run(scenario)
    assert not ran
    assert harness.loop.time() >= 21


def test_a_run_that_would_wait_for_ever_fails() -> None:
    async def scenario(harness: EchoHarness) -> None:
        reader, _ = await harness.connect()
        await reader.readexactly(1)

    with pytest.raises(Deadlock):
        run(scenario)
