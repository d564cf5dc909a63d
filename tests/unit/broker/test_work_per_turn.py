"""Counts the work of each turn of the event loop while many leaders move at once.

Work is counted in calls of functions, not in time: a turn that visits all partitions of a broker is found on any
machine. The brokers share the loop, so that a turn is work of one of them.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from ottla.controller.topics import CreateTopic
from ottla.metadata_store.cluster_view import TopicView
from ottla.testing.cluster import TestCluster
from ottla.testing.real_machine import RealMachines

PARTITIONS = 600
CALLS_MAX = 30_000
"""Calls of Python and of C functions in one turn. A response to a follower reads 250 partitions: 23,000 calls."""


class CountedTurns:
    """Remembers the turn of the event loop with the most calls of functions."""

    def __init__(self) -> None:
        self.worst, self.worst_name = 0, ""
        self._calls = 0

    def count(self, _frame: FrameType, event: str, _argument: object) -> None:
        """Count a call; the interpreter's profiling calls this."""
        if event in ("call", "c_call"):
            self._calls += 1

    def run(self, handle: asyncio.Handle, run: Callable[[asyncio.Handle], None]) -> None:
        """Run one callback of the loop, unless it is of the test or of a broker that has not started yet."""
        callback: Any = handle._callback  # type: ignore[attr-defined]
        task = getattr(callback, "__self__", None)
        name = getattr(task.get_coro() if isinstance(task, asyncio.Task) else callback, "__qualname__", "")
        if name.startswith(
            (test_no_turn_of_the_loop_visits_all_partitions_while_leaders_move.__name__, "TestCluster", "RealMachine")
        ):
            run(handle)
            return
        self._calls = 0
        sys.setprofile(self.count)
        try:
            run(handle)
        finally:
            sys.setprofile(None)
        if self._calls > self.worst:
            self.worst, self.worst_name = self._calls, name


@contextmanager
def counted_turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[CountedTurns]:
    """Count the calls of each turn."""
    counted, run = CountedTurns(), asyncio.Handle._run
    with monkeypatch.context() as patched:
        patched.setattr(asyncio.Handle, "_run", lambda handle: counted.run(handle, run))
        yield counted


async def test_no_turn_of_the_loop_visits_all_partitions_while_leaders_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = TestCluster(RealMachines(tmp_path))
    await cluster.start(3)
    controller = cluster.services(cluster.controller).controller
    (created,) = await controller.create_topics([CreateTopic("t", PARTITIONS, 3, (), {})])
    assert isinstance(created, TopicView)
    await cluster.known_everywhere("t")

    def topics() -> list[TopicView]:
        return [cluster.services(node).cluster.current.topics["t"] for node in cluster.brokers]

    def all_led() -> bool:
        return all(partition.leader in cluster.brokers for topic in topics() for partition in topic.partitions)

    def all_in_sync() -> bool:
        return all(len(partition.isr) == 3 for topic in topics() for partition in topic.partitions)

    found: dict[str, tuple[int, str]] = {}

    async def counted(what: str, change: Awaitable[None], holds: Callable[[], bool]) -> None:
        with counted_turns(monkeypatch) as turns:
            await change
            await cluster.until(holds, seconds=60)
        found[what] = (turns.worst, turns.worst_name)

    other = next(node for node in cluster.brokers if node != cluster.controller)
    await counted("a broker dies", cluster.kill(other), all_led)
    await counted("it is back", cluster.restart(other), all_in_sync)
    await cluster.close()
    assert all(calls <= CALLS_MAX for calls, _ in found.values()), found
