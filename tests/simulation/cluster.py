"""Runs brokers, unchanged, on simulated machines (`ottla.testing.sim_machine`), and records what must hold of them."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable, Sequence
from pathlib import Path

from ottla.client.addresses import Address
from ottla.client.cluster import ClientOptions
from ottla.client.cluster import Cluster as Client
from ottla.client.connection import Security, dial_tcp
from ottla.core.errors import KafkaError
from ottla.core.ids import TopicPartition
from ottla.core.runtime import use
from ottla.metadata_store import znodes
from ottla.metadata_store.store import Check, Delete, Op, SessionLost
from ottla.records.batch_reader import read_headers
from ottla.storage.scrubbing.scrubber import Scrubber
from ottla.testing.cluster import TestCluster
from ottla.testing.machine import MachineSettings
from ottla.testing.sim_loop import SimLoop, SimProcess, current_process
from ottla.testing.sim_machine import SimMachine, SimulatedMachines
from ottla.testing.sim_runtime import SimRuntime
from tests.simulation.history import Batch, History, ReplicaLog, Start, StoreWrite

CAPACITY_BYTES = 16 << 20
RESTART_S = 0.5
DATA = Path("/data")
OPTIONS = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "ottla.shutdown.max.ms": "5000",
    "log.segment.bytes": "1048576",
}


class Machine(SimMachine):
    """One machine with a broker: what survives the broker's processes, and what may go wrong with its logs."""

    def __init__(self, settings: MachineSettings, machines: SimulatedMachines, cluster: SimCluster) -> None:
        super().__init__(settings, machines)
        self.cluster = cluster
        self.link.on_commit = self._committed

    def start_failed(self, error: BaseException) -> None:
        """Start again after a lost session, as a supervisor does; anything else is a problem."""
        self.cluster.failed_start(self, error)

    def move_log(self, partition: TopicPartition) -> bool:
        """Move a log to the other directory, or cancel its move; return whether there is one to be moved."""
        services = self.services
        if services is None or len(self.paths) == 1:
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

        self.run(self.loop.call_soon, begin)
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
        services = self.services
        if services is None:
            return

        def verify() -> None:
            for directory in services.replicas.directories.opened:
                scrubber = Scrubber(directory, self.disk)
                for work in scrubber.plan():
                    scrubber.conclude(work, scrubber.verify(work, lambda _: None))

        self.run(self.loop.call_soon, verify)

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
        self.cluster.on_commit(ops)

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


class Machines(SimulatedMachines):
    """The machines of one cluster, by node."""

    def __init__(self, cluster: SimCluster, loop: SimLoop, sync_s: float) -> None:
        super().__init__(loop=loop, sync_s=sync_s, capacity_bytes=CAPACITY_BYTES)
        self._cluster = cluster
        self.made: dict[int, Machine] = {}

    def machine(self, settings: MachineSettings) -> Machine:
        machine = self.made[settings.node_id] = Machine(settings, self, self._cluster)
        return machine


class SimCluster(TestCluster):
    """Machines with brokers whose history is recorded, and what must hold after each turn of a broker."""

    def __init__(
        self,
        loop: SimLoop,
        brokers: int,
        *,
        options: dict[str, str] | None = None,
        sync_s: float = 0.0,
        directories: int = 1,
        security: Callable[[str], Security] | None = None,
    ) -> None:
        places = Machines(self, loop, sync_s)
        super().__init__(places, options={**OPTIONS, **(options or {})}, directories=directories)
        self.loop, self.network, self.store_process = loop, places.network, places.store_process
        self.call_outside = places.call_outside
        self.history = History()
        self._security = security  # of each client
        self.machines = places.made
        for node_id in range(1, brokers + 1):
            self.machine(node_id)
        self.is_healed = False
        self.on_commit: Callable[[Sequence[Op]], object] = lambda _: None
        """Called with each commit to the store."""
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
            self.call_outside(self.loop.call_later, RESTART_S, self._restart, machine)
        else:
            self.problem(f"broker {machine.node_id} did not start: {error!r}")

    def _restart(self, machine: Machine) -> None:
        if machine.state == "failed":
            machine.restart()

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

    def seeds(self) -> list[Address]:
        """Return the addresses of all brokers, also of those that are down."""
        return [machine.address for machine in self.machines.values()]

    def client_process(self, name: str) -> contextvars.Context:
        """Return a context for the code of a client."""
        process = self.loop.process(name)
        context = contextvars.copy_context()
        context.run(current_process.set, process)
        context.run(use, SimRuntime(self.loop, process))
        return context

    async def patient_client(self, name: str, *, retry_s: float = 30.0, request_timeout_s: float = 10.0) -> Client:
        """Connect a client; tries until a broker answers. Call in the client's process."""
        options = ClientOptions(
            client_id=name,
            connect_timeout_s=2.0,
            request_timeout_s=request_timeout_s,
            retry_s=retry_s,
            security=Security() if self._security is None else self._security(name),
        )
        while True:
            try:
                return await Client.connect(self.seeds(), options=options, dial=dial_tcp)
            except Exception:  # noqa: BLE001 - no broker can be reached now
                await asyncio.sleep(0.2)

    async def holds_within(self, seconds: float, holds: Callable[[], object], what: str) -> bool:
        """Wait until a condition holds; a problem is recorded if it takes longer."""
        deadline = self.loop.time() + seconds
        while not holds():
            if self.loop.time() > deadline:
                self.problem(f"not within {seconds:g} s: {what}")
                return False
            await asyncio.sleep(0.05)
        return True
