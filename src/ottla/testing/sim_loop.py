"""Runs asyncio code in simulated time: the same seed gives the same schedule in every run.

When no callback is ready the clock jumps to the next timer, so an hour of heartbeats takes a millisecond. When several
are ready the seed selects their order, so that runs cover schedules that are rare on a real loop. A test that would
wait without end fails immediately with `Deadlock`.

    def test_no_member_is_lost(seed): simulate(scenario, seed=seed)

The code under test must take its time from the loop: pass `SimClock`. Threads, sockets and child processes do not
exist in simulated time; code that waits for them fails with `Deadlock` too.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")

EPOCH_WALL_MS = 1_700_000_000_000
"""The start of simulated time, so that times of day are realistic."""


class Deadlock(AssertionError):
    """All tasks wait and no timer is set: in production this would never end."""


class TooLong(AssertionError):
    """The run passed its limit of simulated time: it makes no progress."""


class Unseen(AssertionError):
    """A callback, or a task that no other task awaits, failed."""


class SimLoop(asyncio.BaseEventLoop):
    """An event loop without sockets whose time stands still while code runs.

    It uses BaseEventLoop's private hooks (`_selector`, `_process_events`, `_ready`): one small class to look at again
    at each Python release, and the price of simulating unmodified code.
    """

    _ready: deque[asyncio.Handle]

    def __init__(self, rng: random.Random, *, limit_s: float) -> None:
        super().__init__()
        self.rng = rng
        self.unseen: list[dict[str, Any]] = []
        self._now, self._limit_s = 0.0, limit_s
        self._selector = self  # our `select` is the only source of events
        self._clock_resolution = 1e-9
        self.set_exception_handler(lambda _, context: self.unseen.append(context))

    def time(self) -> float:
        """The simulated seconds since the run began."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Advance the time while code runs: a slow computation, a suspended machine."""
        assert seconds >= 0, "time does not go back"
        self._now += seconds

    def select(self, timeout: float | None) -> list[Any]:
        """Called by BaseEventLoop to wait for events; `timeout` is the time to the next timer."""
        if timeout is None:
            raise Deadlock(f"after {self._now:g} s no task can run and no timer is set")
        self._now += timeout
        if self._now > self._limit_s:
            raise TooLong(f"{self._now:g} s of simulated time are over and the run is not")
        return []

    def _run_once(self) -> None:
        if len(self._ready) > 1:
            shuffled = list(self._ready)
            self.rng.shuffle(shuffled)
            self._ready.clear()
            self._ready.extend(shuffled)
        super()._run_once()  # type: ignore[misc]

    def _process_events(self, events: list[Any]) -> None:
        assert not events, "there are no sockets in simulated time"

    def _write_to_self(self) -> None:
        """Called after `call_soon_threadsafe`; the simulated loop never sleeps."""

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Run a function immediately; its future completes after a random time of less than a millisecond."""
        assert executor is None, "there are no threads in simulated time"
        done: asyncio.Future[T] = self.create_future()
        try:
            result = func(*args)
        except Exception as error:  # noqa: BLE001  # every exception is set on the future
            self.call_later(self.rng.random() / 1000, _settle, done, None, error)
        else:
            self.call_later(self.rng.random() / 1000, _settle, done, result, None)
        return done


def _settle(done: asyncio.Future[T], result: T | None, error: BaseException | None) -> None:
    if done.done():
        return
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(result)  # type: ignore[arg-type]


class SimClock:
    """The simulated time as `core.clock.Clock`. The time of day can be set, as on a real machine."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop or asyncio.get_running_loop()
        self.wall_offset_ms = EPOCH_WALL_MS

    def wall_ms(self) -> int:
        """The simulated time of day."""
        return self.wall_offset_ms + round(self._loop.time() * 1000)

    def monotonic(self) -> float:
        """The simulated seconds."""
        return self._loop.time()


def simulate(main: Callable[[random.Random], Awaitable[T]], *, seed: int, limit_s: float = 30 * 24 * 3600) -> T:
    """Run `main(rng)` to its end in simulated time. Same seed, same run.

    Raises what `main` raises, with the seed added; `Deadlock`; `TooLong`; `Unseen`.
    """
    loop = SimLoop(random.Random(seed), limit_s=limit_s)
    context = contextvars.copy_context()
    try:
        task = loop.create_task(_as_coroutine(main(loop.rng)), context=context)
        result = loop.run_until_complete(task)
        _end_the_rest(loop)
        if loop.unseen:
            failed = loop.unseen[0]
            raise Unseen(str(failed.get("message"))) from failed.get("exception")
        return result
    except BaseException as error:
        error.add_note(f"simulation seed: {seed}")
        raise
    finally:
        loop.close()


async def _as_coroutine(awaitable: Awaitable[T]) -> T:
    return await awaitable


def _end_the_rest(loop: SimLoop) -> None:
    """Cancel the tasks that still run, as `asyncio.run` does."""
    rest = asyncio.all_tasks(loop)
    for task in rest:
        task.cancel()
    if rest:
        loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
