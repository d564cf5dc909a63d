"""Three brokers as processes of their own with a real ZooKeeper, each started, stopped and killed by the test."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.ottla_process import OttlaProcess
from tests.support.real_zookeeper import RealZooKeeper, running_zookeeper

OPTIONS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "0",
}


class ZooKeeperCluster:
    """Brokers 1 to 3, by their numbers."""

    def __init__(self, directory: Path, zookeeper: RealZooKeeper, *, session_timeout_ms: int) -> None:
        self.zookeeper = zookeeper
        self.brokers = {node: OttlaProcess(directory / f"broker-{node}") for node in (1, 2, 3)}
        for node, broker in self.brokers.items():
            settings = {
                **OPTIONS,
                "node.id": str(node),
                "zookeeper.connect": zookeeper.address,
                "zookeeper.session.timeout.ms": str(session_timeout_ms),
            }
            broker.options = tuple(word for key, value in settings.items() for word in ("-o", f"{key}={value}"))

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    @property
    def ports(self) -> Sequence[int]:
        """The ports of all brokers."""
        return [broker.port for broker in self.brokers.values()]

    def start(self, nodes: Iterable[int] = (1, 2, 3)) -> None:
        """Start brokers at once; returns when all of them are ready."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda node: self.brokers[node].start(), nodes))

    def stop(self, nodes: Iterable[int] = (1, 2, 3)) -> None:
        """Stop brokers cleanly, at once."""
        with ThreadPoolExecutor() as pool:
            codes = list(pool.map(lambda node: self.brokers[node].stop(), nodes))
        assert not any(codes), codes

    def kill(self, nodes: Iterable[int] = (1, 2, 3)) -> None:
        """Kill brokers with -9."""
        for node in nodes:
            self.brokers[node].kill()

    def end(self) -> None:
        """End what runs."""
        for broker in self.brokers.values():
            if broker.process is not None and broker.process.poll() is None:
                broker.kill()


@contextlib.contextmanager
def running_cluster(directory: Path, *, session_timeout_ms: int = 1000) -> Iterator[ZooKeeperCluster]:
    """Run ZooKeeper and the brokers for the duration of a block. A session may last 4 s at most."""
    with running_zookeeper(directory / "zookeeper") as zookeeper:
        cluster = ZooKeeperCluster(directory, zookeeper, session_timeout_ms=session_timeout_ms)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.end()
