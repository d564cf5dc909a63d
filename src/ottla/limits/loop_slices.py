"""Yields to the event loop after each slice of work, so that one large request does not delay the others.

All requests of a broker share one `LoopSlices`. When a turn of the loop has done a slice of work, the next task
waits for a later turn, and in each turn only one waiting task continues. So the work of one turn is bounded
whatever the number and size of the requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterable
from typing import TypeVar

from ottla.core.slices import WorkSlice

T = TypeVar("T")


class LoopSlices(WorkSlice):
    """The work that one turn of a broker's event loop may still do."""

    __slots__ = ("_is_scheduled", "_waiting")

    def __init__(self) -> None:
        super().__init__()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_scheduled = False

    async def yield_to_loop(self) -> None:
        """Wait for a later turn of the loop. What was checked before may have changed afterwards."""
        loop = asyncio.get_running_loop()
        resumed: asyncio.Future[None] = loop.create_future()
        self._waiting.append(resumed)
        if not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._resume_one)
        await resumed

    async def each(self, items: Iterable[T], work: int = 1) -> AsyncIterator[T]:
        """Yield the items; between two of them the loop may turn. `work` is what the caller does with one of them."""
        for item in items:
            yield item
            if self.spend(work):
                await self.yield_to_loop()

    async def run(self, slices: Generator[None, None, T]) -> T:
        """Run a generator that yields whenever `spend` has returned True; returns what it returns."""
        while True:
            try:
                next(slices)
            except StopIteration as end:
                result: T = end.value
                return result
            await self.yield_to_loop()

    def _resume_one(self) -> None:
        """Continue the one that has waited longest: a turn of the loop begins."""
        self.renew()
        while self._waiting:
            resumed = self._waiting.popleft()
            if not resumed.done():  # it is done if its request was cancelled
                resumed.set_result(None)
                break
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._resume_one)
        else:
            self._is_scheduled = False
