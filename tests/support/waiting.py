"""Waits for a partition's offset, and for threads, in tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ottla.core.executors import ThreadExecutor


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
