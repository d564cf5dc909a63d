"""Provides the event loop of brokers in a test: its time can be moved on, and it knows when there is nothing to do.

All timers of a broker are of its loop, and its clock is the loop's. So a test that moves the loop's time moves
sessions, retention and everything else that waits, while sockets, and the clients at their other ends, are real.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any, TypeVar

from ottla.core.clock import SystemClock

T = TypeVar("T")

_STEPS_MAX = 64
_STEP_S = 1.0


class AdvanceableLoop(asyncio.SelectorEventLoop):
    """A loop whose time is that of the system, and what `advance` has added to it.

    Without `has_threads` blocking work runs on the loop: there is none that takes long if all files are in memory.
    """

    def __init__(self, *, has_threads: bool) -> None:
        self._idle_selector, self._system = _IdleSelector(), SystemClock()
        self._has_threads = has_threads
        self.added_s = 0.0
        super().__init__(self._idle_selector)

    def time(self) -> float:
        """Return the seconds of a clock that never goes backwards."""
        return self._system.monotonic() + self.added_s

    async def idle(self) -> None:
        """Return when no callback is ready, no timer is due, and no socket has something to read."""
        await self._idle_selector.idle(self)

    async def advance(self, seconds: float) -> None:
        """Move the time on, in steps; returns when what was due is done.

        What was due at one step sees the time of that step, so a session that ends after 45 s ends long before offsets
        that are kept for a week; steps of seconds would take minutes for that week.
        """
        await self.idle()
        step_s = max(_STEP_S, seconds / _STEPS_MAX)
        end_s = self.added_s + seconds
        while self.added_s < end_s:
            self.added_s = min(self.added_s + step_s, end_s)
            await self.idle()

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Run a function in a thread, or in a callback of this loop."""
        if self._has_threads:
            return super().run_in_executor(executor, func, *args)
        outcome: asyncio.Future[T] = self.create_future()
        self.call_soon(_run, outcome, func, args)
        return outcome

    def open_descriptors(self) -> list[int]:
        """Return the descriptors of the loop and of all sockets that it looks at."""
        looked_at = [key.fd for key in dict(self._idle_selector.get_map()).values()]
        return [*looked_at, self._idle_selector.fileno()]


def _run(outcome: asyncio.Future[T], func: Callable[..., T], args: tuple[Any, ...]) -> None:
    try:
        result = func(*args)
    except Exception as error:  # noqa: BLE001 - it belongs to the one who awaits
        if not outcome.cancelled():
            outcome.set_exception(error)
    else:
        if not outcome.cancelled():
            outcome.set_result(result)


class _IdleSelector(selectors.DefaultSelector):
    """The system's selector, which reports to those who wait for it that the loop has nothing to do."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[asyncio.Future[None]] = []

    async def idle(self, loop: asyncio.AbstractEventLoop) -> None:
        """Return when the loop would wait."""
        waiting: asyncio.Future[None] = loop.create_future()
        self._waiting.append(waiting)
        await waiting

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for sockets; but not while a caller of `idle` waits."""
        if not self._waiting:
            return super().select(timeout)
        ready = super().select(0)
        if not ready and (timeout is None or timeout > 0):
            waiting, self._waiting = self._waiting, []
            for each in waiting:
                if not each.done():
                    each.set_result(None)
        return ready


class LoopClock:
    """The clock of the brokers: their loop's."""

    def __init__(self, loop: AdvanceableLoop) -> None:
        self._loop, self._system = loop, SystemClock()
        self.monotonic: Callable[[], float] = loop.time

    def wall_ms(self) -> int:
        """Return the time of day, in milliseconds since 1970."""
        return self._system.wall_ms() + round(self._loop.added_s * 1000)
