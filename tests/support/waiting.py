"""Waits for a condition of this loop, for a partition's offset, and for threads, in tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ottla.core.executors import ThreadExecutor


async def until(condition: Callable[[], object]) -> None:
    """Let the loop run until the condition is true; the test's own deadline bounds it."""
    while not condition():  # noqa: ASYNC110 - nothing announces it
        await asyncio.sleep(0.001)


class Woken:
    """An `OffsetWaiter` that passes the outcome on."""

    def __init__(self, call: Callable[[BaseException | None], None]) -> None:
        self._call = call

    def offset_reached(self, part: object, error: BaseException | None) -> None:
        """The offset is reached, or never will be."""
        self._call(error)


def thread_executor() -> ThreadExecutor:
    """One thread that reports to the running loop."""
    return ThreadExecutor("test", asyncio.get_running_loop().call_soon_threadsafe)
