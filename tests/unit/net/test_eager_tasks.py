"""A coroutine that need not wait runs in the present turn and is no task; one that waits goes on as one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ottla.net import eager_tasks


async def test_a_coroutine_that_does_not_wait_ends_in_the_present_turn() -> None:
    done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    done.set_result("result")
    found: list[str] = []

    async def work() -> None:
        found.append(await done)

    assert eager_tasks.start(work(), "work") is None
    assert found == ["result"]


async def _a_future(steps: list[str]) -> None:
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_result, "result")  # before the first step of the task
    steps.append(await future)


async def _a_later_future(steps: list[str]) -> None:
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.001, future.set_result, "result")
    steps.append(await future)


async def _a_turn(steps: list[str]) -> None:
    await asyncio.sleep(0)
    steps.append("result")


async def _two_waits(steps: list[str]) -> None:
    await asyncio.sleep(0.001)
    async with asyncio.timeout(1):  # it is in a task now
        await asyncio.sleep(0)
    steps.append("result")


@pytest.mark.parametrize("wait", [_a_future, _a_later_future, _a_turn, _two_waits])
async def test_a_coroutine_that_waits_goes_on_in_a_task(wait: Callable[[list[str]], Awaitable[None]]) -> None:
    steps: list[str] = []

    async def work() -> None:
        steps.append("begun")
        await wait(steps)

    task = eager_tasks.start(work(), "work")
    assert task is not None
    assert steps == ["begun"]
    assert task.get_name() == "work"
    await task
    assert steps == ["begun", "result"]


async def test_errors_reach_the_coroutine() -> None:
    caught: list[BaseException] = []

    async def work(future: asyncio.Future[None]) -> None:
        try:
            await future
        except (ValueError, asyncio.CancelledError) as error:
            caught.append(error)

    failing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    task = eager_tasks.start(work(failing), "work")
    assert task is not None
    failing.set_exception(ValueError("of the future"))
    await task
    cancelled = eager_tasks.start(work(asyncio.get_running_loop().create_future()), "work")
    assert cancelled is not None
    cancelled.cancel()
    await cancelled
    assert [type(error) for error in caught] == [ValueError, asyncio.CancelledError]


async def test_an_error_before_the_first_wait_is_the_callers() -> None:
    async def work() -> None:
        raise ValueError("before")

    with pytest.raises(ValueError, match="before"):
        eager_tasks.start(work(), "work")
