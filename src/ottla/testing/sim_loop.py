"""Runs asyncio code of one or several processes in virtual time: the same seed gives the same schedule in every run.

When no callback is ready the clock jumps to the next timer, so an hour of heartbeats takes a millisecond. A test that
would wait without end fails immediately with `Deadlock`.

    def test_no_member_is_lost(seed): simulate(scenario, seed=seed)

Each simulated process (`SimProcess`) has its own queue of callbacks. The seed chooses which process runs its next turn;
within a process the order is first in, first out, as in asyncio, because transports and locks depend on it. Code under
test that has neither may run on a loop that shuffles instead, which covers more schedules (`simulate` does).

A context variable names the process, and tasks and callbacks copy their context: so the loop knows whose each callback
is. A paused process keeps its callbacks and timers until it is resumed; those of a killed process never run. Objects of
a killed process are kept until the end of the run, so that no `finally` of a collected coroutine acts.

The code under test must take its time from the loop: pass `SimClock`. The network is `sim_network.py`, threads are
`run_in_executor` and `SimRuntime`; anything else that waits for the outside fails with `Deadlock`.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
import struct
import sys
import zlib
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

T = TypeVar("T")

EPOCH_WALL_MS = 1_700_000_000_000
"""The start of simulated time, so that times of day are realistic."""

_END_SECONDS = 5.0
_JOB_SECONDS = 0.001
"""A job of an executor begins and ends within this time."""


_TURN = struct.Struct("<dII").pack


class Deadlock(AssertionError):
    """All tasks wait and no timer is set: in production this would never end."""


class TooLong(AssertionError):
    """The run passed its limit of simulated time: it makes no progress."""


class Unseen(AssertionError):
    """A callback, or a task that no other task awaits, failed."""


class SimProcess:
    """One process of a simulated machine, from its start to its end. The next start is another `SimProcess`."""

    __slots__ = ("host", "identity", "is_dead", "is_paused", "is_runnable", "number", "ready", "wall_offset_ms")

    def __init__(self, host: str, number: int) -> None:
        self.host = host
        self.number = number  # of this process on its host: 1 is the first
        self.identity = zlib.crc32(f"{host}#{number}".encode())
        self.ready: deque[SimHandle] = deque()
        self.is_paused = self.is_dead = False
        self.is_runnable = False  # it is in the loop's list of processes that have a callback to run
        self.wall_offset_ms = EPOCH_WALL_MS  # of the machine's clock; it can be set, as on a real machine

    def __repr__(self) -> str:
        return f"{self.host}#{self.number}"


_TEST = SimProcess("test", 1)
current_process: contextvars.ContextVar[SimProcess] = contextvars.ContextVar("current_process", default=_TEST)
"""The process to which the running code belongs."""


class SimHandle(asyncio.TimerHandle):
    """A callback, with the context and the process to which it belongs."""

    __slots__ = ("args", "callback", "context", "is_cancelled", "process", "when_s")

    def __init__(  # the base class is for type annotations: its attributes belong to asyncio's loops
        self,
        when_s: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context,
        process: SimProcess,
    ) -> None:
        self.when_s, self.callback, self.args, self.context, self.process = when_s, callback, args, context, process
        self.is_cancelled = False

    def __repr__(self) -> str:
        return f"<SimHandle {self.process} at {self.when_s:g} {self.callback!r}>"

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def cancel(self) -> None:
        """Cancel the callback: it never runs."""
        self.is_cancelled = True

    def cancelled(self) -> bool:
        """Return whether the callback was cancelled."""
        return self.is_cancelled

    def when(self) -> float:
        """Return the time at which the callback is due."""
        return self.when_s


class Network(Protocol):
    """Connects the processes (`sim_network.py`)."""

    async def create_server(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str | list[bytes] | None,
        port: int,
        *,
        start_serving: bool,
    ) -> Any:
        """Listen at a port of the current process's host."""
        ...

    async def create_connection(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        """Connect from the current process."""
        ...


if TYPE_CHECKING:
    _AbstractLoop = asyncio.BaseEventLoop  # declares what AbstractEventLoop leaves abstract and simulations never call
else:
    _AbstractLoop = asyncio.AbstractEventLoop


class SimLoop(_AbstractLoop):
    """An event loop without sockets and threads whose time stands still while code runs."""

    def __init__(
        self, rng: random.Random, *, limit_s: float, shuffles: bool = False, turn_s: float = 0.0, seed: object = ""
    ) -> None:
        self.rng = rng
        self.network: Network | None = None
        self.unseen: list[dict[str, Any]] = []
        self.trace_hash = 0
        """A checksum over the time, the process and the number of callbacks of each turn, and over all noted events."""
        self.turns = 0
        self.on_turn: Callable[[SimProcess], object] | None = None  # a check of invariants after each turn
        self._seed = seed
        self._rngs: dict[str, random.Random] = {}
        self._now, self.limit_s, self._turn_s, self._shuffles = 0.0, limit_s, turn_s, shuffles
        self._timers: list[tuple[float, int, SimHandle]] = []
        self._numbered = 0
        self._runnable: list[SimProcess] = []
        self._processes: dict[str, int] = {}
        self._kept: list[object] = []  # of killed processes
        self._is_running = self._is_closed = False

    # ---- For tests

    def rng_for(self, purpose: str) -> random.Random:
        """Return a generator of random numbers for one purpose: drawing from it changes no other purpose's numbers."""
        found = self._rngs.get(purpose)
        if found is None:
            found = self._rngs[purpose] = random.Random(f"{self._seed}/{purpose}")
        return found

    def process(self, host: str) -> SimProcess:
        """Return a new process on a host."""
        number = self._processes[host] = self._processes.get(host, 0) + 1
        return SimProcess(host, number)

    def hosts(self) -> list[str]:
        """Return the names of all hosts that have had a process."""
        return list(self._processes)

    def run_in(self, process: SimProcess, main: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine in a process."""
        context = contextvars.copy_context()
        context.run(current_process.set, process)
        return self.create_task(main, context=context)

    def pause(self, process: SimProcess) -> None:
        """Stop a process, as SIGSTOP does."""
        process.is_paused = True
        self._not_runnable(process)

    def resume(self, process: SimProcess) -> None:
        """Continue a process, as SIGCONT does: what became due meanwhile runs late."""
        process.is_paused = False
        if process.ready and not process.is_dead and not process.is_runnable:
            process.is_runnable = True
            self._runnable.append(process)

    def kill(self, process: SimProcess) -> None:
        """End a process, as SIGKILL does: nothing of it runs any more."""
        process.is_dead = True
        self._kept += asyncio.all_tasks(self)
        self._kept += process.ready
        process.ready = deque()
        self._not_runnable(process)

    def _not_runnable(self, process: SimProcess) -> None:
        if process.is_runnable:
            process.is_runnable = False
            self._runnable.remove(process)

    def keep(self, *objects: object) -> None:
        """Keep objects until the end of the run."""
        self._kept += objects

    def note(self, event: bytes) -> None:
        """Add an event to the trace hash."""
        self.trace_hash = zlib.crc32(event, self.trace_hash)

    def advance(self, seconds: float) -> None:
        """Advance the time while code runs: a slow computation, a suspended machine."""
        assert seconds >= 0, "time does not go back"
        self._now += seconds

    # ---- Callbacks

    def time(self) -> float:
        """Return the simulated seconds since the run began."""
        return self._now

    def call_soon(self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None) -> Any:  # type: ignore[override]
        """Run the callback in the next turn of its process."""
        if context is None:
            context = contextvars.copy_context()
        process = context.get(current_process) or _TEST
        handle = SimHandle(self._now, callback, args, context, process)
        if process.is_dead:
            self._kept.append(handle)
            return handle
        if not process.is_runnable and not process.is_paused:
            process.is_runnable = True
            self._runnable.append(process)
        process.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        """Run the callback after so many seconds."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        """Run the callback at a time of this loop."""
        if context is None:
            context = contextvars.copy_context()
        handle = SimHandle(when, callback, args, context, context.get(current_process) or _TEST)
        self._numbered += 1
        heapq.heappush(self._timers, (when, self._numbered, handle))
        return handle

    def _enqueue(self, handle: SimHandle) -> None:
        process = handle.process
        if process.is_dead:
            self._kept.append(handle)
            return
        if not process.is_runnable and not process.is_paused:
            process.is_runnable = True
            self._runnable.append(process)
        process.ready.append(handle)

    # ---- Running

    def run_until_complete(self, future: Any) -> Any:
        """Run until the future is done. Raises Deadlock, TooLong, and what the future raises."""
        task = asyncio.ensure_future(future, loop=self)
        before = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=None, finalizer=self._finalize)
        asyncio._set_running_loop(self)  # noqa: SLF001  # documented for loops
        self._is_running = True
        try:
            while not task.done():
                self._run_turn()
        finally:
            self._is_running = False
            asyncio._set_running_loop(None)  # noqa: SLF001
            sys.set_asyncgen_hooks(*before)
        return task.result()

    def _finalize(self, generator: AsyncGenerator[Any, Any]) -> None:
        """End an async generator that was dropped before its end, as asyncio's loop does."""
        if not self._is_closed and not current_process.get().is_dead:
            self.create_task(_aclose(generator))

    def _run_turn(self) -> None:
        now, timers, runnable = self._now, self._timers, self._runnable
        if timers and timers[0][0] <= now:
            self._take_due_timers()
        while not runnable:
            self._wait_for_timer()
        process = runnable[int(self.rng.random() * len(runnable))] if len(runnable) > 1 else runnable[0]
        if self._shuffles and self.network is None and len(process.ready) > 1:  # transports depend on the order
            shuffled = list(process.ready)
            self.rng.shuffle(shuffled)
            process.ready = deque(shuffled)
        self.turns += 1
        ready = process.ready
        size = len(ready)
        self.trace_hash = zlib.crc32(_TURN(self._now, process.identity, size), self.trace_hash)
        for _ in range(size):
            if process.is_paused or process.is_dead:
                break
            handle = ready.popleft()
            if not handle.is_cancelled:
                try:
                    handle.context.run(handle.callback, *handle.args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001  # as asyncio's loop does
                    self._failed(handle, error)
        if not process.ready:
            self._not_runnable(process)
        self._now += self._turn_s
        if self.on_turn is not None:
            self.on_turn(process)

    def _failed(self, handle: SimHandle, error: BaseException) -> None:
        if not handle.process.is_dead:
            self.call_exception_handler({"message": f"a callback of {handle!r} failed", "exception": error})

    def _take_due_timers(self) -> None:
        timers = self._timers
        while timers and timers[0][0] <= self._now:
            handle = heapq.heappop(timers)[2]
            if not handle.is_cancelled:
                self._enqueue(handle)

    def _wait_for_timer(self) -> None:
        timers = self._timers
        while timers and (timers[0][2].is_cancelled or timers[0][2].process.is_dead):
            dropped = heapq.heappop(timers)[2]
            if dropped.process.is_dead:
                self._kept.append(dropped)
        if not timers:
            raise Deadlock(f"after {self._now:g} s no task can run and no timer is set")
        self._now = max(self._now, timers[0][0])
        if self._now > self.limit_s:
            raise TooLong(f"{self._now:g} s of simulated time are over and the run is not")
        self._take_due_timers()

    # ---- Threads and connections

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Run a function at one moment and complete its future at a later one."""
        assert executor is None, "there are no thread pools in simulated time"
        done: asyncio.Future[T] = self.create_future()
        rng = self.rng_for("executor") if self._seed != "" else self.rng
        self.call_later(rng.random() * _JOB_SECONDS, self._run_job, done, rng.random() * _JOB_SECONDS, func, args)
        return done

    def _run_job(
        self, done: asyncio.Future[T], answer_after_s: float, func: Callable[..., T], args: tuple[Any, ...]
    ) -> None:
        try:
            result = func(*args)
        except Exception as error:  # noqa: BLE001  # every exception is set on the future
            self.call_later(answer_after_s, _settle, done, None, error)
        else:
            self.call_later(answer_after_s, _settle, done, result, None)

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | list[bytes] | None = None,
        port: int = 0,
        *,
        start_serving: bool = True,
        **_: Any,
    ) -> Any:
        """Listen on the simulated network, without `start_serving` later."""
        assert self.network is not None, "there are no sockets in simulated time without a network"
        return await self.network.create_server(protocol_factory, host, port, start_serving=start_serving)

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **_: Any
    ) -> Any:
        """Connect over the simulated network."""
        assert self.network is not None, "there are no sockets in simulated time without a network"
        return await self.network.create_connection(protocol_factory, host, port)

    # ---- What asyncio needs besides

    def create_future(self) -> asyncio.Future[Any]:
        """Return a new future."""
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: Any = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        """Run a coroutine as a task."""
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def get_debug(self) -> bool:
        """Return False: asyncio's debug mode is off."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Collect a failure that no code awaits."""
        if not current_process.get().is_dead:
            self.unseen.append(context)

    def is_running(self) -> bool:
        """Return whether the loop runs."""
        return self._is_running

    def is_closed(self) -> bool:
        """Return whether the loop is closed."""
        return self._is_closed

    def close(self) -> None:
        """Drop all callbacks."""
        self._is_closed = True
        self._timers.clear()
        self._runnable.clear()


def _settle(done: asyncio.Future[T], result: T | None, error: BaseException | None) -> None:
    if done.done():
        return
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(result)  # type: ignore[arg-type]


async def _aclose(generator: AsyncGenerator[Any, Any]) -> None:
    await generator.aclose()


class SimClock:
    """The simulated time as `core.clock.Clock`. The time of day can be set, as on a real machine."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop or asyncio.get_running_loop()
        self.wall_offset_ms = EPOCH_WALL_MS

    def wall_ms(self) -> int:
        """Return the simulated time of day."""
        return self.wall_offset_ms + round(self._loop.time() * 1000)

    def monotonic(self) -> float:
        """Return the simulated seconds."""
        return self._loop.time()


class Simulation:
    """Runs one coroutine after another in simulated time, callbacks in random order, in one process named "test"."""

    def __init__(self, *, seed: int, limit_s: float = 30 * 24 * 3600) -> None:
        self.seed = seed
        self.loop = SimLoop(random.Random(seed), limit_s=limit_s, shuffles=True)
        self._context = contextvars.copy_context()
        self._context.run(current_process.set, self.loop.process("test"))

    def run(self, work: Awaitable[T]) -> T:
        """Run to the end. Raises what `work` raises, with the seed added; `Deadlock`; `TooLong`."""
        try:
            task = self.loop.create_task(_as_coroutine(work), context=self._context)
            result: T = self.loop.run_until_complete(task)
        except BaseException as error:
            error.add_note(f"simulation seed: {self.seed}")
            raise
        return result

    def close(self, *, checks_unseen: bool = True) -> None:
        """Cancel the tasks that still run. Raises Unseen for a failure that no code has awaited."""
        try:
            _end_the_rest(self.loop)
            if self.loop.unseen and checks_unseen:
                failed = self.loop.unseen[0]
                raise Unseen(f"{failed.get('message')}; simulation seed: {self.seed}") from failed.get("exception")
        finally:
            self.loop.close()


def simulate(main: Callable[[random.Random], Awaitable[T]], *, seed: int, limit_s: float = 30 * 24 * 3600) -> T:
    """Run `main(rng)` to its end in simulated time, callbacks in random order. Same seed, same run.

    Raises what `main` raises, with the seed added; `Deadlock`; `TooLong`; `Unseen`.
    """
    simulation = Simulation(seed=seed, limit_s=limit_s)
    try:
        result = simulation.run(main(simulation.loop.rng))
    except BaseException:
        simulation.close(checks_unseen=False)
        raise
    simulation.close()
    return result


async def _as_coroutine(awaitable: Awaitable[T]) -> T:
    return await awaitable


def _end_the_rest(loop: SimLoop) -> None:
    """Cancel the tasks that still run, as `asyncio.run` does. Those of killed processes never end."""
    rest = asyncio.all_tasks(loop)
    for task in rest:
        task.cancel()
    if rest:
        loop.run_until_complete(_wait(rest))


async def _wait(tasks: set[asyncio.Task[Any]]) -> None:
    await asyncio.wait(tasks, timeout=_END_SECONDS)
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()
