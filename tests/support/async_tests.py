"""Runs async tests and async fixtures on one loop for each test: asyncio's, or one in simulated time."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest
import uvloop

from ottla.testing.sim_loop import Simulation

T = TypeVar("T")
TIMEOUT_S = 60


class RealTime:
    """A loop of asyncio, or uvloop's."""

    def __init__(self, timeout_s: float, *, is_uvloop: bool = False) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop if is_uvloop else None)
        self._timeout_s = timeout_s

    def run(self, work: Awaitable[T]) -> T:
        """Run to the end, within the time that a test has."""
        return self._runner.run(_within(self._timeout_s, work))

    def close(self) -> None:
        """Cancel what still runs."""
        self._runner.close()


async def _within(seconds: float, work: Awaitable[T]) -> T:
    async with asyncio.timeout(seconds):
        return await work


_LOOP = pytest.StashKey[RealTime | Simulation]()


def is_simulated(item: pytest.Item) -> bool:
    """Whether a test runs in simulated time: the mark that is nearest to it decides."""
    nearest = next((mark.name for mark in item.iter_markers() if mark.name in {"simulated_time", "real_time"}), "")
    return nearest == "simulated_time"


def loop_of(item: pytest.Item) -> RealTime | Simulation:
    """Return the loop of a test, which ends with it."""
    if _LOOP not in item.stash:
        timeout, kind = item.get_closest_marker("timeout"), item.get_closest_marker("loop")
        loop: RealTime | Simulation
        if is_simulated(item):
            loop = Simulation(seed=1)
        else:
            is_uvloop = kind is not None and kind.args[0] == "uvloop"
            loop = RealTime(timeout.args[0] if timeout else TIMEOUT_S, is_uvloop=is_uvloop)
        item.stash[_LOOP] = loop
        item.addfinalizer(loop.close)
    return item.stash[_LOOP]


def run_test(item: pytest.Function) -> bool:
    """Run an async test; return whether it is one."""
    if not inspect.iscoroutinefunction(item.obj):
        return False
    arguments = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
    loop_of(item).run(item.obj(**arguments))
    return True


def as_plain_fixture(fixture: Callable[..., Any], item: pytest.Item) -> Callable[..., Any]:
    """Return an async fixture as pytest runs others: a function, or a generator."""

    def call(**arguments: Any) -> Any:
        return loop_of(item).run(fixture(**arguments))

    def generate(**arguments: Any) -> Iterator[Any]:
        generator = fixture(**arguments)
        loop = loop_of(item)
        yield loop.run(anext(generator))
        loop.run(_end(generator))

    return generate if inspect.isasyncgenfunction(fixture) else call


def setup_of(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return what the marks `setup` say, the nearest first: arguments for the fixtures of the test's own module."""
    merged: dict[str, Any] = {}
    for mark in request.node.iter_markers("setup"):
        merged = {**mark.kwargs, **merged}
    return merged


async def _end(generator: AsyncGenerator[T, None]) -> None:
    async for _ in generator:
        raise AssertionError("the fixture yields twice")
