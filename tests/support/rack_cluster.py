"""Three ZooKeeper servers and brokers in racks, as processes: members and brokers are replaced one by one."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from tests.support.log_files import batches_in
from tests.support.ottla_process import OttlaProcess
from tests.support.real_zookeeper import RealEnsemble

SESSION_TIMEOUT_MS = 3000
RACKS = {1: "a", 2: "b", 3: "c"}


class RackCluster:
    """Lifecycle: `start`, then brokers come and go, `close`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ensemble = RealEnsemble(directory, tick_ms=500)
        self.brokers: dict[int, OttlaProcess] = {}

    def start(self) -> RackCluster:
        self.ensemble.start()
        for node, rack in RACKS.items():
            self.add(node, rack)
        return self

    def add(self, node: int, rack: str) -> OttlaProcess:
        """Start a broker for the first time, or in another rack than before."""
        before = self.brokers.get(node)
        settings = {
            "node.id": node,
            "broker.rack": rack,
            "zookeeper.connect": f"{self.ensemble.address}/ottla",
            "zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS,
            "default.replication.factor": 3,
            "min.insync.replicas": 2,
            "offsets.topic.replication.factor": 3,
            "offsets.topic.num.partitions": 6,
            "group.initial.rebalance.delay.ms": 0,
        }
        options = [text for name, value in settings.items() for text in ("-o", f"{name}={value}")]
        broker = OttlaProcess(self.directory / f"node-{node}", options=options)
        if before is not None:
            before.stop()
            broker.port = before.port
        self.brokers[node] = broker.start()
        return broker

    def start_with_empty_disk(self, node: int) -> None:
        """Start a broker that was killed: another machine under its id."""
        broker = self.brokers[node]
        shutil.rmtree(broker.data)
        broker.start()

    def replace_member(self, member: int) -> None:
        """Kill a ZooKeeper server and start it with an empty disk; returns when it serves."""
        server = self.ensemble.servers[member]
        server.kill()
        shutil.rmtree(server.server.directory / "data")
        server.start()

    @property
    def nodes(self) -> range:
        return range(1, len(self.brokers) + 1)

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for _, broker in sorted(self.brokers.items()))

    def log(self, node: int) -> str:
        return self.brokers[node].log

    def content(self, node: int, topic: str, partition: int) -> bytes:
        """Every batch of a replica's log."""
        directory = self.brokers[node].data / f"{topic}-{partition}"
        return b"".join(batches_in(file) for file in sorted(directory.glob("*.log")))

    def close(self) -> None:
        for broker in self.brokers.values():
            if broker.process is not None and broker.process.poll() is None:
                broker.kill()
        self.ensemble.stop()
        deadline = time.monotonic() + 10
        while any(s.process is not None and s.process.poll() is None for s in self.ensemble.servers.values()):
            assert time.monotonic() < deadline, "a ZooKeeper server does not end"
            time.sleep(0.02)
