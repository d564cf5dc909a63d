"""Plays the divergence scenarios of KIP-101, 279 and 320 and the last replica standing, on whole brokers.

Each script drives three brokers into the situation, and fails if it does not come about. Then all is healed, and the
checkers look for lost records, divergent replicas and a cluster that does not become whole.
"""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
from typing import Any

import pytest

from ottla.client.producer import Producer, ProducerOptions
from ottla.testing.sim_loop import SimClock
from tests.simulation.history import Outcome, Value
from tests.simulation.run import Result, Run, Script, run
from tests.simulation.scenario import Scenario

SCENARIO = Scenario(1, partitions=1, producers=0, consumers=1, duration_s=5.0, sync_s=0.0001)


def play(script: Script) -> Result:
    """Run a script in a process of its own, which ends without ending the coroutines of killed brokers."""
    receive, give = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            gc.disable()
            outcome = run(SCENARIO, script)
        except BaseException as error:  # noqa: BLE001 - the parent raises it
            outcome = Result(0, violations=[repr(error)])
        os.write(give, pickle.dumps(outcome))
        os._exit(0)
    os.close(give)
    with os.fdopen(receive, "rb") as pipe:
        result: Result = pickle.loads(pipe.read())
    os.waitpid(pid, 0)
    assert not result.violations, "\n".join([*result.timeline, *result.violations])
    return result


async def send(a_run: Run, name: str, count: int, *, within_s: float = 10.0) -> int:
    """Send records as a new producer; returns how many were acknowledged in time."""
    partition = a_run.workload.partitions[0]

    async def work() -> list[Any]:
        client = await a_run.cluster.client(name, retry_s=within_s)
        options = ProducerOptions(delivery_timeout_s=within_s, linger_s=0.001, auto_create=False)
        producer = Producer(client, clock=SimClock(), options=options)
        return [await a_run.workload._send(producer, partition, Value(name, at)) for at in range(count)]

    sends = await a_run.loop.create_task(work(), context=a_run.cluster.client_process(name))
    deadline = a_run.loop.time() + within_s
    while a_run.loop.time() < deadline and any(each.outcome is Outcome.UNKNOWN for each in sends):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    return sum(each.outcome is Outcome.OK for each in sends)


def test_kip_101_a_follower_keeps_what_is_above_its_high_watermark() -> None:
    """The second leader dies before the third replica has fetched anything from it: its log is all there is."""

    async def script(a_run: Run) -> None:
        assert await send(a_run, "p1", 10) == 10
        assert await send(a_run, "p2", 1) == 1  # the followers have it and do not know that it is committed
        first = await a_run.kill_leader()
        second, third = (each for each in a_run.cluster.machines.values() if each is not first)
        a_run.cut(second, third)
        await a_run.until(lambda view: view.leader in {second.node_id, third.node_id}, "a second leader")
        if a_run.view().leader == third.node_id:
            second, third = third, second
        assert set(a_run.view().isr) == {second.node_id, third.node_id}
        second.kill()
        await a_run.until(lambda view: view.leader == third.node_id, "the last replica leads")

    assert play(script).acknowledged == 11


@pytest.mark.parametrize("writes_between", [0, 1, 3])
@pytest.mark.parametrize("first_returns", ["before", "after"])
def test_kip_279_two_quick_failovers_leave_no_divergent_record(writes_between: int, first_returns: str) -> None:
    """Each leader appends records that no other replica gets; one of them must truncate through two epochs."""

    async def script(a_run: Run) -> None:
        assert await send(a_run, "p1", 5) == 5
        first = a_run.cluster.machines[a_run.view().leader]
        a_run.cut(*a_run.cluster.machines.values())
        assert await send(a_run, "p2", 4, within_s=1.0) == 0
        first.kill()
        await a_run.until(lambda view: view.leader not in {first.node_id, -1}, "a second leader")
        second = a_run.cluster.machines[a_run.view().leader]
        if writes_between:
            assert await send(a_run, "p3", writes_between, within_s=1.0) == 0
        if first_returns == "before":
            first.restart()
            await asyncio.sleep(0.5)
        second.kill()
        await a_run.until(lambda view: view.leader not in {second.node_id, -1}, "a third leader")
        third = a_run.cluster.machines[a_run.view().leader]
        assert third not in {first, second}, "a replica that lacks committed records must not lead"
        a_run.cluster.network.heal()
        if first_returns == "after":
            first.restart()
        await a_run.until(lambda view: len(view.isr) == 2, "the first leader is in sync")
        assert await send(a_run, "p4", 3) == 3

    assert play(script).acknowledged == 8


def test_kip_320_a_leader_that_slept_acknowledges_nothing() -> None:
    """The old leader wakes up with requests in its sockets and followers that have another leader."""

    async def script(a_run: Run) -> None:
        assert await send(a_run, "p1", 5) == 5
        first = a_run.cluster.machines[a_run.view().leader]
        first.pause()
        late = asyncio.ensure_future(send(a_run, "p2", 3, within_s=15.0))
        await a_run.until(lambda view: view.leader not in {first.node_id, -1}, "a second leader")
        assert await send(a_run, "p3", 5) == 5
        first.resume()
        await late
        await a_run.until(lambda view: len(view.isr) == 3, "the old leader is in sync again")

    assert play(script).acknowledged >= 10


def test_the_last_replica_standing_may_return_last() -> None:
    """Two replicas leave the ISR, then the last one dies: the one that left at min ISR leads, the other one may not."""

    async def script(a_run: Run) -> None:
        assert await send(a_run, "p1", 5) == 5
        last = a_run.cluster.machines[a_run.view().leader]
        left_first, left_second = (each for each in a_run.cluster.machines.values() if each is not last)
        left_first.kill()
        await a_run.until(lambda view: len(view.isr) == 2, "one replica has left")
        assert await send(a_run, "p2", 5) == 5
        left_second.kill()
        await a_run.until(lambda view: view.isr == (last.node_id,), "another replica has left")
        assert await send(a_run, "p3", 2, within_s=1.0) == 0, "below min ISR nothing is acknowledged"
        last.kill()
        await asyncio.sleep(7)
        left_first.restart()
        await asyncio.sleep(8)
        assert a_run.view().leader == -1, "it lacks records that were acknowledged"
        left_second.restart()
        await a_run.until(lambda view: view.leader == left_second.node_id, "the eligible replica leads")
        assert await send(a_run, "p4", 5) == 5

    assert play(script).acknowledged == 15


def test_with_the_last_replica_alone_nothing_is_lost_when_it_returns() -> None:
    """All replicas die in turn; the last of them is the first to return."""

    async def script(a_run: Run) -> None:
        assert await send(a_run, "p1", 5) == 5
        last = a_run.cluster.machines[a_run.view().leader]
        others = [each for each in a_run.cluster.machines.values() if each is not last]
        for machine in others:
            machine.kill()
        await a_run.until(lambda view: view.isr == (last.node_id,), "one replica is left")
        last.power_cut()
        await asyncio.sleep(1)
        last.restart()
        await a_run.until(lambda view: view.leader == last.node_id, "the last replica leads again")
        for machine in others:
            machine.restart()
        await a_run.until(lambda view: len(view.isr) == 3, "all are in sync")
        assert await send(a_run, "p2", 5) == 5

    assert play(script).acknowledged == 10
