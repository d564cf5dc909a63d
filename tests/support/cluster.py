"""Runs several real brokers in this process, on sockets of their own, over one metadata store in memory.

A broker runs in a context of its own, so that `kill` finds its tasks and timers: nothing of it runs afterwards, nothing
is flushed, and its session expires, as after SIGKILL and the session timeout.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from ottla.broker import config
from ottla.broker.broker import Broker
from ottla.broker.context import Services
from ottla.client.addresses import Address
from ottla.client.cluster import ClientOptions, Cluster
from ottla.coordination.embedded_store import EmbeddedMetadataStore, EmbeddedSession
from ottla.core.clock import SystemClock
from tests.support.in_process_broker import InProcessBroker
from tests.support.limited_files import LimitedFiles
from tests.support.processes import free_port

_life: contextvars.ContextVar[object] = contextvars.ContextVar("life")

OPTIONS = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.enable": "false",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "ottla.shutdown.max.ms": "500",
}


class _Life:
    """One run of a broker, from a start to a stop or a kill."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[Any]] = set()
        self.session: EmbeddedSession | None = None
        self.is_over = False


def _make_task(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
    """Create a task, and note it for the broker that creates it."""
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
    life = _life.get(None)
    if isinstance(life, _Life):
        life.tasks.add(task)
        task.add_done_callback(life.tasks.discard)
        if life.is_over:
            task.cancel()
    return task


class InProcessCluster:
    """Brokers 1 to n. Each has a data directory below `path`, which it keeps over restarts, as it keeps its port."""

    def __init__(
        self,
        path: Path,
        *,
        options: Mapping[str, str] | None = None,
        own_options: Mapping[int, Mapping[str, str]] | None = None,
        directories: int = 1,
    ) -> None:
        self._path, self._directories = path, directories
        self._options = {**OPTIONS, **(options or {})}
        self._own_options = own_options or {}
        self.store = EmbeddedMetadataStore()
        self.brokers: dict[int, Broker] = {}  # the running ones
        self.ports: dict[int, int] = {}
        self.disks: dict[int, LimitedFiles] = {}
        self._lives: dict[int, _Life] = {}
        asyncio.get_running_loop().set_task_factory(_make_task)

    # ---- Brokers

    async def start(self, brokers: int = 3) -> None:
        """Start the brokers 1 to `brokers`; returns when each knows all."""
        for node_id in range(1, brokers + 1):
            await self.restart(node_id)
        await self.until(lambda: all(self._knows(node_id, brokers) for node_id in self.brokers))

    def _knows(self, node_id: int, brokers: int) -> bool:
        return len(self.services(node_id).cluster.current.brokers) == brokers

    def paths(self, node_id: int) -> list[Path]:
        """Return the log directories of a broker."""
        more = [self._path / f"broker-{node_id}-{number}" for number in range(2, self._directories + 1)]
        return [self._path / f"broker-{node_id}", *more]

    async def restart(self, node_id: int) -> None:
        """Start a broker that does not run."""
        assert node_id not in self.brokers
        options = {
            **self._options,
            "node.id": str(node_id),
            "listeners": f"PLAINTEXT://127.0.0.1:{self.ports.get(node_id) or free_port()}",
            **self._own_options.get(node_id, {}),
        }
        given, _ = config.read(file=None, environment={}, options=options)
        self._lives[node_id] = life = _Life()

        async def open_store() -> EmbeddedSession:
            life.session = self.store.session()
            return life.session

        async def run() -> Broker:
            files = self.disks.setdefault(node_id, LimitedFiles())
            broker = Broker(given, self.paths(node_id), clock=SystemClock(), files=files, open_store=open_store)
            try:
                (self.ports[node_id],) = {endpoint.port for endpoint in await broker.start()}
            except BaseException:
                await broker.stop()
                raise
            return broker

        self.brokers[node_id] = await self.create_task(node_id, run())

    async def stop(self, node_id: int) -> None:
        """Stop a broker as SIGTERM does."""
        broker = self.brokers.pop(node_id)
        await self.create_task(node_id, broker.stop())

    async def kill(self, node_id: int, *, session_expires: bool = True) -> None:
        """End a broker as SIGKILL does. Without `session_expires` the store considers it alive: see `expire`."""
        services = self.services(node_id)
        fetchers = services.replicas._fetchers
        broker, life = self.brokers.pop(node_id), self._lives[node_id]
        life.is_over = True
        for fetcher in () if fetchers is None else fetchers._fetchers.values():
            life.tasks.add(fetcher._task)  # begun by a change in the store, and so perhaps by another broker
            fetcher._is_closed = True
        _cancel_timers(life)
        for task in tuple(life.tasks):
            task.cancel()
        listeners, storage = broker._listeners, broker._storage
        assert listeners is not None
        assert storage is not None
        for server in listeners._servers:
            server.close()
        for connection in tuple(listeners.connections):
            connection.close()
        if life.tasks:
            await asyncio.wait(tuple(life.tasks), timeout=5)
        for outgoing in services.nodes._opened:
            outgoing._streams[1].transport.abort()
        _cancel_timers(life)
        for directory in storage.directories.opened:
            directory.lock.release()
        if session_expires:
            await self.expire(node_id)

    async def expire(self, node_id: int) -> None:
        """End the session of a broker, as the store does if it hears nothing of it."""
        session = self._lives[node_id].session
        assert session is not None
        await session.expire()

    async def close(self) -> None:
        """Stop all brokers that run, the controller last."""
        for node_id in sorted(self.brokers, key=lambda node: self.services(node).controller.is_active):
            await self.stop(node_id)

    def create_task(self, node_id: int, work: Any) -> asyncio.Task[Any]:
        """Create a task that belongs to a broker's run, and ends with it."""
        context = contextvars.copy_context()
        context.run(_life.set, self._lives[node_id])
        return context.run(asyncio.get_running_loop().create_task, work)

    # ---- Access

    @property
    def bootstrap(self) -> str:
        """Return the addresses of the running brokers, as clients' `bootstrap.servers`."""
        return ",".join(f"127.0.0.1:{self.ports[node_id]}" for node_id in self.brokers)

    def services(self, node_id: int) -> Services:
        """Return the services of a running broker."""
        services = self.brokers[node_id]._services
        assert services is not None
        return services

    def handlers(self, node_id: int) -> InProcessBroker:
        """Return a running broker whose handlers can be called without a socket."""
        return InProcessBroker(self.services(node_id))

    @property
    def controller(self) -> int:
        """Return the node id of the controller."""
        (found,) = (node_id for node_id in self.brokers if self.services(node_id).controller.is_active)
        return found

    async def client(self, *node_ids: int) -> Cluster:
        """Connect Ottla's own client to some of the brokers, or to all."""
        seeds = [Address("127.0.0.1", self.ports[node_id]) for node_id in node_ids or self.brokers]
        return await Cluster.connect(seeds, options=ClientOptions(retry_s=15))

    async def until(self, holds: Callable[[], bool], *, seconds: float = 10) -> None:
        """Wait until a condition holds."""
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110 - it may depend on anything in any broker
                await asyncio.sleep(0.01)

    async def known_everywhere(self, topic: str) -> None:
        """Wait until every running broker knows a topic with all its leaders."""

        def is_known() -> bool:
            for node_id in self.brokers:
                found = self.services(node_id).cluster.current.topics.get(topic)
                if found is None or any(partition.leader < 0 for partition in found.partitions):
                    return False
            return True

        await self.until(is_known)


def _cancel_timers(life: _Life) -> None:
    """Cancel the callbacks that a broker has scheduled, now or later."""
    loop: Any = asyncio.get_running_loop()
    for handle in [*loop._scheduled, *loop._ready]:
        is_its_own = handle._context is not None and handle._context.get(_life) is life
        if is_its_own and not _is_of_asyncio(handle._callback):
            handle.cancel()


def _is_of_asyncio(callback: Any) -> bool:
    """Whether a callback is asyncio's: a task ends by its cancellation, and a socket leaves the loop by its last callback."""
    function = callback.func if isinstance(callback, functools.partial) else callback
    is_step = isinstance(getattr(function, "__self__", None), asyncio.Task)
    return is_step or (getattr(function, "__module__", None) or "").startswith("asyncio.")


def with_cluster(
    path: Path,
    scenario: Callable[[InProcessCluster], Awaitable[Any]],
    *,
    brokers: int = 3,
    options: Mapping[str, str] | None = None,
    own_options: Mapping[int, Mapping[str, str]] | None = None,
    seconds: float = 60,
    directories: int = 1,
) -> Any:
    """Start a cluster below `path`, run the scenario, stop the cluster."""

    async def run() -> Any:
        cluster = InProcessCluster(path, options=options, own_options=own_options, directories=directories)
        try:
            async with asyncio.timeout(seconds):
                await cluster.start(brokers)
                return await scenario(cluster)
        finally:
            await cluster.close()
            gc.collect()  # the files of killed brokers

    return asyncio.run(run())
