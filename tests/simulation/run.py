"""Runs one scenario: a safety phase with faults, then everything is healed, then a liveness phase and the final read."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from ottla.client.connection import Security
from ottla.core.ids import TopicPartition
from ottla.metadata_store import znodes
from ottla.metadata_store.cluster_view import PartitionView
from ottla.replication.partition import Partition
from ottla.testing.sim_disk import Survival
from ottla.testing.sim_loop import Deadlock, SimLoop, TooLong, current_process
from tests.simulation import access, checkers
from tests.simulation.access import AccessClients
from tests.simulation.clients import Workload
from tests.simulation.cluster import Machine, SimCluster
from tests.simulation.scenario import ALL, LEADER, Fault, Scenario

TURN_S = 20e-6
HEAL_WITHIN_S = 60.0
LIMIT_S = 600.0
LAG_UNDER_LOAD = 20  # records, while producers go on
EXPECTED_ERRORS = (
    "the metadata store has confirmed nothing",
    "log directory",  # a failed fsync
    "is lost",
    "offline",
    "cannot be used any more",
    "corruption found in",  # the torn tail of a log; what it has cost is the checkers' question
    " is missing (",  # a segment that a fault has removed
)
"""Parts of the error lines that a fault of a disk or of the store may cause."""


@dataclass(slots=True)
class Result:
    """What became of one run."""

    seed: int
    violations: list[str] = field(default_factory=list)
    trace_hash: int = 0
    virtual_s: float = 0.0
    real_s: float = 0.0
    turns: int = 0
    sends: int = 0
    acknowledged: int = 0
    effects: dict[str, int] = field(default_factory=dict)
    """How many faults of each kind have taken effect."""
    timeline: list[str] = field(default_factory=list)


class Run:
    """One run in progress."""

    def __init__(self, scenario: Scenario, script: Script | None = None) -> None:
        self.scenario = scenario
        self._script = script  # in place of the schedule of faults
        self.loop = SimLoop(random.Random(f"{scenario.seed}/loop"), limit_s=LIMIT_S, turn_s=TURN_S, seed=scenario.seed)
        self.cluster = SimCluster(
            self.loop,
            scenario.brokers,
            options=_options(scenario),
            sync_s=scenario.sync_s,
            directories=scenario.directories,
            security=_security_of if scenario.is_secured else None,
        )
        self.access: AccessClients | None = None
        if scenario.is_secured:
            self.access = AccessClients(self.cluster, scenario.pause_s)
            history = self.cluster.history
            history.age_s = access.AGE_S
            self.cluster.on_commit = lambda ops: history.changes.extend(access.changes_of(self.loop.time(), ops))
        self.workload = Workload(self.cluster, scenario)
        self.effects: Counter[str] = Counter()
        self._last_view = PartitionView(0, -1, -1, (), (), -1)
        self.timeline: list[str] = []
        self.errors: list[str] = []
        self.is_healed = False
        self._armed: dict[str, list[Fault]] = {}  # faults that wait for a moment
        self.cluster.on_moment = self._moment_has_come
        self._faulty_disks: dict[int, Survival | None] = {}  # how the broker ends after its fsync has failed
        self._lossy: dict[int, None] = {}  # brokers that may not have all records again yet
        self._unverified: dict[int, None] = {}  # brokers with corruption that nothing may have found yet

    # ---- Phases

    async def main(self) -> None:
        """Run all phases."""
        for machine in self.cluster.machines.values():
            machine.link.unknown_share = self.scenario.unknown_share
            machine.link.timeout_s = self.scenario.session_s
        if self.access is not None:
            await self.loop.run_in(self.cluster.store_process, access.prepare(self.cluster.store.session()))
        for machine in self.cluster.machines.values():
            machine.start()
        machines = self.cluster.machines.values()
        await self.cluster.holds_within(10, lambda: all(m.state == "up" for m in machines), "all brokers start")
        if not await self.workload.in_process("admin", self.workload.create_topic(), seconds=20, what="create a topic"):
            return
        for fault in self.scenario.faults:
            self.loop.call_at(fault.time_s, self._arm, fault)
        self.workload.start()
        if self.access is not None and self._script is None:
            self.access.start()
        if self._script is not None:
            await self._script(self)
        await asyncio.sleep(max(self.scenario.duration_s - self.loop.time(), 0))
        self.heal()
        if not await self.cluster.holds_within(
            HEAL_WITHIN_S, lambda: self.is_whole(LAG_UNDER_LOAD), "full ISR, no lag after healing"
        ):
            self._describe()
        self.note("whole")
        await self.workload.stop()
        if self.access is not None:
            self.access.stop()
        self.note("clients have ended")
        if not await self.cluster.holds_within(HEAL_WITHIN_S, self.is_whole, "no lag after the clients' end"):
            self._describe()
        if self.scenario.directories > 1 and not await self.cluster.holds_within(
            HEAL_WITHIN_S, lambda: not any(machine.moves_left() for machine in machines), "no move left"
        ):
            self.note(f"left: {[machine.moves_left() for machine in machines]}")
            self._describe()
        await self.workload.in_process("final", self.workload.read_all(), seconds=60, what="the final read")
        self.cluster.history.unclean = frozenset(
            partition for partition, state in self.cluster.states().items() if state.last_unclean_epoch >= 0
        )
        for machine in machines:
            self.cluster.history.replicas += machine.replica_logs(self.workload.partitions)

    def heal(self) -> None:
        """End all faults."""
        self.is_healed = True
        self.note("heal")
        self.cluster.network.heal()
        self.cluster.network.options.delay_s = 0.0005
        for machine in self.cluster.machines.values():
            machine.resume()
            machine.disk.cancel_stop()
            machine.link.unknown_share = 0.0
            machine.link.release()
            if machine.node_id in self._faulty_disks:
                self._end_faulty_disk(machine)
        self.loop.create_task(self._keep_up())
        self._verify()

    async def _keep_up(self) -> None:
        """Start brokers that are down; also those that were stopping when all was healed."""
        while True:
            for machine in self.cluster.machines.values():
                if machine.state in {"down", "failed"}:
                    self.note(f"start broker {machine.node_id}")
                    machine.restart()
            await asyncio.sleep(0.5)

    def is_whole(self, lag: int = 0) -> bool:
        """Whether every partition has a leader, its full ISR, and replicas whose ends differ by at most `lag`."""
        machines = self.cluster.machines
        if any(machine.services is None for machine in machines.values()) or self._unverified:
            return False
        offsets: dict[TopicPartition, list[int]] = {tp: [] for tp in self.workload.partitions}
        for machine in machines.values():
            services = machine.services
            assert services is not None
            current = services.cluster.current
            if "web" not in current.topics or len(current.brokers) != len(machines):
                return False
            for topic in current.topics.values():
                for view in topic.partitions:
                    if view.leader < 0 or set(view.isr) != set(view.replicas) or view.adding or view.removing:
                        return False
            if services.replicas.context.impaired:
                return False
            for tp, replica in services.replicas.partitions.items():
                offsets.setdefault(tp, []).extend((replica.log.end_offset, replica.log.high_watermark))
        return all(found and max(found) - min(found) <= lag for found in offsets.values())

    def _describe(self) -> None:
        """Note the state of each broker and each partition."""
        for machine in self.cluster.machines.values():
            services = machine.services
            self.note(f"broker {machine.node_id} is {machine.state}, failure {machine.failure!r}")
            if services is None:
                continue
            view = services.cluster.current
            self.note(f"  knows brokers {sorted(view.brokers)}, controller {view.controller_id}")
            for name in sorted(view.topics):
                for each in view.topics[name].partitions:
                    replica = services.replicas.partitions.get(TopicPartition(name, each.index))
                    self.note(
                        f"  {name}-{each.index}: leader {each.leader} epoch {each.leader_epoch} isr {each.isr} "
                        f"version {each.partition_epoch}"
                        + ("" if replica is None else f", log {replica.log.high_watermark}..{replica.log.end_offset}")
                    )

    # ---- Faults

    def note(self, text: str) -> None:
        """Add a line to the time line."""
        self.timeline.append(f"{self.loop.time():8.3f} s  {text}")

    # ---- For scripts

    def view(self, index: int = 0) -> PartitionView:
        """Return the newest state of a partition that a running broker knows, or that the last one knew."""
        states = [
            services.cluster.current.topics["web"].partitions[index]
            for machine in self.cluster.machines.values()
            if (services := machine.services) is not None and "web" in services.cluster.current.topics
        ]
        if states:
            self._last_view = max(states, key=lambda state: state.partition_epoch)
        return self._last_view

    async def until(self, holds: Callable[[PartitionView], bool], what: str, *, seconds: float = 30.0) -> None:
        """Wait for a state of the first partition. Raises AssertionError: the script did not do what it claims."""
        deadline = self.loop.time() + seconds
        while not holds(self.view()):
            if self.loop.time() > deadline:
                self._describe()
                raise AssertionError(f"not within {seconds:g} s: {what}; {self.view()}")
            await asyncio.sleep(0.01)
        self.note(what)

    async def kill_leader(self) -> Machine:
        """Kill the leader of the first partition."""
        machine = self.cluster.machines[self.view().leader]
        machine.kill()
        self.note(f"killed broker {machine.node_id}, the leader")
        return machine

    def roles(self) -> list[Machine]:
        """Return the controller's broker and then the others."""
        machines = self.cluster.machines.values()
        active = [each for each in machines if each.services is not None and each.services.controller.is_active]
        assert len(active) == 1, active
        return [*active, *(each for each in machines if each is not active[0])]

    async def lead(self, *order: Machine) -> None:
        """Let the first of all replicas lead the first partition; its assignment gets this order."""
        partition = self.workload.partitions[0]
        nodes = [each.node_id for each in order]
        move, what = self.workload.move(partition, nodes), f"broker {nodes[0]} is to lead"
        assert await self.workload.in_process("admin", move, seconds=20, what=what)
        await self.until(lambda view: list(view.replicas) == nodes and nodes[0] in view.isr, what)
        elect = self.workload.elect_preferred(partition)
        assert await self.workload.in_process("admin", elect, seconds=20, what=what)
        await self.until(lambda view: view.leader == nodes[0], f"broker {nodes[0]} leads")

    def replica(self, machine: Machine) -> Partition:
        """Return a broker's replica of the first partition."""
        assert machine.services is not None
        return machine.services.replicas.partitions[self.workload.partitions[0]]

    async def moment(self, has_come: Callable[[], bool], what: str, *, seconds: float = 10.0) -> None:
        """Wait for a moment that may be short. Raises AssertionError."""
        deadline = self.loop.time() + seconds
        while not has_come():
            assert self.loop.time() < deadline, f"not within {seconds:g} s: {what}"
            await asyncio.sleep(0.00005)
        self.note(what)

    def stored_isr(self) -> tuple[int, ...]:
        """Return the ISR of the first partition as the metadata store has it."""
        topic, index = self.workload.partitions[0]
        return znodes.decode_state(
            topic, index, self.cluster.store.nodes[znodes.state_path(topic, index)].node.value
        ).isr

    def cut(self, *machines: Machine) -> None:
        """Cut machines off from each other, both ways."""
        for one, other in itertools.permutations(machines, 2):
            self.cluster.network.block(one.host, other.host)

    def cut_clients(self, machine: Machine) -> None:
        """Let no client receive anything from a machine."""
        for host in self.loop.hosts():
            if not host.startswith("broker-"):
                self.cluster.network.block(machine.host, host)

    def _arm(self, fault: Fault) -> None:
        """Begin a fault, or have it wait for its moment."""
        if fault.when:
            self._armed.setdefault(fault.when, []).append(fault)
        else:
            self._begin(fault)

    def _moment_has_come(self, what: str) -> None:
        for fault in self._armed.pop(what, ()):
            self.loop.call_later(fault.after_s, self._begin, fault)

    def _begin(self, fault: Fault) -> None:
        if self.is_healed:
            return
        nodes = self._nodes(fault)
        effective = [node for node in nodes if self._apply(fault, self.cluster.machines[node])]
        if effective:
            self.effects[fault.kind] += 1
            self.note(f"{fault}: {effective}")
            self.loop.call_later(fault.for_s, self._end, fault, effective)

    def _nodes(self, fault: Fault) -> list[int]:
        if fault.node == ALL:
            return list(self.cluster.machines)
        if fault.node > 0:
            return [fault.node]
        for machine in self.cluster.machines.values():
            if (services := machine.services) is None:
                continue
            first = services.replicas.partitions.get(self.workload.partitions[0])
            is_leader = first is not None and first.is_serving
            if is_leader if fault.node == LEADER else services.controller.is_active:
                return [machine.node_id]
        return [1]

    def _apply(self, fault: Fault, machine: Machine) -> bool:
        network, loop = self.cluster.network, self.loop
        other = self._other(fault, machine)
        is_up = machine.process is not None and not machine.process.is_dead
        match fault.kind:
            case "kill" if self.scenario.is_page_cache:
                return self._lose(machine, None)
            case "power-cut" if self.scenario.is_page_cache:
                return self._lose(machine, Survival(fault.other or "torn"))
            case "wipe":
                return self._lose(machine, Survival.NOTHING)
            case "corrupt" | "corrupt-at-rest":
                return self._corrupt(fault, machine)
            case "kill":
                return machine.kill()
            case "power-cut" | "power-cut-all":
                return machine.power_cut(Survival(fault.other or "torn"))
            case "power-cut-at-io":
                if is_up:
                    machine.plan_power_cut(int(fault.other))
                return is_up
            case "stop":
                machine.stop()
                return is_up
            case "pause":
                machine.pause()
                return is_up
            case "reset":
                return network.reset_all(machine.host) > 0
            case "clock":
                machine.skew_clock(int(fault.other))
                return True
            case "cut-clients":
                for host in self._client_hosts():
                    network.block(machine.host, host)
                return is_up
            case "cut-from":
                network.block(machine.host, other)
                return is_up
            case "cut-to":
                network.block(other, machine.host)
                return is_up
            case "cut-both":
                network.block(machine.host, other)
                network.block(other, machine.host)
                return is_up
            case "hold-feed":
                if machine.state == "up":
                    machine.link.hold()
                return machine.state == "up"
            case "depose":
                if fault.other and machine.state == "up":
                    machine.link.hold()
                loop.run_in(self.cluster.store_process, self.cluster.depose_controller())
                return True
            case "elect":
                self._rotate(fault, 1)
                return True
            case "cut-store" | "outage":
                machine.link.cut()
                return is_up
            case "expire":
                loop.create_task(machine.link.expire())
                return is_up
            case "failed-sync":
                if machine.state != "up" or machine.node_id in self._faulty_disks or self._lossy:
                    return False
                rng = loop.rng_for("failed-sync")
                survival = rng.choice((Survival.LOST, None))  # None: the process alone is started again
                machine.fail_next_sync(rng.random() * 0.05, survival)
                self._faulty_disks[machine.node_id] = survival
                return True
            case "slow":
                network.options.delay_s = 0.02
                return True
            case "gap":
                machine.link.cut_with_gap()
                return is_up
            case "reassign":
                index, _, replicas = fault.other.partition(":")
                self.workload.reassign(int(index), [int(each) for each in replicas.split(",")])
                return True
            case "move-log":
                return machine.move_log(self.workload.partitions[int(fault.other) % self.scenario.partitions])
        raise AssertionError(f"no fault is called {fault.kind!r}")

    def _lose(self, machine: Machine, survival: Survival | None) -> bool:
        """End a broker so that it may lack records that count, unless another one lacks some yet.

        Two replicas at least have each record that counts, in the ISR or among the eligible leaders, if min ISR is 2.
        """
        node = machine.node_id
        self._lossy = {each: None for each in self._lossy if not self.cluster.has_recovered(each)}
        if self.scenario.min_isr < 2 or (self._lossy.keys() | self._faulty_disks.keys()) - {node}:
            return False
        if not (machine.kill() if survival is None else machine.power_cut(survival)):
            return False
        self._lossy[node] = None
        return True

    def _corrupt(self, fault: Fault, machine: Machine) -> bool:
        """Corrupt a log of a broker that runs or was killed, unless another one lacks records yet."""
        node = machine.node_id
        self._lossy = {
            each: None for each in self._lossy if each in self._unverified or not self.cluster.has_recovered(each)
        }
        if self._lossy or self._faulty_disks or machine.state != "up" or not self._are_all_in_sync():
            return False
        index, how, number = fault.other.split(":")
        if fault.kind == "corrupt-at-rest":
            machine.kill()
        elif how in {"lose-all", "lose-last"}:
            how = "lose-first"  # a partition without its newest segment is offline until a restart
        self._lossy[node] = self._unverified[node] = None
        machine.corrupt(self.workload.partitions[int(index)], how, int(number))
        return True

    def _are_all_in_sync(self) -> bool:
        states = self.cluster.states().values()
        return all(len(state.isr) == self.scenario.replication for state in states)

    def _verify(self) -> None:
        """Have the brokers find the corruption that they were given."""
        for node in tuple(self._unverified):
            machine = self.cluster.machines[node]
            if machine.services is not None and machine.services.replicas.partitions:
                machine.scrub()
                self.loop.call_later(0.1, self._unverified.pop, node, None)
        if self._unverified:
            self.loop.call_later(0.5, self._verify)

    def _end(self, fault: Fault, nodes: list[int]) -> None:
        if self.is_healed:
            return
        network = self.cluster.network
        for node in nodes:
            machine = self.cluster.machines[node]
            other = self._other(fault, machine)
            match fault.kind:
                case "kill" | "power-cut" | "power-cut-all" | "power-cut-at-io" | "stop" | "wipe":
                    machine.disk.cancel_stop()
                    if machine.state in {"down", "failed"}:
                        self.note(f"start broker {node}")
                        machine.restart()
                case "corrupt" | "corrupt-at-rest":
                    if machine.state in {"down", "failed"}:
                        machine.restart()
                    self._verify()
                case "pause":
                    machine.resume()
                case "clock":
                    machine.skew_clock(-int(fault.other))
                case "cut-clients":
                    for host in self._client_hosts():
                        network.unblock(machine.host, host)
                case "cut-from":
                    network.unblock(machine.host, other)
                case "cut-to":
                    network.unblock(other, machine.host)
                case "cut-both":
                    network.unblock(machine.host, other)
                    network.unblock(other, machine.host)
                case "cut-store" | "outage" | "gap":
                    machine.link.join()
                case "hold-feed" | "depose":
                    machine.link.release()
                case "elect":
                    self._rotate(fault, -1)
                case "failed-sync":
                    self._end_faulty_disk(machine)
                    if machine.state in {"down", "failed"}:
                        machine.restart()
                case "slow":
                    network.options.delay_s = 0.0005

    def _rotate(self, fault: Fault, sign: int) -> None:
        """Let another replica lead a partition, which moves no records; and the former one again."""
        index, _, steps = fault.other.partition(":")
        replicas = self.cluster.assignments().get(self.workload.partitions[int(index)])
        if not replicas:
            return  # no broker runs
        by = sign * int(steps) % len(replicas)
        self.workload.elect(int(index), [*replicas[by:], *replicas[:by]])

    def _other(self, fault: Fault, machine: Machine) -> str:
        """Return the other host of a cut: not the machine itself, which a role may have chosen."""
        if fault.other != machine.host:
            return fault.other
        return f"broker-{machine.node_id % self.scenario.brokers + 1}"

    def _end_faulty_disk(self, machine: Machine) -> None:
        """Restart the machine of a broker without a log directory, or its process alone."""
        machine.disk.stop_refusing()
        if machine.node_id not in self._faulty_disks:
            return
        survival = self._faulty_disks.pop(machine.node_id)
        if survival is None:
            machine.kill()
        else:
            machine.power_cut(survival)

    def _client_hosts(self) -> list[str]:
        scenario = self.scenario
        return [
            *(f"producer-{number}" for number in range(1, scenario.producers + 1)),
            *(f"consumer-{number}" for number in range(1, scenario.consumers + 1)),
        ]


