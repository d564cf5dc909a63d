"""Runs a broker of a test in this process on the system's own sockets, threads and clock, with files or in memory.

A broker runs in a context of its own, so that a kill finds its tasks and timers: nothing of it runs afterwards, and
nothing is flushed. The loop must be asyncio's own, since a kill inspects it.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path, PurePath
from typing import Any, Protocol, TypeVar, cast

from ottla.broker.broker import Broker
from ottla.broker.requests.stages import Accounting, Admission
from ottla.broker.startup.open_storage import OpenStore
from ottla.client.addresses import Address
from ottla.core.clock import Clock, SystemClock
from ottla.core.files import FileSystem
from ottla.metadata_store.embedded_store import EmbeddedMetadataStore, EmbeddedSession
from ottla.testing.limited_files import LimitedFiles
from ottla.testing.machine import Machine, MachineSettings
from ottla.testing.sim_disk import SimDisk

T = TypeVar("T")
HOST = "127.0.0.1"
_END_SECONDS = 5.0


class RequestStage(Admission, Accounting, Protocol):
    """The stages of all requests to the brokers of a cluster that a test has made."""


_incarnation: contextvars.ContextVar[_Incarnation | None] = contextvars.ContextVar("incarnation", default=None)


class _Incarnation:
    """One run of a broker, from a start to a stop or a kill."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[Any]] = set()
        self.session: EmbeddedSession | None = None
        self.is_over = False


def _make_task(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], **options: Any) -> asyncio.Task[T]:
    """Create a task, and note it for the broker that creates it."""
    task: asyncio.Task[T] = asyncio.Task(work, loop=loop, **options)
    incarnation = _incarnation.get()
    if incarnation is not None:
        incarnation.tasks.add(task)
        task.add_done_callback(incarnation.tasks.discard)
        if incarnation.is_over:
            task.cancel()
    return task


class RealMachines:
    """The machines of one cluster: with directories below a path, or with simulated disks in memory.

    A broker with a store of its own, which is alone, has the path itself. `ports` are those of brokers by their node
    ids; the system chooses the others.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        clock: Clock | None = None,
        stage: RequestStage | None = None,
        ports: Mapping[int, int] | None = None,
    ) -> None:
        self._path, self.clock, self._stage, self._ports = path, clock or SystemClock(), stage, ports or {}
        self._machines: list[RealMachine] = []
        loop: Any = asyncio.get_running_loop()
        loop.set_task_factory(_make_task)

    def machine(self, settings: MachineSettings) -> RealMachine:
        """Return a new machine."""
        above = self._path or Path("/")
        own = above / f"broker-{settings.node_id}" if settings.store is not None or self._path is None else above
        more = [own.with_name(f"{own.name}-{number}") for number in range(2, settings.directories + 1)]
        files = SimDisk(is_revertible=True) if self._path is None else LimitedFiles()
        machine = RealMachine(
            settings,
            [own, *more],
            files,
            clock=self.clock,
            stage=self._stage,
            port=_ReservedPort(self._ports.get(settings.node_id, 0)),
        )
        self._machines.append(machine)
        return machine

    def reserved_descriptors(self) -> list[int]:
        """Return the descriptors of the sockets that reserve ports."""
        return [machine.port.descriptor for machine in self._machines]


class RealMachine(Machine):
    """One machine: a port, log directories, and the context in which its broker runs."""

    def __init__(
        self,
        settings: MachineSettings,
        paths: list[Path],
        files: LimitedFiles | SimDisk,
        *,
        clock: Clock,
        port: _ReservedPort,
        stage: RequestStage | None,
    ) -> None:
        self.port = port
        super().__init__(settings, Address(HOST, self.port.number), paths)
        self._files, self._clock, self._stage = files, clock, stage
        self._incarnation = _Incarnation()
        self._has_own_store = settings.store is None
        self._store = settings.store or EmbeddedMetadataStore()

    @property
    def files(self) -> FileSystem:
        """The disk: the system's, or a simulated one."""
        return cast("FileSystem", self._files)

    @property
    def clock(self) -> Clock:
        """The clock of the cluster."""
        return self._clock

    # ---- Processes

    async def start_broker(self) -> None:
        """Start a broker. Raises what prevents it."""
        self.state, self.failure = "starting", None
        self._incarnation = _Incarnation()
        self.port.give()
        try:
            self.broker = await self.create_task(self._start())
        except BaseException as error:
            self.state, self.failure = "failed", error
            raise
        self.state = "up"

    async def _start(self) -> Broker:
        broker = Broker(
            self.read_config(),
            self.paths,
            clock=self._clock,
            files=self.files,
            open_store=self._store_opener(self._incarnation),
            has_own_store=self._has_own_store,
            cleans_in_process=isinstance(self._files, SimDisk),
            admission=self._stage,
            accounting=self._stage,
        )
        try:
            await broker.start()
        except BaseException:
            await broker.stop()
            raise
        return broker

    def _store_opener(self, incarnation: _Incarnation) -> OpenStore | None:
        if self._has_own_store and isinstance(self._files, LimitedFiles):
            return None  # a file

        async def open_store() -> EmbeddedSession:
            incarnation.session = self._store.session()
            return incarnation.session

        return open_store

    async def stop_broker(self) -> None:
        """Stop the broker as SIGTERM does."""
        broker, self.broker, self.state = self.broker, None, "stopping"
        assert broker is not None
        await self.create_task(broker.stop())
        self.port.take()
        self.state = "down"

    async def kill_broker(self, *, session_expires: bool = True) -> None:
        """End the broker as SIGKILL does."""
        broker, self.broker, self.state = self.broker, None, "down"
        assert broker is not None
        incarnation = self._incarnation
        _stop_reading(broker)
        await asyncio.sleep(0)  # the first step of what has come: a coroutine without it is reported as never awaited
        _close_sockets(broker)
        incarnation.is_over = True
        incarnation.tasks |= _fetchers(broker)
        _cancel_timers(incarnation)
        for task in tuple(incarnation.tasks):
            task.cancel()
        if incarnation.tasks:
            await asyncio.wait(tuple(incarnation.tasks), timeout=_END_SECONDS)
        _close_outgoing(broker)
        _cancel_timers(incarnation)
        _release_locks(broker)
        self.port.take()
        if session_expires:
            await self.expire_session()

    async def expire_session(self) -> None:
        """End the session of the broker."""
        if self._incarnation.session is not None:
            await self._incarnation.session.expire()

    def run(self, function: Callable[..., T], *args: object) -> T:
        """Call a function as the broker's process."""
        context = contextvars.copy_context()
        context.run(_incarnation.set, self._incarnation)
        return context.run(function, *args)

    def close(self) -> None:
        """Give the port back, and the memory of a disk."""
        self.port.give(for_good=True)
        if isinstance(self._files, SimDisk):
            self._files.erase()

    # ---- The disk

    def fill_disk(self, path: PurePath) -> None:
        """Leave no space at or below a path."""
        self._files.fill(path)

    def free_disk(self) -> None:
        """Give space again."""
        self._files.free()


