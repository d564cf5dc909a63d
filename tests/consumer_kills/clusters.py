"""Three brokers that can be killed and started again: Ottla's, or Apache Kafka's."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from tests.support.changing_rights import load_user
from tests.support.kafka_jars import kafka_jars
from tests.support.real_kafka import RealKafka
from tests.support.signed_in import PLAINTEXT, ClientSecurity
from tests.support.up_process import UpProcess

NODES = (1, 2, 3)
SETTINGS = {
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "6",
    "offsets.topic.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
}


class KillableCluster(Protocol):
    """Three brokers, all of which run after the start."""

    @property
    def ports(self) -> list[int]: ...

    @property
    def security(self) -> ClientSecurity: ...

    def kill(self, node: int) -> None: ...

    def start_broker(self, node: int) -> None: ...

    def close(self) -> None: ...


class OttlaCluster:
    """`ottla up -n 3`, whose brokers ZooKeeper considers dead after 6 s."""

    def __init__(self, directory: Path, *, is_secured: bool = False) -> None:
        options = [f"{name}={value}" for name, value in SETTINGS.items()]
        self.up = UpProcess(directory, options=options, is_secured=is_secured).start()
        self.security = load_user(self.up)

    @property
    def ports(self) -> list[int]:
        return list(self.up.ports)

    def kill(self, node: int) -> None:
        """Kill a broker with -9."""
        self.up.kill(node)

    def start_broker(self, node: int) -> None:
        """Start a broker; returns when it is ready."""
        self.up.start_broker(node)

    def log(self, node: int) -> str:
        return self.up.log(node)

    def close(self) -> None:
        self.up.stop()


class KafkaCluster:
    """Three brokers that are the controllers, too; a broker is fenced after 6 s without a heartbeat."""

    security = PLAINTEXT

    def __init__(self, directory: Path) -> None:
        jars = kafka_jars()
        self._nodes = {node: RealKafka(jars, directory / str(node), node_id=node) for node in NODES}
        voters = ",".join(f"{node}@127.0.0.1:{each.controller_port}" for node, each in self._nodes.items())
        settings = {**SETTINGS, "controller.quorum.voters": voters, "broker.session.timeout.ms": "6000"}
        for each in self._nodes.values():
            with each.properties.open("a") as properties:
                properties.writelines(f"{name}={value}\n" for name, value in settings.items())
            each.format()
        for each in self._nodes.values():
            each.start(wait=False)
        for each in self._nodes.values():
            each.wait_until_answers()

    @property
    def ports(self) -> list[int]:
        return [each.port for each in self._nodes.values()]

    def kill(self, node: int) -> None:
        """Kill a broker with -9."""
        self._nodes[node].kill()

    def start_broker(self, node: int) -> None:
        """Start a broker; returns when it answers."""
        self._nodes[node].start()

    def close(self) -> None:
        for each in self._nodes.values():
            if each.process is not None and each.process.poll() is None:
                each.kill()
