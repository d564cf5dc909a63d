"""Each alert of packaging/prometheus fires on its fault and on no other, by Prometheus and by what brokers serve then.

The faults happen to a simulated cluster. Its pages of half an hour become the series of promtool.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ottla.broker.sign_ins import SignIns
from ottla.client.cluster import Cluster
from ottla.client.errors import CannotConnect
from ottla.client.group_member import GroupMember
from ottla.client.groups import commit_offsets
from ottla.client.producer import Producer
from ottla.core.errors import KafkaError
from ottla.core.ids import TopicPartition
from ottla.metrics.probe import TOPIC as PROBE_TOPIC
from ottla.metrics.reader import MetricsReader
from ottla.metrics.request_times import RequestTimes
from ottla.testing.cluster import TestCluster
from ottla.testing.sim_machine import SimMachine, SimulatedMachines
from tests.support.prometheus import RULES, Minute, firing_alerts
from tests.support.scrapes import scrape
from tests.support.storage import batch

pytestmark = [pytest.mark.simulated_time, pytest.mark.external, pytest.mark.slow]

MINUTES_BEFORE, MINUTES_AFTER = 5, 30
ALERTS = frozenset(re.findall(r"- alert: (\w+)", RULES.read_text(encoding="utf-8")))


class Scene:
    """A cluster under a load, with what reads its metrics."""

    def __init__(self, cluster: TestCluster, client: Cluster) -> None:
        self.cluster, self.client = cluster, client
        self.readers: dict[int, MetricsReader] = {}
        self.produces = True
        self.each_minute: list[Callable[[], Awaitable[None]]] = []
        self.members: list[GroupMember] = []
        self.clients = [client]

    def machine(self, node_id: int) -> SimMachine:
        machine = self.cluster.machine(node_id)
        assert isinstance(machine, SimMachine)
        return machine

    def read(self) -> None:
        for node_id, broker in self.cluster.brokers.items():
            reader = self.readers[node_id] = MetricsReader(broker, RequestTimes(self.cluster.clock.monotonic))
            reader.start()

    async def minute(self) -> Minute:
        """Let a minute pass and scrape everybody."""
        if self.produces:
            async with Producer(self.client, clock=self.cluster.clock) as producer:
                await (await producer.send("orders", value=b"v", partition=0))
        for do in self.each_minute:
            await do()
        await asyncio.sleep(60)
        return {
            f"b{node_id}": await scrape(reader) if node_id in self.cluster.brokers else None
            for node_id, reader in self.readers.items()
        }

    async def close(self) -> None:
        for reader in self.readers.values():
            await reader.close()
        for client in self.clients:
            await client.close()


@dataclass(frozen=True)
class Fault:
    """What happens, and the alerts that must fire."""

    happens: Callable[[Scene], Awaitable[None]]
    alerts: frozenset[str]
    brokers: int = 1
    replicas: int = 1
    options: Mapping[str, str] = field(default_factory=dict)
    directories: int = 1
    sync_s: float = 0.0


async def _nothing(scene: Scene) -> None:
    """Nothing happens."""


async def _kill(scene: Scene) -> None:
    """A broker that leads no partition of which it has the only replica is killed."""
    scene.produces = False
    (partition,) = scene.cluster.services(1).cluster.current.topics["orders"].partitions
    await scene.cluster.kill(next(node for node in partition.replicas if node != scene.cluster.controller))


async def _kill_leader(scene: Scene) -> None:
    scene.produces = False
    (partition,) = scene.cluster.services(1).cluster.current.topics["orders"].partitions
    if partition.leader == scene.cluster.controller:
        await scene.cluster.machine(partition.leader).expire_session()
    await scene.cluster.kill(partition.leader)


async def _block_follower(scene: Scene) -> None:
    """A follower cannot reach its leader: both are alive."""
    (partition,) = scene.cluster.services(1).cluster.current.topics["orders"].partitions
    leader, follower = partition.replicas
    network = scene.machine(leader)._machines.network
    network.block(f"broker-{follower}", f"broker-{leader}")


async def _cut_from_store(scene: Scene) -> None:
    scene.produces = False
    for node_id in scene.cluster.brokers:
        scene.machine(node_id).link.cut()


async def _cut_one_from_store(scene: Scene) -> None:
    """A broker that is not the controller and has no replica is cut off from the store."""
    replicas = scene.cluster.services(1).cluster.current.topics["orders"].partitions[0].replicas
    others = [node for node in scene.cluster.brokers if node not in (*replicas, scene.cluster.controller)]
    scene.machine(others[0]).link.cut()


async def _fail_directory(scene: Scene) -> None:
    used = scene.cluster.services(1).replicas.partitions[TopicPartition("orders", 0)].log.directory.parent
    spare = next(each for each in scene.cluster.services(1).replicas.directories.online if each.path != used)
    spare.health.fail("a test", OSError(5, "Input/output error"))


async def _fill_disk(scene: Scene) -> None:
    scene.produces = False
    scene.cluster.fill_disk(1)


async def _uncleanable(scene: Scene) -> None:
    """The cleaner has met a log that it cannot read: what it notes then is set here."""
    await scene.cluster.create_topic("prices", 1, configs={"cleanup.policy": "compact"})
    cleaner = scene.cluster.brokers[1].log_cleaner
    assert cleaner is not None
    log = scene.cluster.services(1).replicas.partitions[TopicPartition("prices", 0)].log
    cleaner.uncleanable[log] = "planted"


async def _stop_group(scene: Scene) -> None:
    await commit_offsets(scene.client, "billing", {TopicPartition("orders", 0): 0})


async def _stuck_consumer(scene: Scene) -> None:
    """A member sends heartbeats and reads nothing."""
    member = GroupMember(scene.client, "billing", ["orders"], on_rebalance=lambda: None)
    await member.join()
    await member.commit({TopicPartition("orders", 0): 0})
    scene.members.append(member)


async def _hanging_transaction(scene: Scene) -> None:
    """A batch of a transaction that no coordinator knows."""
    scene.produces = False
    partition = scene.cluster.services(1).replicas.partitions[TopicPartition("orders", 0)]
    records = batch(b"a", producer_id=9, epoch=0, sequence=0, transactional=True)
    partition.log.append(records, leader_epoch=partition.leader_epoch, now_ms=scene.cluster.clock.wall_ms())


async def _wrong_passwords(scene: Scene) -> None:
    """What a failed sign-in counts is set here: sign-ins have tests of their own."""
    services = scene.cluster.services(1)
    services.sign_ins = SignIns({}, scene.cluster.clock)
    counts = services.sign_ins.failures

    async def fail() -> None:
        counts["OUTSIDE", "SCRAM-SHA-256"] += 60

    scene.each_minute.append(fail)


async def _too_many_connections(scene: Scene) -> None:
    """A client has all connections that its host may have, and others try to connect."""
    scene.clients += [await scene.cluster.client() for _ in range(2)]

    async def connect() -> None:
        for _ in range(30):
            try:
                await (await scene.cluster.client()).close()
            except (CannotConnect, KafkaError):
                continue

    scene.each_minute.append(connect)


async def _stalls(scene: Scene) -> None:
    """A simulated loop takes no time: what `LoopWatch` counts then is set here."""

    async def stall() -> None:
        scene.readers[1].loop_watch.stalls += 120

    scene.each_minute.append(stall)


async def _lose_a_record(scene: Scene) -> None:
    async def lose() -> None:
        log = scene.cluster.services(1).replicas.partitions[TopicPartition(PROBE_TOPIC, 0)].log
        log.truncate_to(log.end_offset - 1)

    scene.each_minute.append(lose)


FAULTS = [
    Fault(_nothing, frozenset(), brokers=3, replicas=2, options={"ottla.metrics.probe.interval.ms": "10000"}),
    Fault(_kill, frozenset({"OttlaBrokerDown", "OttlaUnderReplicatedPartitions"}), brokers=3, replicas=2),
    Fault(_kill_leader, frozenset({"OttlaBrokerDown", "OttlaOfflinePartitions"}), brokers=3),
    Fault(
        _kill,
        frozenset({"OttlaBrokerDown", "OttlaUnderReplicatedPartitions", "OttlaUnderMinIsr"}),
        brokers=3,
        replicas=2,
        options={"min.insync.replicas": "2"},
    ),
    Fault(_block_follower, frozenset({"OttlaUnderReplicatedPartitions"}), brokers=3, replicas=2),
    Fault(_cut_from_store, frozenset({"OttlaNoController", "OttlaMetadataStoreDisconnected"}), brokers=2),
    Fault(_cut_one_from_store, frozenset({"OttlaMetadataStoreDisconnected"}), brokers=3),
    Fault(_fail_directory, frozenset({"OttlaLogDirectoryFailed"}), directories=2),
    Fault(_fill_disk, frozenset({"OttlaDiskAlmostFull"})),
    Fault(_nothing, frozenset({"OttlaSlowFlush"}), sync_s=0.5),
    Fault(_uncleanable, frozenset({"OttlaCompactionStopped"})),
    Fault(_stop_group, frozenset({"OttlaGroupStopped"})),
    Fault(_stuck_consumer, frozenset({"OttlaGroupLagGrows"})),
    Fault(_hanging_transaction, frozenset({"OttlaTransactionStuck"})),
    Fault(_wrong_passwords, frozenset({"OttlaSignInsFail"})),
    Fault(
        _too_many_connections,
        frozenset({"OttlaConnectionsRefused"}),
        options={"max.connections.per.ip": "3", "connections.max.idle.ms": "7200000"},
    ),
    Fault(_stalls, frozenset({"OttlaLoopStalls"})),
    Fault(_lose_a_record, frozenset({"OttlaRecordLost"}), options={"ottla.metrics.probe.interval.ms": "10000"}),
]


def test_each_alert_has_a_fault() -> None:
    assert frozenset().union(*(fault.alerts for fault in FAULTS)) == ALERTS


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: "+".join(sorted(fault.alerts)) or "none")
async def test_an_alert_fires_on_its_fault_and_on_no_other(fault: Fault, tmp_path: Path) -> None:
    machines = SimulatedMachines(sync_s=fault.sync_s)
    machines.loop.limit_s = 2 * 3600
    cluster = TestCluster(
        machines, options=fault.options, directories=fault.directories, has_shared_store=fault.brokers > 1
    )
    async with cluster:
        await cluster.start(fault.brokers)
        await cluster.create_topic("orders", 1, replication_factor=fault.replicas)
        client = await cluster.client()
        scene = Scene(cluster, client)
        scene.read()
        try:
            minutes = [await scene.minute() for _ in range(MINUTES_BEFORE)]
            await fault.happens(scene)
            minutes += [await scene.minute() for _ in range(MINUTES_AFTER)]
        finally:
            await scene.close()
            for node_id in cluster.brokers:
                scene.machine(node_id).link.join()
            cluster.free_disk(1)
    before = firing_alerts(minutes[:MINUTES_BEFORE], tmp_path / "before.yml", ALERTS)
    assert before <= ({"OttlaSlowFlush"} if fault.sync_s else set())
    assert firing_alerts(minutes, tmp_path / "after.yml", ALERTS) == fault.alerts