class _ReservedPort:
    """A port that no other program gets while the broker does not run: a socket that does not listen is bound to it."""

    def __init__(self, number: int) -> None:
        self._held: socket.socket | None = None
        self.number = number
        self.take()

    @property
    def descriptor(self) -> int:
        """Return the socket's descriptor; -1 while there is none."""
        return -1 if self._held is None else self._held.fileno()

    def take(self) -> None:
        """Reserve the port."""
        if self._held is None:
            self._held = socket.socket()
            self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._held.bind((HOST, self.number))
            self.number = self._held.getsockname()[1]

    def give(self, *, for_good: bool = False) -> None:
        """Let the broker bind to the port. Linux lets it beside the socket that reserves it, which stays then."""
        if self._held is not None and (for_good or sys.platform != "linux"):
            self._held.close()
            self._held = None


# ---- What a kill ends. No part of a broker offers this to others: production ends by a stop, or with its process.


def _fetchers(broker: Broker) -> set[asyncio.Task[Any]]:
    """Disable the replica fetchers; return their tasks, which a change in the store may have begun elsewhere."""
    assert broker.services is not None
    manager = broker.services.replicas._fetchers  # noqa: SLF001
    tasks = set()
    for fetcher in () if manager is None else manager._fetchers.values():  # noqa: SLF001
        tasks.add(fetcher._task)  # noqa: SLF001
        fetcher._is_closed = True  # noqa: SLF001
    return tasks


def _stop_reading(broker: Broker) -> None:
    """Accept no connection and read no request from now on; what was accepted may still become a connection."""
    listeners = broker._listeners  # noqa: SLF001
    assert listeners is not None
    loop = asyncio.get_running_loop()
    for server in listeners._servers:  # noqa: SLF001
        for listening in server.sockets:
            loop.remove_reader(listening)
    for connection in tuple(listeners.connections):
        connection.close()


def _close_sockets(broker: Broker) -> None:
    listeners = broker._listeners  # noqa: SLF001
    assert listeners is not None
    for server in listeners._servers:  # noqa: SLF001
        server.close()
    for connection in tuple(listeners.connections):
        connection.close()


def _close_outgoing(broker: Broker) -> None:
    assert broker.services is not None
    for outgoing in broker.services.nodes._opened:  # noqa: SLF001
        outgoing._streams[1].transport.abort()  # noqa: SLF001


def _release_locks(broker: Broker) -> None:
    assert broker.services is not None
    for directory in broker.services.replicas.directories.opened:
        directory.lock.release()


def _cancel_timers(incarnation: _Incarnation) -> None:
    """Cancel the callbacks that a broker has scheduled, now or later."""
    loop: Any = asyncio.get_running_loop()
    for handle in [*loop._scheduled, *loop._ready]:  # noqa: SLF001
        is_its_own = handle._context is not None and handle._context.get(_incarnation) is incarnation  # noqa: SLF001
        if is_its_own and not _is_of_asyncio(handle._callback):  # noqa: SLF001
            handle.cancel()


def _is_of_asyncio(callback: Any) -> bool:
    """Return whether a callback is asyncio's: tasks end by cancellation, a socket leaves the loop by its last one."""
    function = callback.func if isinstance(callback, functools.partial) else callback
    is_step = isinstance(getattr(function, "__self__", None), asyncio.Task)
    return is_step or (getattr(function, "__module__", None) or "").startswith("asyncio.")
