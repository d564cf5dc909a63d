"""Offers brokers to a test, as one object: `with kafka(topics={"orders": 4}) as k:` and any client of `k.bootstrap`.

The brokers are those of `ottla server`, unchanged, on sockets of this machine; only their disks and their clock belong
to the test. They run on a loop in a thread (thread.py), which each method here asks.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from ottla.testing.cluster import TestCluster
from ottla.testing.kit.assertions.lookups import topics_of
from ottla.testing.kit.assertions.producing import Data, Headers, Produce, ProducerRecord, RecordMetadata
from ottla.testing.kit.assertions.waiting import Observations, Wait, observed
from ottla.testing.kit.data import StoreOnDisk, check_layout
from ottla.testing.kit.faults.cluster import expire, fence, move_leader
from ottla.testing.kit.faults.disk import Disks
from ottla.testing.kit.faults.fault import Fault, RequestView, Selection, selection_of
from ottla.testing.kit.faults.history import ClientRequest, History
from ottla.testing.kit.faults.names import api_named, error_named
from ottla.testing.kit.faults.network import NetworkPartition
from ottla.testing.kit.faults.requests import Answering, Delaying, Failing, Losing
from ottla.testing.kit.faults.stage import FaultStage
from ottla.testing.kit.log import CapturedLog
from ottla.testing.kit.loop import LoopClock
from ottla.testing.kit.options import check_options, options_of
from ottla.testing.kit.thread import LoopThread
from ottla.testing.real_machine import RealMachines

if TYPE_CHECKING:  # imported when a test asks: they import all coordinators
    from ottla.testing.kit.assertions.groups import Group
    from ottla.testing.kit.assertions.topics import Topic
    from ottla.testing.kit.assertions.transactions import Transaction

T = TypeVar("T")

Topics = Mapping[str, int] | Iterable[str]
"""Topics by name with their partitions, or names of topics with one."""


class Kafka:
    """A cluster of brokers in a thread of this process. Made by `kafka`; usable by any number of threads.

    `with` and `async with` start and stop it; so do `start` and `stop`. Methods return when what they ask for is done.
    """

    def __init__(
        self, *, topics: Topics, brokers: int, options: Mapping[str, str], data: Path | None, port: int, history: bool
    ) -> None:
        self._log: CapturedLog | None = None  # first: a report of a failed test asks also a refused object for it
        if brokers < 1:
            raise ValueError(f"brokers={brokers}: there has to be at least one")
        self._topics = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, 1)
        check_options(options)
        if data is not None:
            check_layout(data, brokers)
        self._brokers, self._options, self._data = brokers, options, data
        self._store: StoreOnDisk | None = None
        self._thread: LoopThread | None = None
        self._cluster: TestCluster | None = None
        self._history = History() if history else None
        self._stage = FaultStage(self._history)
        self.disk = Disks(self._call, self._call_if_running)
        self._produce = Produce()
        self._ports: Mapping[int, int] = (
            {node_id: port + node_id - 1 for node_id in range(1, brokers + 1)} if port else {}
        )

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
        machines = RealMachines(self._data, clock=LoopClock(self._thread.loop), stage=self._stage, ports=self._ports)
        self._cluster = cluster = TestCluster(
            machines,
            options={**options_of(self._brokers), **self._options},
            has_shared_store=self._brokers > 1,
            store=None if self._store is None else self._store.store,
        )
        self._thread.more_sockets = machines.reserved_descriptors
        await cluster.start(self._brokers, topics=self._topics)
        if self._data is not None:
            await cluster.until_led()  # the topics that are there already

    def stop(self) -> None:
        """Stop the brokers and give back all they hold; files in memory are gone. A second call has no effect."""
        if self._thread is None:
            return
        self._stop()
        if gc.isenabled():
            gc.collect(1)  # brokers are cycles: old ones would make collections of all objects of the process

    def _stop(self) -> None:
        thread, self._thread = self._thread, None
        cluster, self._cluster = self._cluster, None
        store, self._store = self._store, None
        assert thread is not None
        try:
            if thread.is_usable:
                thread.call(self._close(cluster, store))
        finally:
            thread.stop()
            self._stage.history = None  # brokers are cycles of objects, which must not keep what this object still has
            if self._log is not None:
                self._log.end()

    async def _close(self, cluster: TestCluster | None, store: StoreOnDisk | None) -> None:
        await self._heal_all()  # a broker that stops would wait for what waits
        try:
            if cluster is not None:
                await cluster.close(discards_files=self._data is None)
        finally:
            if store is not None:
                await store.close()

    def reset(self) -> None:
        """Begin again with the topics of the start, and nothing else; the addresses stay. Only for files in memory."""
        if self._data is not None:
            raise ValueError(f"the files in {self._data} stay: begin with an empty directory instead")
        ports = self._running.ports
        self.stop()
        self.clear_faults()
        self._ports, self._produce = ports, Produce()
        self._history = None if self._history is None else History()
        self._stage = FaultStage(self._history)
        self.start()

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
    def brokers(self) -> dict[int, str]:
        """Return the addresses of the brokers that run, by their node ids."""
        cluster = self._running
        return {
            node_id: f"{each.host}:{each.port}"
            for node_id, each in zip(cluster.brokers, cluster.addresses, strict=True)
        }

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

    def _call_if_running(self, work: Callable[[TestCluster], Coroutine[Any, Any, None]]) -> None:
        if self._cluster is not None:
            self._call(work)

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

    def topic(self, name: str) -> Topic:
        """Return a topic to read: its records, offsets, replicas and settings."""
        from ottla.testing.kit.assertions.topics import Topic

        return Topic(name, self._call)

    def topics(self) -> list[str]:
        """Return the names of the topics, without Kafka's internal ones."""

        async def read(cluster: TestCluster) -> list[str]:
            return list(topics_of(cluster))

        return observed("k.topics()", lambda: self._call(read))

    def produce(
        self,
        topic: str,
        value: Data,
        key: Data = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Append a record to a topic that exists; returns where it is, once it is on all in-sync replicas.

        Its partition is the one that Kafka's clients choose for the key. No client takes part, so no fault applies.
        """
        record = ProducerRecord(value, key, partition, headers, timestamp_ms)
        return self.produce_many(topic, [record])[0]

    def produce_many(self, topic: str, records: Iterable[ProducerRecord | Data]) -> tuple[RecordMetadata, ...]:
        """Append records, or values without a key; returns where they are, in their order."""
        all_records = [record if isinstance(record, ProducerRecord) else ProducerRecord(record) for record in records]
        return self._call(lambda cluster: self._produce.append(cluster, topic, all_records))

    # ---- Groups and transactions

    def group(self, group_id: str) -> Group:
        """Return a group of any type to read: its state, members, offsets and lag."""
        from ottla.testing.kit.assertions.groups import Group

        return Group(group_id, self._call)

    def groups(self) -> list[str]:
        """Return the ids of all groups."""
        from ottla.testing.kit.assertions.groups import group_types

        return observed("k.groups()", lambda: list(self._call(group_types)))

    def transactions(self) -> tuple[Transaction, ...]:
        """Return all transactional ids with their last transactions."""
        from ottla.testing.kit.assertions.transactions import list_transactions

        return observed("k.transactions()", lambda: self._call(list_transactions))

    # ---- Waiting

    def wait_until(self, condition: Callable[[], T], timeout: float = 10, message: str = "") -> T:
        """Wait until a condition is true and return its value. Raises AssertionError with what was there instead.

        `timeout` is in seconds of the test, not of the brokers. What does not exist yet, and an assertion of the
        condition that fails, are waited for too.
        """
        __tracebackhide__ = True
        return Wait(timeout, message, self._describe).run(condition)

    @overload
    async def wait_until_async(
        self,
        condition: Callable[[], Awaitable[T]],
        timeout: float = ...,  # noqa: ASYNC109
        message: str = ...,
    ) -> T: ...

    @overload
    async def wait_until_async(self, condition: Callable[[], T], timeout: float = ..., message: str = ...) -> T: ...  # noqa: ASYNC109

    async def wait_until_async(self, condition: Callable[[], Any], timeout: float = 10, message: str = "") -> Any:  # noqa: ASYNC109 - the failure says more than a TimeoutError
        """Wait as `wait_until` does, while the loop of the test goes on. The condition may be a coroutine function."""
        __tracebackhide__ = True
        return await Wait(timeout, message, self._describe).run_async(condition)

    def _describe(self, notes: Observations) -> list[str]:
        """Describe the groups and topics that a condition asked about, as they are now."""
        from ottla.testing.kit.assertions.descriptions import describe

        return [] if self._cluster is None else self._call(lambda cluster: describe(cluster, notes))

    # ---- Brokers

    def down(self, broker: int = 1, *, killed: bool = False) -> None:
        """Stop a broker as SIGTERM does, or as SIGKILL if `killed`; its disk and its port stay. Others lead then."""
        if broker not in self._running.brokers:
            raise ValueError(f"broker {broker} does not run; there are {sorted(self._running.ports)}")

        async def end(cluster: TestCluster) -> None:
            await (cluster.kill(broker) if killed else cluster.stop(broker))
            await cluster.until_led()

        self._call(end)

    def up(self, broker: int = 1) -> None:
        """Start a broker that is down, with its disk, on its port; returns when all brokers know it."""
        if broker in self._running.brokers or broker not in self._running.ports:
            raise ValueError(f"broker {broker} is not down; there are {sorted(self._running.ports)}")

        async def begin(cluster: TestCluster) -> None:
            await cluster.restart(broker)
            await cluster.until_led()

        self._call(begin)

    # ---- Faults of requests

    def fail(self, api: str, error: str, *, times: int | None = None, **selected: Any) -> Fault:
        """Answer requests by an error, by Kafka's name, and do not handle them: the first `times` ones, or all.

        With `topic` and `partition` only these fail, and the rest of a request is handled. `client_id`, `broker` and
        `where`, a condition that gets a `RequestView`, choose requests; so they do in the other faults of requests.
        Requests of other brokers are hit with `between_brokers=True`. Raises ValueError for what cannot be.
        """
        code, selection = error_named(error), selection_of(api, **selected)
        return self._stage.add(lambda end: Failing(code, selection, times=times, end=end))

    def delay(
        self, api: str | None = None, *, ms: float, handled: bool = True, times: int | None = None, **selected: Any
    ) -> Fault:
        """Send responses later by the brokers' time, which `advance` moves; without `handled` handle them later."""
        selection = selection_of(api, **selected)
        return self._stage.add(lambda end: Delaying(ms / 1000, selection, handled=handled, times=times, end=end))

    def drop(self, api: str | None = None, *, handled: bool = True, times: int | None = None, **selected: Any) -> Fault:
        """Send no response; without `handled` the request is not handled either. The connection waits for ever."""
        selection = selection_of(api, **selected)
        return self._stage.add(lambda end: Losing(selection, handled=handled, closes=False, times=times, end=end))

    def cut(self, api: str | None = None, *, handled: bool = True, times: int | None = None, **selected: Any) -> Fault:
        """Close connections now: all, those of a client id, those to a broker. With an API: in place of responses."""
        selection = selection_of(api, **selected)
        if api is not None:
            return self._stage.add(lambda end: Losing(selection, handled=handled, closes=True, times=times, end=end))
        return Fault("cut connections", count=self._call(lambda _: self._cut(selection)))

    async def _cut(self, selection: Selection) -> int:
        return self._stage.network.close(selection.is_of_connection)

    def answer(
        self, api: str, with_: Callable[[RequestView], Any], *, times: int | None = None, **selected: Any
    ) -> Fault:
        """Answer requests by a function: it returns a dict of the response's fields, or None to let one through.

        It runs on the brokers' loop, where no method of this object can be called. What it raises ends the fault, and
        is raised by `wait` and at the end of a `with`.
        """
        selection = selection_of(api, **selected)
        return self._stage.add(lambda end: Answering(with_, selection, times=times, end=end))

    def clear_faults(self) -> None:
        """End all faults: of requests, of the network, and of disks."""
        for fault in (*self._stage.faults, *self.disk.faults):
            fault.remove()

    def requests(
        self, api: str | None = None, *, client_id: str | None = None, broker: int | None = None
    ) -> list[ClientRequest]:
        """Return the requests of clients in the order in which they came, the last 10,000 at most; see history.py."""
        if self._history is None:
            raise RuntimeError("requests are not recorded: history=False")
        return self._history.requests(None if api is None else api_named(api), client_id, broker)

    @property
    def requests_dropped(self) -> int:
        """Return how many requests are not in `requests` any more."""
        return 0 if self._history is None else self._history.dropped

    # ---- Faults of the cluster

    def partition_network(self, *sides: Collection[int | str]) -> Fault:
        """Let brokers, by node id, not reach those of another side; clients are in a side by their client id."""
        partition = NetworkPartition(sides, end=lambda fault: self._call_if_running(lambda _: self._heal(fault)))
        self._call(lambda _: self._divide(partition))
        return partition

    async def _divide(self, partition: NetworkPartition) -> None:
        self._stage.network.divide(partition)

    async def _heal(self, partition: Fault) -> None:
        self._stage.network.heal(partition)

    def heal_network(self) -> None:
        """Let all reach one another again."""
        self._call_if_running(lambda _: self._heal_all())

    async def _heal_all(self) -> None:
        for partition in self._stage.network.partitions:
            self._stage.network.heal(partition)

    def move_leader(self, topic: str, partition: int = 0, *, to: int) -> Fault:
        """Let another replica lead a partition; returns when all brokers know it."""
        self._call(lambda cluster: move_leader(cluster, topic, partition, to))
        return Fault(f"leader of {topic}-{partition} moved to broker {to}", count=1)

    def expire(self, group: str, member: str | None = None) -> Fault:
        """End the sessions of a group's members, or of one, by its member id or client id. `count`: how many."""
        return Fault(f"sessions of {group} expired", count=self._call(lambda cluster: expire(cluster, group, member)))

    def fence(self, transactional_id: str) -> Fault:
        """Fence the producer of a transactional id, as another one does that is initialized with it."""
        self._call(lambda cluster: fence(cluster, transactional_id))
        return Fault(f"{transactional_id} fenced", count=1)

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

        async def delete_expired() -> None:
            for broker in tuple(self._running.brokers.values()):
                await broker.delete_expired()

        await self._thread.loop.advance(seconds, delete_expired)
        await self._running.until_in_sync(in_sync)

    def now_ms(self) -> int:
        """Return the brokers' time of day, in milliseconds since 1970: the system's, and what `advance` has added."""
        return self._running.clock.wall_ms()


def kafka(
    *,
    topics: Topics = (),
    brokers: int = 1,
    options: Mapping[str, str] | None = None,
    data: Path | str | None = None,
    port: int = 0,
    history: bool = True,
) -> Kafka:
    """Return brokers for a test, not started yet.

    `options` are settings of brokers, by Kafka's names. Files are in memory, or below the directory `data`, where they
    stay. `port` is the first broker's, the others have the next ones; 0 picks free ones. Without `history` the
    requests of clients are not recorded. Raises ValueError for what cannot be.
    """
    directory = None if data is None else Path(data)
    return Kafka(topics=topics, brokers=brokers, options=options or {}, data=directory, port=port, history=history)