def _security_of(client: str) -> Security:
    return access.security(access.ADMIN if client in {"admin", "final"} else access.CLIENT)


def _options(scenario: Scenario) -> dict[str, str]:
    factor = str(scenario.replication)
    return {
        **(access.OPTIONS if scenario.is_secured else {}),
        "default.replication.factor": factor,
        "offsets.topic.replication.factor": factor,
        "transaction.state.log.replication.factor": factor,
        "min.insync.replicas": str(scenario.min_isr),
        "transaction.state.log.min.isr": str(scenario.min_isr),
        "replica.lag.time.max.ms": str(round(scenario.lag_s * 1000)),
        **scenario.options,
    }


class _Errors(logging.Handler):
    """Collects the error lines of brokers."""

    def __init__(self, run: Run) -> None:
        super().__init__(logging.ERROR)
        self._run = run

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        process = current_process.get()
        if process.is_dead or any(part in text for part in EXPECTED_ERRORS):
            return
        cause = f": {record.exc_info[1]!r}" if record.exc_info else ""
        self._run.cluster.problem(f"{process} logged: {text}{cause}")


Script = Callable[[Run], Awaitable[None]]


def run(scenario: Scenario, script: Script | None = None) -> Result:
    """Run a scenario, or a script in place of its faults, and check its history."""
    began = time.perf_counter()
    a_run = Run(scenario, script)
    history = a_run.cluster.history
    handler = _Errors(a_run)
    logging.getLogger("ottla").addHandler(handler)
    try:
        with _virtual_time(a_run.loop):
            a_run.loop.run_until_complete(a_run.main())
    except (Deadlock, TooLong) as error:
        history.problems.append(str(error))
    finally:
        logging.getLogger("ottla").removeHandler(handler)
    for each in a_run.loop.unseen:
        history.problems.append(f"{each.get('message')}: {each.get('exception')!r} {each.get('future')}")
    result = Result(scenario.seed)
    result.violations = checkers.violations(history)
    result.trace_hash, result.virtual_s, result.turns = a_run.loop.trace_hash, a_run.loop.time(), a_run.loop.turns
    result.real_s = time.perf_counter() - began
    result.sends = len(history.sends)
    result.acknowledged = sum(1 for _ in history.acknowledged())
    result.effects, result.timeline = dict(a_run.effects), a_run.timeline
    if not result.acknowledged and not result.violations:
        result.violations.append("run: not one record was acknowledged, so it proves nothing")
    return result


class _virtual_time:  # noqa: N801 - a context manager
    """The time and the randomness of the operating system are not there: what still uses them is found, or virtual."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._before: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> None:
        import os
        import threading

        loop = self._loop
        self._put(time, "time", lambda: 1_700_000_000 + loop.time())
        self._put(time, "time_ns", lambda: int((1_700_000_000 + loop.time()) * 1e9))
        self._put(time, "monotonic", loop.time)
        self._put(uuid, "uuid4", _forbidden("uuid.uuid4"))
        self._put(os, "urandom", _forbidden("os.urandom"))
        self._put(threading.Thread, "start", _forbidden("threading.Thread.start"))

    def _put(self, owner: Any, name: str, value: Any) -> None:
        self._before.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def __exit__(self, *_: object) -> None:
        for owner, name, value in self._before:
            setattr(owner, name, value)


def _forbidden(name: str) -> Any:
    def call(*_: object, **__: object) -> None:
        raise AssertionError(f"{name} was called in a simulation: use core/runtime.py")

    return call
