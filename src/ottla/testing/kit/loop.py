"""Provides the event loop of brokers in a test: its time can be moved on, and it knows when there is nothing to do.

All timers of a broker are of its loop, and its clock is the loop's. So a test that moves the loop's time moves
sessions, retention and everything else that waits, while sockets, and the clients at their other ends, are real.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ottla.core.clock import SystemClock

T = TypeVar("T")

_STEPS_MAX = 64
_STEP_MIN_S = 1.0
_STEP_MAX_S = 20 * 24 * 3600.0
"""Less than the longest timeout that a setting may have, which brokers have among themselves (options.py)."""

_BUSY_MAX_S = 0.25
"""Clients that ask without a pause cannot keep a loop from being idle for longer."""


class AdvanceableLoop(asyncio.SelectorEventLoop):
    """A loop whose time is that of the system, and what `advance` has added to it.

    Without `has_threads` blocking work runs on the loop: there is none that takes long if all files are in memory.
    """

    def __init__(self, thread_name: str, *, has_threads: bool) -> None:
        self._idle_selector, self._system = _IdleSelector(), SystemClock()
        self._has_threads = has_threads
        self.added_s = 0.0
        super().__init__(self._idle_selector)
        if has_threads:
            self.set_default_executor(ThreadPoolExecutor(thread_name_prefix=f"{thread_name}/blocking"))

    def time(self) -> float:
        """Return the seconds of a clock that never goes backwards."""
        return self._system.monotonic() + self.added_s

    async def idle(self) -> None:
        """Return when no callback is ready, no timer is due, no job runs, and no socket has something to read."""
        idle: asyncio.Future[None] = self.create_future()
        self._idle_selector.report_idle(idle)
        await idle

    async def advance(self, seconds: float, each_step: Callable[[], Awaitable[None]]) -> None:
        """Move the time on, in steps; returns when what was due is done. `each_step`: what brokers do now and then.

        What was due at one step sees the time of that step, so a session that ends after 45 s ends long before offsets
        that are kept for a week; steps of seconds would take minutes for that week.
        """
        await self.idle()
        step_s = min(max(_STEP_MIN_S, seconds / _STEPS_MAX), _STEP_MAX_S)
        end_s = self.added_s + seconds
        while self.added_s < end_s:
            self.added_s = min(self.added_s + step_s, end_s)
            await self.idle()
            await each_step()

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Run a function in a thread, or in a callback of this loop."""
        if self._has_threads:
            running = super().run_in_executor(executor, func, *args)
            self.job_begins()
            running.add_done_callback(self.job_ends)
            return running
        outcome: asyncio.Future[T] = self.create_future()
        self.call_soon(_run, outcome, func, args)
        return outcome

    def job_begins(self) -> None:
        """Learn of a job in another thread: until its end this loop is not idle."""
        self._idle_selector.jobs += 1

    def job_ends(self, _: object = None) -> None:
        """Learn of the end of a job."""
        self._idle_selector.jobs -= 1

    def without_threads(self) -> None:
        """Run blocking work on the loop from now on: a process that ends starts no thread."""
        self._has_threads = False

    def sockets(self) -> list[int]:
        """Return the descriptors of all sockets that it looks at, or will when their connections read again."""
        looked_at = [key.fd for key in dict(self._idle_selector.get_map()).values()]
        transports: Mapping[int, asyncio.Transport] = self._transports  # type: ignore[attr-defined]
        return [*looked_at, *(each.get_extra_info("socket").fileno() for each in tuple(transports.values()))]

    @property
    def selector_descriptor(self) -> int:
        """Return the descriptor of the selector itself."""
        return self._idle_selector.fileno()


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
        self._system = SystemClock()
        self._waiting: list[asyncio.Future[None]] = []
        self._waits_until_s = 0.0
        self.jobs = 0  # of other threads, for which the loop waits

    def report_idle(self, idle: asyncio.Future[None]) -> None:
        """Complete a future when the loop would wait, and soon also if clients ask without a pause."""
        self._waiting.append(idle)
        self._waits_until_s = self._system.monotonic() + _BUSY_MAX_S

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for sockets; but not while someone waits for an idle loop."""
        if not self._waiting:
            return super().select(timeout)
        left_s = self._waits_until_s - self._system.monotonic()
        is_due = timeout is not None and timeout <= 0
        if is_due or self.jobs == 0 or left_s <= 0:
            ready = super().select(0)
        else:
            ready = super().select(left_s if timeout is None else min(left_s, timeout))  # a job's end is an event
        if left_s <= 0 or (not ready and not is_due and self.jobs == 0):
            waiting, self._waiting = self._waiting, []
            for idle in waiting:
                if not idle.done():
                    idle.set_result(None)
        return ready


class LoopClock:
    """The clock of the brokers: their loop's."""

    def __init__(self, loop: AdvanceableLoop) -> None:
        self._loop, self._system = loop, SystemClock()
        self.monotonic: Callable[[], float] = loop.time

    def wall_ms(self) -> int:
        """Return the time of day, in milliseconds since 1970."""
        return self._system.wall_ms() + round(self._loop.added_s * 1000)
