"""Runs the brokers of a cluster in this process, over one metadata store: on real sockets or in virtual time.

    async with TestCluster(SimulatedMachines()) as cluster:        in virtual time, on simulated disks and networks
    async with TestCluster(RealMachines(directory)) as cluster:    on sockets, threads and files of the system
        await cluster.start(brokers=3, topics={"orders": 4})
        client = await cluster.client()                            Ottla's own; any other one takes `cluster.bootstrap`
        await cluster.kill(2)                                      as SIGKILL does
        await cluster.until(lambda: 2 not in cluster.services(1).cluster.current.brokers)
        await cluster.restart(2)                                   with its files, on its port

Both have the same brokers, unchanged. A broker keeps its log directories and its port over restarts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path, PurePath
from types import TracebackType
from typing import Any, Self, TypeVar

from ottla.broker.broker import Broker
from ottla.broker.services import Services
from ottla.client.addresses import Address
from ottla.client.cluster import ClientOptions, Cluster
from ottla.core.clock import Clock
from ottla.core.files import FileSystem
from ottla.metadata_store.cluster_view import ClusterView
from ottla.metadata_store.embedded_store import EmbeddedMetadataStore
from ottla.metadata_store.metadata_cache import MetadataCache
from ottla.testing.machine import Machine, Machines, MachineSettings
from ottla.testing.requests import answer_to, connection_without_socket, request_to

T = TypeVar("T")

CLUSTER_OPTIONS: Mapping[str, str] = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.enable": "false",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "ottla.shutdown.max.ms": "500",
}
"""The settings of brokers that share a store, besides those of a test."""

_POLL_S = 0.01
_KNOWN_S = 10.0
_IN_SYNC_S = 2.0
"""A replica that can fetch is in sync after some milliseconds."""


class BrokerHandlers:
    """One broker of a cluster; requests go straight to its handlers, without a socket."""

    def __init__(self, cluster: TestCluster, node_id: int = 1) -> None:
        self.cluster, self.node_id = cluster, node_id
        self.connection = connection_without_socket()

    @property
    def services(self) -> Services:
        """Return the services of the broker that runs."""
        return self.cluster.services(self.node_id)

    @property
    def clock(self) -> Clock:
        """Return the clock of the broker's machine."""
        return self.cluster.machine(self.node_id).clock

    async def call(self, module: str, version: int, request: Any) -> Any:
        """Call the handler of a module of `ottla.broker.handlers`, as the driver does."""
        return await answer_to(request_to(self.services, version, connection=self.connection), module, request)

    async def restart(self) -> None:
        """Stop the broker, and start it with the same files."""
        await self.cluster.stop(self.node_id)
        await self.cluster.restart(self.node_id)


