"""Offers brokers to a test, as one object: `with kafka(topics={"orders": 4}) as k:` and any client of `k.bootstrap`.

The brokers are those of `ottla server`, unchanged, on sockets of this machine; only their disks and their clock belong
to the test. They run on a loop in a thread (thread.py), which each method here asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from ottla.testing.cluster import TestCluster
from ottla.testing.kit.data import StoreOnDisk, check_layout
from ottla.testing.kit.log import CapturedLog
from ottla.testing.kit.loop import LoopClock
from ottla.testing.kit.options import options_of
from ottla.testing.kit.thread import LoopThread
from ottla.testing.real_machine import RealMachines

T = TypeVar("T")

Topics = Mapping[str, int] | Iterable[str]
"""Topics by name with their partitions, or names of topics with one."""


class Kafka:
    """A cluster of brokers in a thread of this process. Made by `kafka`; usable by any number of threads.

    `with` and `async with` start and stop it; so do `start` and `stop`. Methods return when what they ask for is done.
    """

    def __init__(self, *, topics: Topics, brokers: int, options: Mapping[str, str], data: Path | None) -> None:
        if brokers < 1:
            raise ValueError(f"brokers={brokers}: there has to be at least one")
        self._topics = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, 1)
        if data is not None:
            check_layout(data, brokers)
        self._brokers, self._options, self._data = brokers, options, data
        self._store: StoreOnDisk | None = None
        self._thread: LoopThread | None = None
        self._cluster: TestCluster | None = None
        self._log: CapturedLog | None = None

    # ---- Lifetime

    def start(self) -> Self:
        """Start the brokers; returns when they serve and the topics exist. Raises what prevents it."""
        if self._thread is not None:
            raise RuntimeError("the brokers have been started")
        thread = self._thread = LoopThread(has_threads=self._data is not None)
        self._log = CapturedLog(thread)
        self._log.begin()
        thread.at_exit = self.stop
        try:
            thread.call(self._start())
        except BaseException:
            self.stop()
            raise
        return self

    async def _start(self) -> None:
        assert self._thread is not None
        if self._data is not None and self._brokers > 1:
            self._store = StoreOnDisk.open(self._data)
        machines = RealMachines(self._data, clock=LoopClock(self._thread.loop))
        self._cluster = cluster = TestCluster(
            machines,
            options={**options_of(self._brokers), **self._options},
            has_shared_store=self._brokers > 1,
            store=None if self._store is None else self._store.store,
        )
        self._thread.more_sockets = machines.reserved_descriptors
        await cluster.start(self._brokers, topics=self._topics)

    def stop(self) -> None:
        """Stop the brokers and give back all they hold; files in memory are gone. A second call has no effect."""
        thread, self._thread = self._thread, None
        cluster, self._cluster = self._cluster, None
        store, self._store = self._store, None
        if thread is None:
            return
        try:
            if thread.is_usable:
                thread.call(_close(cluster, store))
        finally:
            thread.stop()
            if self._log is not None:
                self._log.end()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        starting = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait([starting])  # no one else would stop what has started
            self.stop()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    # ---- Access

    @property
    def bootstrap(self) -> str:
        """Return `bootstrap.servers` for clients: the addresses of the brokers that run."""
        return self._running.bootstrap

    @property
    def log(self) -> str:
        """Return the log of the brokers, also after they were stopped."""
        return "" if self._log is None else str(self._log)

    @property
    def _running(self) -> TestCluster:
        if self._cluster is None:
            raise RuntimeError("the brokers do not run: use `with kafka() as k:`, or k.start()")
        return self._cluster

    def _call(self, work: Callable[[TestCluster], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine function of the cluster on the loop of the brokers."""
        cluster = self._running
        assert self._thread is not None
        return self._thread.call(work(cluster))

    # ---- Topics

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        *,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic; returns when all brokers know it. By default it has a replica on three brokers at most."""
        self._call(
            lambda cluster: cluster.create_topic(
                topic, partitions, replication_factor=replication_factor, configs=dict(configs or {})
            )
        )

    # ---- Brokers

    def down(self, broker: int = 1, *, killed: bool = False) -> None:
        """Stop a broker as SIGTERM does, or as SIGKILL if `killed`; its disk and its port stay."""
        self._call(lambda cluster: cluster.kill(broker) if killed else cluster.stop(broker))

    def up(self, broker: int = 1) -> None:
        """Start a broker that is down, with its disk, on its port."""
        self._call(lambda cluster: cluster.restart(broker))

    # ---- Time

    def advance(
        self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0, ms: float = 0
    ) -> None:
        """Move the brokers' time on; returns when what was due is done: retention, sessions, timeouts.

        Clients stay connected; their own time does not move.
        """
        moved_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds + ms / 1000
        if moved_s < 0:
            raise ValueError(f"the time of brokers does not go back: {moved_s:g} s")
        self._call(lambda _: self._advance(moved_s))

    async def _advance(self, seconds: float) -> None:
        assert self._thread is not None
        in_sync = self._running.in_sync_replicas()
        await self._thread.loop.advance(seconds)
        await self._running.until_in_sync(in_sync)

    def now_ms(self) -> int:
        """Return the brokers' time of day, in milliseconds since 1970: the system's, and what `advance` has added."""
        return self._running.clock.wall_ms()


async def _close(cluster: TestCluster | None, store: StoreOnDisk | None) -> None:
    try:
        if cluster is not None:
            await cluster.close()
    finally:
        if store is not None:
            await store.close()


def kafka(
    *, topics: Topics = (), brokers: int = 1, options: Mapping[str, str] | None = None, data: Path | str | None = None
) -> Kafka:
    """Return brokers for a test, not started yet.

    `options` are settings of brokers, by Kafka's names. Files are in memory, or below the directory `data`, where they
    stay. Raises ValueError for what cannot be.
    """
    return Kafka(topics=topics, brokers=brokers, options=options or {}, data=None if data is None else Path(data))
