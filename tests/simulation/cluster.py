"""Runs brokers, unchanged, on simulated machines: each has a process, a disk, a clock and a link to the metadata store.

A start, a stop and a recovery take virtual time and may be cut short by a fault: `Machine.state` says how far it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from ottla.broker import config
from ottla.broker.broker import Broker
from ottla.broker.context import Services
from ottla.client.addresses import Address
from ottla.client.cluster import ClientOptions
from ottla.client.cluster import Cluster as Client
from ottla.client.connection import dial_tcp
from ottla.coordination import znodes
from ottla.coordination.embedded_store import EmbeddedMetadataStore
from ottla.coordination.store import Check, Delete, Op, SessionLost
from ottla.core.errors import KafkaError
from ottla.core.ids import TopicPartition
from ottla.core.runtime import use
from ottla.records.batch_reader import read_headers
from ottla.storage.scrubbing.scrubber import Scrubber
from ottla.testing.sim_disk import Survival
from ottla.testing.sim_loop import SimLoop, SimProcess, current_process
from ottla.testing.sim_network import SimNetwork
from ottla.testing.sim_runtime import ProcessClock, SimRuntime, TimedDisk
from ottla.testing.sim_store import StoreLink
from tests.simulation.history import Batch, History, ReplicaLog, Start, StoreWrite

PORT = 9092
SESSION_TIMEOUT_S = 6.0
RESTART_S = 0.5
DATA, MORE = Path("/data"), Path("/more")
OPTIONS = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.enable": "false",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "ottla.shutdown.max.ms": "5000",
    "ottla.busy.poll.us": "0",
    "ottla.scrub.bytes.per.second": "0",
    "log.segment.bytes": "1048576",
}


class Machine:
    """One machine with a broker: what survives the broker's processes."""

    def __init__(
        self, cluster: SimCluster, node_id: int, *, sync_s: float, options: dict[str, str], directories: int = 1
    ) -> None:
        self.paths = [DATA, MORE][:directories]
        self.cluster, self.node_id, self.host = cluster, node_id, f"broker-{node_id}"
        self.loop = cluster.loop
        self.disk = TimedDisk(cluster.loop, sync_s=sync_s)
        self.link = StoreLink(
            cluster.loop, cluster.store, cluster.store_process, self.host, timeout_s=SESSION_TIMEOUT_S
        )
        self.link.on_commit = self._committed
        self.options = options
        self.wall_skew_ms = 0
        self.process: SimProcess | None = None
        self.runtime: SimRuntime | None = None
        self.broker: Broker | None = None
        self.state = "down"
        self.failure: BaseException | None = None
        self.starts = 0

    # ---- Processes

    def start(self) -> asyncio.Task[None]:
        """Start a broker; `state` becomes "up", or "failed"."""
        assert self.process is None or self.process.is_dead
        process = self.process = self.loop.process(self.host)
        process.wall_offset_ms += self.wall_skew_ms
        self.starts += 1
        self.state, self.failure = "starting", None
        return self._run(process, self._start(process))

    def _run(self, process: SimProcess, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        context = contextvars.copy_context()
        context.run(current_process.set, process)
        self.runtime = SimRuntime(self.loop, process)
        context.run(use, self.runtime)
        return self.loop.create_task(work, context=context)

    async def _start(self, process: SimProcess) -> None:
        given, _ = config.read(
            file=None,
            environment={},
            options={
                **OPTIONS,
                **self.options,
                "node.id": str(self.node_id),
                "listeners": f"PLAINTEXT://{self.host}:{PORT}",
            },
        )
        broker = Broker(
            given, self.paths, clock=ProcessClock(self.loop, process), files=self.disk, open_store=self.link.open
        )
        self.broker = broker
        try:
            await broker.start()
        except BaseException as error:
            if process.is_dead:
                raise
            self.state, self.failure = "failed", error
            self.cluster.failed_start(self, error)
            return
        if not process.is_dead:
            self.state = "up"

    def stop(self) -> None:
        """Stop the broker as SIGTERM does."""
        if self.state == "up" and self.process is not None:
            self.state = "stopping"
            self._run(self.process, self._stop())

    async def _stop(self) -> None:
        assert self.broker is not None
        assert self.process is not None
        process = self.process
        await self.broker.stop()
        if not process.is_dead:
            self._end(process)
            self.disk.process_died()

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
            self.cluster.network.power_cut(self.host)
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

        self.disk.on_failed_sync = lambda: self.cluster.store_process_call(plan)
        self.disk.fail_next_sync()

    def _stopped(self) -> None:
        """The power is off; the code that was running ends with exceptions and reaches nothing any more."""
        self.disk.on_stop = None
        process = self.process
        assert process is not None
        self.cluster.network.power_cut(self.host)
        self.loop.kill(process)
        self.cluster.store_process_call(self._finish_power_cut, process)

    def _finish_power_cut(self, process: SimProcess) -> None:
        self.disk.power_cut(self.loop.rng_for(f"disk/{self.host}"), Survival.TORN)
        self._end(process)

    def _end(self, process: SimProcess) -> None:
        self.loop.keep(self.broker)
        self.loop.kill(process)
        self.cluster.network.process_ended(process)
        self.link.process_ended()
        self.broker, self.state = None, "down"

    def restart(self) -> asyncio.Task[None]:
        """Start again after a crash."""
        self.cluster.network.power_on(self.host)
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

    def move_log(self, partition: TopicPartition) -> bool:
        """Move a log to the other directory, or cancel its move; return whether there is one to be moved."""
        services, process = self.services, self.process
        if services is None or process is None or self.runtime is None or len(self.paths) == 1:
            return False
        replicas = services.replicas
        if partition not in replicas.partitions:
            return False

        def begin() -> None:
            move, replica = replicas.log_dir_move(partition), replicas.partitions.get(partition)
            if replica is None:
                return
            here = replica.log.directory.parent
            (other,) = (path for path in self.paths if path != here)
            with contextlib.suppress(KafkaError):
                replicas.alter_log_dir(partition, str(here if move is not None else other))

        context = contextvars.copy_context()
        context.run(current_process.set, process)
        context.run(use, self.runtime)
        self.loop.call_soon(begin, context=context)
        return True

    def corrupt(self, partition: TopicPartition, how: str, number: int) -> bool:
        """Corrupt or remove files of a log; return whether there was something to corrupt."""
        for path in self.paths:
            directory = path / str(partition)
            if self.disk.is_directory(directory):
                return self._corrupt(directory, how, number)
        return False

    def _corrupt(self, directory: Path, how: str, number: int) -> bool:
        disk = self.disk
        logs = [directory / name for name in disk.names_in(directory) if name.endswith(".log")]
        closed = [path for path in logs[:-1] if disk.size_of(path)]
        if how == "lose-epochs":
            disk.remove(directory / "leader-epoch-checkpoint")
        elif how in {"lose-all", "lose-last"}:
            for path in logs if how == "lose-all" else logs[-1:]:
                disk.remove(path)
        elif not closed:
            return False
        elif how == "flip":
            path = closed[number % len(closed)]
            disk.flip_bit(path, number % (disk.size_of(path) * 8))
        elif how == "cut":
            file = disk.open(closed[number % len(closed)])
            file.truncate(max(file.size() - number % 400, 0))
        else:
            disk.remove(closed[0] if how == "lose-first" else closed[number % len(closed)])
        return True

    def scrub(self) -> None:
        """Verify all logs now, as the scrubber does over time."""
        services, process = self.services, self.process
        if services is None or process is None or self.runtime is None:
            return

        def verify() -> None:
            for directory in services.replicas.directories.opened:
                scrubber = Scrubber(directory, self.disk)
                for work in scrubber.plan():
                    scrubber.conclude(work, scrubber.verify(work, lambda _: None))

        context = contextvars.copy_context()
        context.run(current_process.set, process)
        context.run(use, self.runtime)
        self.loop.call_soon(verify, context=context)

    def moves_left(self) -> list[str]:
        """List what moves between log directories have left, and what is under way."""
        return [
            f"{path}/{name}"
            for path in self.paths
            for name in self.disk.names_in(path)
            if name.endswith(("-future", "-replaced"))
        ]

    def _committed(self, session: int, ops: Sequence[Op]) -> None:
        """Record what only a controller may write."""
        written = [op.path for op in ops if not isinstance(op, Check)]
        states = tuple(path for path in written if path.endswith("/state"))
        begins_term = znodes.CONTROLLER in written
        if states or begins_term:
            write = StoreWrite(self.loop.time(), self.node_id, session, begins_term, states)
            self.cluster.history.store_writes.append(write)

    # ---- Access

    @property
    def services(self) -> Services | None:
        """Return the services of the running broker."""
        return None if self.broker is None or self.state != "up" else self.broker._services

    def replica_logs(self, partitions: list[TopicPartition]) -> list[ReplicaLog]:
        """Read the files of replicas."""
        found = []
        services = self.services
        for partition in partitions:
            replica = None if services is None else services.replicas.partitions.get(partition)
            if replica is None or not self.disk.is_directory(replica.log.directory):
                continue
            directory = replica.log.directory
            batches = []
            for name in self.disk.names_in(directory):
                if not name.endswith(".log"):
                    continue
                file = self.disk.open(directory / name)
                for at in read_headers(file, 0, file.size()):
                    header = at.header
                    if header.base_offset >= replica.log.end_offset:
                        continue
                    batches.append(
                        Batch(
                            header.base_offset,
                            header.last_offset,
                            header.partition_leader_epoch,
                            file.read_at(at.position, header.size_bytes),
                        )
                    )
            found.append(
                ReplicaLog(self.node_id, partition, replica.log.log_start_offset, replica.log.high_watermark, batches)
            )
        return found


class SimCluster:
    """Machines with brokers, one metadata store, one network."""

    def __init__(
        self,
        loop: SimLoop,
        brokers: int,
        *,
        options: dict[str, str] | None = None,
        sync_s: float = 0.0,
        directories: int = 1,
    ) -> None:
        self.loop = loop
        self.network = SimNetwork(loop)
        self.store_process = loop.process("store")
        self.store = EmbeddedMetadataStore()
        self.history = History()
        self.machines = {
            node_id: Machine(self, node_id, sync_s=sync_s, options=options or {}, directories=directories)
            for node_id in range(1, brokers + 1)
        }
        self.is_healed = False
        self._machine_of = {machine.host: machine for machine in self.machines.values()}
        self._seen_starts: dict[tuple[TopicPartition, int], int] = {}
        self._seen_leaders: dict[tuple[TopicPartition, int, int], None] = {}
        self.on_moment: Callable[[str], object] = lambda _: None
        """Called when a leader has proposed another ISR, a broker begins to lead, or a log was truncated."""
        self._truncations: dict[tuple[TopicPartition, int], int] = {}
        loop.on_turn = self._after_turn

    # ---- Invariants

    def _after_turn(self, process: SimProcess) -> None:
        """Check the partitions of the broker whose turn it was."""
        machine = self._machine_of.get(process.host)
        if machine is None or machine.process is not process or (services := machine.services) is None:
            return
        for partition, replica in services.replicas.partitions.items():
            log = replica.log
            if not log.log_start_offset <= log.high_watermark <= replica.durable_end <= log.end_offset:
                self.problem(
                    f"I1: {partition} of node {machine.node_id} has start {log.log_start_offset}, high watermark "
                    f"{log.high_watermark}, durable end {replica.durable_end}, end {log.end_offset}"
                )
            if replica.is_serving:
                if log.log_start_offset > self._seen_starts.get((partition, machine.node_id), 0):
                    self._seen_starts[partition, machine.node_id] = log.log_start_offset
                    start = Start(self.loop.time(), machine.node_id, partition, log.log_start_offset)
                    self.history.starts.append(start)
                term = partition, replica.leader_epoch, machine.node_id
                if term not in self._seen_leaders:
                    self._seen_leaders[term] = None
                    self.history.leaders.append(term)
                    self.on_moment("term")
                state = replica.leader_state
                if state is not None and state.pending is not None:
                    self.on_moment("proposal")
            elif log.truncation_count != self._truncations.get((partition, machine.node_id), 0):
                self._truncations[partition, machine.node_id] = log.truncation_count
                self.on_moment("truncation")

    def forget_leaders(self) -> None:
        """Forget the terms: another topic has the same name now."""
        self._seen_leaders.clear()

    def problem(self, text: str) -> None:
        """Record what a run found itself."""
        line = f"{self.loop.time():.3f} s: {text}"
        if len(self.history.problems) < 50:
            self.history.problems.append(line)

    def failed_start(self, machine: Machine, error: BaseException) -> None:
        """A broker did not start. If its session was lost meanwhile, it is started again, as a supervisor does."""
        if isinstance(error, SessionLost):
            self.store_process_call(self.loop.call_later, RESTART_S, self._restart, machine)
        else:
            self.problem(f"broker {machine.node_id} did not start: {error!r}")
        process = machine.process
        assert process is not None
        machine.disk.process_died()
        self.loop.kill(process)
        self.network.process_ended(process)
        machine.link.process_ended()

    def _restart(self, machine: Machine) -> None:
        if machine.state == "failed":
            machine.restart()

    def store_process_call(self, callback: Callable[..., object], *args: object) -> None:
        """Call soon, outside of every broker."""
        context = contextvars.copy_context()
        context.run(current_process.set, self.store_process)
        self.loop.call_soon(callback, *args, context=context)

    async def depose_controller(self) -> None:
        """Delete the node of the controller, as an operator does who wants another one: its session goes on."""
        operator = self.store.session()
        if znodes.CONTROLLER in self.store.list_nodes(znodes.CONTROLLER):
            await operator.commit([Delete(znodes.CONTROLLER)])
        await operator.close()

    # ---- Access

    def states(self) -> dict[TopicPartition, znodes.PartitionState]:
        """Return the state of each partition as the metadata store has it."""
        found = {}
        for path, node in self.store.list_nodes(znodes.TOPICS).items():
            if path.endswith("/state"):
                *_, topic, _, index, _ = path.split("/")
                partition = TopicPartition(topic, int(index))
                found[partition] = znodes.decode_state(topic, int(index), node.value)
        return found

    def assignments(self) -> dict[TopicPartition, list[int]]:
        """Return the replicas of each partition of the topic as the running brokers know them."""
        found: dict[TopicPartition, list[int]] = {}
        for machine in self.machines.values():
            if machine.services is not None:
                for topic in machine.services.cluster.current.topics.values():
                    for view in topic.partitions:
                        found[TopicPartition(topic.name, view.index)] = list(view.replicas)
        return found

    def has_recovered(self, node_id: int) -> bool:
        """Return whether a broker that started without some of its records has them all again, as the store knows."""
        services = self.machines[node_id].services
        nodes = self.store.list_nodes("/")
        handled, report = nodes.get(znodes.HANDLED_BROKERS), nodes.get(znodes.replica_report_path(node_id))
        if services is None or handled is None or report is None or node_id not in services.cluster.current.brokers:
            return False
        epoch = services.cluster.current.brokers[node_id].epoch
        return (
            znodes.decode_handled_brokers(handled.value).get(node_id) == epoch
            and not znodes.decode_replica_report(node_id, report.value).suspects
            and not znodes.decode_replica_report(node_id, report.value).impaired
            and not services.replicas.context.impaired
            and all(node_id in state.isr for state in self.states().values())
        )

    def bootstrap(self) -> list[Address]:
        """Return the addresses of all brokers."""
        return [Address(machine.host, PORT) for machine in self.machines.values()]

    def client_process(self, name: str) -> contextvars.Context:
        """Return a context for the code of a client."""
        process = self.loop.process(name)
        context = contextvars.copy_context()
        context.run(current_process.set, process)
        context.run(use, SimRuntime(self.loop, process))
        return context

    async def client(self, name: str, *, retry_s: float = 30.0, request_timeout_s: float = 10.0) -> Client:
        """Connect a client; tries until a broker answers. Call in the client's process."""
        options = ClientOptions(
            client_id=name, connect_timeout_s=2.0, request_timeout_s=request_timeout_s, retry_s=retry_s
        )
        while True:
            try:
                return await Client.connect(self.bootstrap(), options=options, dial=dial_tcp)
            except Exception:  # noqa: BLE001 - no broker can be reached now
                await asyncio.sleep(0.2)

    async def until(self, holds: Any, *, seconds: float, what: str) -> bool:
        """Wait until a condition holds; a problem is recorded if it takes longer."""
        deadline = self.loop.time() + seconds
        while not holds():
            if self.loop.time() > deadline:
                self.problem(f"not within {seconds:g} s: {what}")
                return False
            await asyncio.sleep(0.05)
        return True