class TestCluster:
    """Brokers 1 to n. Those that are stopped or killed keep their machine: their files and their port.

    With `has_shared_store=False` there is one broker, with a metadata store that no other can join.
    """

    __test__ = False  # its name is no test's

    def __init__(
        self,
        machines: Machines,
        *,
        options: Mapping[str, str] | None = None,
        own_options: Mapping[int, Mapping[str, str]] | None = None,
        directories: int = 1,
        has_shared_store: bool = True,
        store: EmbeddedMetadataStore | None = None,
    ) -> None:
        self._machines, self._directories = machines, directories
        self._options = {**(CLUSTER_OPTIONS if has_shared_store else {}), **(options or {})}
        self._own_options = own_options or {}
        self.store = store or EmbeddedMetadataStore()
        self._has_shared_store = has_shared_store
        self._by_id: dict[int, Machine] = {}
        self._waiting: list[asyncio.Future[None]] = []  # for a broker that learns something of the cluster
        self._followed: dict[int, MetadataCache] = {}  # which report that

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # ---- Brokers

    async def start(self, brokers: int = 3, *, topics: Mapping[str, int] | None = None) -> None:
        """Start the brokers 1 to `brokers`; returns when each knows all, and topics with so many partitions exist."""
        assert self._has_shared_store or brokers == 1, "no other broker can join"
        for node_id in range(1, brokers + 1):
            await self.restart(node_id)
        await self._until_views(lambda: all(self._knows(node_id, brokers) for node_id in self.brokers))
        for topic, partitions in (topics or {}).items():
            await self.create_topic(topic, partitions)

    def _knows(self, node_id: int, brokers: int) -> bool:
        return len(self.services(node_id).cluster.current.brokers) == brokers

    def machine(self, node_id: int) -> Machine:
        """Return the machine of a broker, which may be down or never have run."""
        machine = self._by_id.get(node_id)
        if machine is None:
            settings = MachineSettings(
                node_id=node_id,
                options={**self._options, **self._own_options.get(node_id, {})},
                directories=self._directories,
                store=self.store if self._has_shared_store else None,
            )
            machine = self._by_id[node_id] = self._machines.machine(settings)
        return machine

    async def restart(self, node_id: int) -> None:
        """Start a broker that does not run."""
        assert node_id not in self.brokers
        await self.machine(node_id).start_broker()

    async def stop(self, node_id: int) -> None:
        """Stop a broker as SIGTERM does."""
        await self._by_id[node_id].stop_broker()

    async def kill(self, node_id: int, *, session_expires: bool = True) -> None:
        """End a broker as SIGKILL does. Without `session_expires` the store considers it alive: see `expire`."""
        await self._by_id[node_id].kill_broker(session_expires=session_expires)

    def fill_disk(self, node_id: int, path: PurePath | None = None) -> None:
        """Leave no space at or below a path of a broker's disk, by default its first log directory."""
        machine = self.machine(node_id)
        machine.fill_disk(path or machine.paths[0])

    def free_disk(self, node_id: int) -> None:
        """Give space again."""
        self.machine(node_id).free_disk()

    async def expire(self, node_id: int) -> None:
        """End the session of a broker, as the store does if it hears nothing of it."""
        await self._by_id[node_id].expire_session()

    async def close(self, *, discards_files: bool = False) -> None:
        """Stop all brokers that run, the controller last; or kill them, if nothing reads their files again."""
        for node_id in sorted(self.brokers, key=lambda node: self.services(node).controller.is_active):
            await (self.kill(node_id, session_expires=False) if discards_files else self.stop(node_id))
        for machine in self._by_id.values():
            machine.close()

    def create_task(self, node_id: int, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine as a broker's process: it ends with it."""
        return self._by_id[node_id].create_task(work)

    # ---- Access

    @property
    def clock(self) -> Clock:
        """Return the clock of the test and its clients."""
        return self._machines.clock

    @property
    def brokers(self) -> dict[int, Broker]:
        """Return the brokers that run."""
        return {
            node_id: machine.broker
            for node_id, machine in self._by_id.items()
            if machine.state == "up" and machine.broker is not None
        }

    @property
    def ports(self) -> dict[int, int]:
        """Return the port of each machine."""
        return {node_id: machine.address.port for node_id, machine in self._by_id.items()}

    @property
    def addresses(self) -> list[Address]:
        """Return the addresses of the brokers that run."""
        return [self._by_id[node_id].address for node_id in self.brokers]

    @property
    def bootstrap(self) -> str:
        """Return the addresses of the running brokers, as clients' `bootstrap.servers`."""
        return ",".join(f"{address.host}:{address.port}" for address in self.addresses)

    def paths(self, node_id: int) -> list[Path]:
        """Return the log directories of a broker."""
        return self.machine(node_id).paths

    def files(self, node_id: int) -> FileSystem:
        """Return the disk of a broker's machine."""
        return self.machine(node_id).files

    def services(self, node_id: int) -> Services:
        """Return the services of a running broker."""
        services = self._by_id[node_id].services
        assert services is not None, f"broker {node_id} is {self._by_id[node_id].state}"
        return services

    def handlers(self, node_id: int) -> BrokerHandlers:
        """Return a running broker whose handlers can be called without a socket."""
        return BrokerHandlers(self, node_id)

    @property
    def controller(self) -> int:
        """Return the node id of the controller."""
        (active,) = (node_id for node_id in self.brokers if self.services(node_id).controller.is_active)
        return active

    async def client(self, *node_ids: int) -> Cluster:
        """Connect Ottla's own client to some of the brokers, or to all."""
        seeds = [self._by_id[node_id].address for node_id in node_ids or self.brokers]
        return await Cluster.connect(seeds, options=ClientOptions(retry_s=15))

    async def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        *,
        replication_factor: int | None = None,
        configs: dict[str, str | None] | None = None,
    ) -> None:
        """Create a topic, by default with a replica on three brokers at most; returns when all brokers know it."""
        factor = replication_factor or min(len(self.brokers), 3)
        controller = self.services(self.controller).controller
        await controller.create_topic(topic, partitions=partitions, replication_factor=factor, configs=configs)
        await self.known_everywhere(topic)

    async def until(self, holds: Callable[[], object], *, seconds: float = 10) -> None:
        """Wait until a condition holds. Raises TimeoutError."""
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110 - it may depend on anything in any broker
                await asyncio.sleep(_POLL_S)

    async def known_everywhere(self, topic: str) -> None:
        """Wait until every running broker knows a topic with all its leaders."""

        def is_known() -> bool:
            for node_id in self.brokers:
                view = self.services(node_id).cluster.current.topics.get(topic)
                if view is None or any(partition.leader < 0 for partition in view.partitions):
                    return False
            return True

        await self._until_views(is_known)

    def in_sync_replicas(self) -> dict[tuple[str, int], frozenset[int]]:
        """Return the replicas of each partition that are in sync, as the first broker that runs knows them."""
        first = min(self.brokers, default=None)
        topics = {} if first is None else self.services(first).cluster.current.topics
        return {
            (topic, index): frozenset(partition.isr)
            for topic, view in topics.items()
            for index, partition in enumerate(view.partitions)
        }

    async def until_in_sync(
        self, replicas: Mapping[tuple[str, int], frozenset[int]], *, seconds: float = _IN_SYNC_S
    ) -> None:
        """Return when these replicas are in sync, as far as their brokers run; or after so many seconds."""

        def are_in_sync() -> bool:
            now, up = self.in_sync_replicas(), self.brokers.keys()
            return all(key not in now or now[key] >= expected & up for key, expected in replicas.items())

        with contextlib.suppress(TimeoutError):
            await self._until_views(are_in_sync, seconds=seconds)

    async def until_led(self, *, seconds: float = _IN_SYNC_S) -> None:
        """Return when the brokers that run know each other, and leaders of all partitions that can have one.

        Or after so many seconds.
        """

        def are_led() -> bool:
            up = self.brokers.keys()
            views = [self.services(node_id).cluster.current for node_id in up]
            return all(
                up <= view.brokers.keys()
                and all(
                    partition.leader in up or up.isdisjoint(partition.isr)
                    for topic in view.topics.values()
                    for partition in topic.partitions
                )
                for view in views
            )

        with contextlib.suppress(TimeoutError):
            await self._until_views(are_led, seconds=seconds)

    async def _until_views(self, holds: Callable[[], object], *, seconds: float = _KNOWN_S) -> None:
        """Wait until a condition holds that depends on brokers' views of the cluster alone. Raises TimeoutError."""
        for node_id in self.brokers:
            cache = self.services(node_id).cluster
            if self._followed.get(node_id) is not cache:
                self._followed[node_id] = cache
                cache.subscribe(self._view_changed)
        async with asyncio.timeout(seconds):
            while not holds():
                changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiting.append(changed)
                await changed

    def _view_changed(self, _: ClusterView, __: ClusterView) -> None:
        waiting, self._waiting = self._waiting, []
        for changed in waiting:
            if not changed.done():
                changed.set_result(None)
