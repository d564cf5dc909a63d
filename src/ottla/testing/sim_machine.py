"""Runs a broker, unchanged, on a simulated machine: it has a process, a disk, a clock and a link to the metadata store.

A start, a stop and a recovery take virtual time and may be cut short by a fault: `SimMachine.state` says how far it is.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from pathlib import Path, PurePath
from typing import Any, TypeVar

from ottla.broker.broker import Broker
from ottla.client.addresses import Address
from ottla.core.clock import Clock
from ottla.core.runtime import use
from ottla.metadata_store.embedded_store import EmbeddedMetadataStore
from ottla.testing.machine import Machine, MachineSettings
from ottla.testing.sim_disk import Survival
from ottla.testing.sim_loop import SimClock, SimLoop, SimProcess, current_process
from ottla.testing.sim_network import SimNetwork
from ottla.testing.sim_runtime import ProcessClock, SimRuntime, TimedDisk
from ottla.testing.sim_store import StoreLink

T = TypeVar("T")
PORT = 9092
SESSION_TIMEOUT_S = 6.0
_SETTINGS = {
    "ottla.busy.poll.us": "0",  # it looks at sockets
    "ottla.scrub.bytes.per.second": "0",
}


class SimulatedMachines:
    """The machines of one cluster, with the network between them and the process of the metadata store."""

    def __init__(self, *, sync_s: float = 0.0, capacity_bytes: int = 1 << 40, loop: SimLoop | None = None) -> None:
        running = loop or asyncio.get_running_loop()
        assert isinstance(running, SimLoop), "there are simulated machines in simulated time only"
        self.loop, self.sync_s, self.capacity_bytes = running, sync_s, capacity_bytes
        self.clock = SimClock(running)
        self.network = SimNetwork(running)
        self.store_process = running.process("store")

    def machine(self, settings: MachineSettings) -> SimMachine:
        """Return a new machine."""
        return SimMachine(settings, self)

    def call_outside(self, callback: Callable[..., object], *args: object) -> None:
        """Call soon, outside of every broker."""
        context = contextvars.copy_context()
        context.run(current_process.set, self.store_process)
        self.loop.call_soon(callback, *args, context=context)


class SimMachine(Machine):
    """One simulated machine. Faults begin at once; `start` and `stop` return the task that goes on."""

    def __init__(self, settings: MachineSettings, machines: SimulatedMachines) -> None:
        self.host = f"broker-{settings.node_id}"
        more = [Path(f"/data-{number}") for number in range(2, settings.directories + 1)]
        super().__init__(settings, Address(self.host, PORT), [Path("/data"), *more])
        self._machines, self.loop = machines, machines.loop
        self.disk = TimedDisk(self.loop, sync_s=machines.sync_s, capacity_bytes=machines.capacity_bytes)
        self._has_own_store = settings.store is None
        store = settings.store or EmbeddedMetadataStore()
        self.link = StoreLink(self.loop, store, machines.store_process, self.host, timeout_s=SESSION_TIMEOUT_S)
        self.options = {**_SETTINGS, **settings.options}
        self.wall_skew_ms = 0
        self.process: SimProcess | None = None
        self.runtime: SimRuntime | None = None
        self.starts = 0
        self._clock: Clock = machines.clock

    @property
    def files(self) -> TimedDisk:
        """The disk."""
        return self.disk

    @property
    def clock(self) -> Clock:
        """The clock of the process."""
        return self._clock

    # ---- Processes

    def start(self) -> asyncio.Task[None]:
        """Start a broker; `state` becomes "up", or "failed"."""
        assert self.process is None or self.process.is_dead
        process = self.process = self.loop.process(self.host)
        process.wall_offset_ms += self.wall_skew_ms
        self._clock = ProcessClock(self.loop, process)
        self.runtime = SimRuntime(self.loop, process)
        self.starts += 1
        self.state, self.failure = "starting", None
        return self.create_task(self._start(process))

    async def _start(self, process: SimProcess) -> None:
        broker = self.broker = Broker(
            self.read_config(),
            self.paths,
            clock=self._clock,
            files=self.disk,
            open_store=self.link.open,
            has_own_store=self._has_own_store,
        )
        try:
            await broker.start()
        except BaseException as error:
            if process.is_dead:
                raise
            self.start_failed(error)
            self.disk.process_died()
            self._end(process)
            self.state, self.failure = "failed", error
            return
        if not process.is_dead:
            self.state = "up"

    def start_failed(self, error: BaseException) -> None:
        """Learn that the broker could not start. For subclasses."""

    def stop(self) -> asyncio.Task[None] | None:
        """Stop the broker as SIGTERM does, if it is up."""
        if self.state != "up":
            return None
        self.state = "stopping"
        return self.create_task(self._stop())

    async def _stop(self) -> None:
        assert self.broker is not None
        assert self.process is not None
        process = self.process
        await self.broker.stop()
        if not process.is_dead:
            self._end(process)
            self.disk.process_died()

    def run(self, function: Callable[..., T], *args: object) -> T:
        """Call a function as the broker's process."""
        assert self.process is not None
        assert self.runtime is not None
        context = contextvars.copy_context()
        context.run(current_process.set, self.process)
        context.run(use, self.runtime)
        return context.run(function, *args)

    def create_task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine as the broker's process."""
        return self.run(lambda: self.loop.create_task(work))

    def kill(self) -> bool:
        """End the broker as SIGKILL does: what it wrote stays in the page cache."""
        return self._crash(None)

    def power_cut(self, survival: Survival = Survival.TORN) -> bool:
        """Lose the power: unsynced writes are lost or torn."""
        return self._crash(survival)

    def _crash(self, survival: Survival | None) -> bool:
        process = self.process
        if process is None or process.is_dead:
            return False
        if survival is None:
            self.disk.process_died()
        else:
            self._machines.network.power_cut(self.host)
            self.disk.power_cut(self.loop.rng_for(f"disk/{self.host}"), survival)
        self._end(process)
        return True

    def plan_power_cut(self, changes: int) -> None:
        """Lose the power at a change of the disk: in the middle of what the broker does then."""
        self.disk.stop_at(changes)
        self.disk.on_stop = self._stopped

    def fail_next_sync(self, end_after_s: float, survival: Survival | None) -> None:
        """Fail one fsync, and soon after lose the power, and with it what was not written, or kill the process."""

        def end(process: SimProcess) -> None:
            if self.process is process:
                self._crash(survival)

        def plan() -> None:
            self.loop.call_later(end_after_s, end, self.process)

        self.disk.on_failed_sync = lambda: self._machines.call_outside(plan)
        self.disk.fail_next_sync()

    def _stopped(self) -> None:
        """Cut the power: the code that was running ends with exceptions and reaches nothing any more."""
        self.disk.on_stop = None
        process = self.process
        assert process is not None
        self._machines.network.power_cut(self.host)
        self.loop.kill(process)
        self._machines.call_outside(self._finish_power_cut, process)

    def _finish_power_cut(self, process: SimProcess) -> None:
        self.disk.power_cut(self.loop.rng_for(f"disk/{self.host}"), Survival.TORN)
        self._end(process)

    def _end(self, process: SimProcess) -> None:
        self.loop.keep(self.broker)
        self.loop.kill(process)
        self._machines.network.process_ended(process)
        self.link.process_ended()
        self.broker, self.state = None, "down"

    def restart(self) -> asyncio.Task[None]:
        """Start again after a crash."""
        self._machines.network.power_on(self.host)
        return self.start()

    def pause(self) -> None:
        """Stop the process and its link to the store, as SIGSTOP does."""
        if self.process is not None and not self.process.is_dead:
            self.loop.pause(self.process)
            self.link.cut()

    def resume(self) -> None:
        """Continue the process."""
        if self.process is not None:
            self.loop.resume(self.process)
        self.link.join()

    def skew_clock(self, by_ms: int) -> None:
        """Set the machine's time of day."""
        self.wall_skew_ms += by_ms
        if self.process is not None:
            self.process.wall_offset_ms += by_ms

    # ---- As every machine

    async def start_broker(self) -> None:
        """Start a broker. Raises what prevents it."""
        await self.restart()
        if self.failure is not None:
            raise self.failure

    async def stop_broker(self) -> None:
        """Stop the broker as SIGTERM does."""
        stopping = self.stop()
        assert stopping is not None, f"broker {self.node_id} is {self.state}"
        await stopping

    async def kill_broker(self, *, session_expires: bool = True) -> None:
        """End the broker as SIGKILL does."""
        self.kill()
        if session_expires:
            await self.link.expire()
        else:
            self.link.keep_session()

    async def expire_session(self) -> None:
        """End the last session of the broker."""
        await self.link.expire()

    def close(self) -> None:
        """Give nothing back: all is in memory."""

    def fill_disk(self, path: PurePath) -> None:
        """Leave no space at or below a path."""
        self.disk.fill(path)

    def free_disk(self) -> None:
        """Give space again."""
        self.disk.free()
