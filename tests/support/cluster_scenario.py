"""One topic of a real cluster under load, and the verification at the end of a fault."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from itertools import count
from typing import Protocol

from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.cluster_load import ClusterLoad
from tests.support.signed_in import PLAINTEXT, ClientSecurity
from tests.support.wire_client import ConnectionEnded

PARTITIONS = 6
IN_SYNC_S = 180.0
"""On a machine of its own it is a third of that; tests share theirs."""

_names = count(1)


class RunningCluster(Protocol):
    """A cluster of broker processes."""

    nodes: range

    @property
    def bootstrap(self) -> str: ...

    def log(self, node: int) -> str: ...

    def content(self, node: int, topic: str, partition: int) -> bytes: ...


class ClusterScenario:
    """One topic, its load, and what is asked about it."""

    def __init__(self, cluster: RunningCluster, *, rate: float, security: ClientSecurity = PLAINTEXT) -> None:
        self.cluster, self.security = cluster, security
        self.topic = f"load-{next(_names)}"
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0, **security.properties})
        self.until(self._create, 60, f"{self.topic} is created")  # the scenario before may leave no controller
        self.until_in_sync()
        self.load = ClusterLoad(cluster.bootstrap, self.topic, partitions=PARTITIONS, rate=rate, security=security)

    def _create(self) -> bool:
        for created in self.admin.create_topics([NewTopic(self.topic, PARTITIONS, 3)]).values():
            created.result(30)
        return True

    def known_to(self, node: int) -> tuple[int, dict[int, tuple[int, int]]]:
        """Return the controller and each partition's leader and size of the ISR, as one broker knows them."""
        port = int(self.cluster.bootstrap.split(",")[node - 1].rpartition(":")[2])
        with self.security.wire(port, timeout_s=5.0) as wire:
            answer = wire.call("metadata", 8, topics=[{"name": self.topic}], allow_auto_topic_creation=False)
        (topic,) = answer["topics"]
        return answer["controller_id"], {
            each["partition_index"]: (each["leader_id"], len(each["isr_nodes"])) for each in topic["partitions"]
        }

    def leaders(self, *, known_to: int = 1) -> dict[int, int]:
        return {index: leader for index, (leader, _) in self.known_to(known_to)[1].items()}

    def controller(self) -> int:
        """The controller, on which all brokers that answer agree; -1 until then."""
        found = set()
        for node in self.cluster.nodes:
            with contextlib.suppress(OSError, ConnectionEnded):
                found.add(self.known_to(node)[0])
        return found.pop() if len(found) == 1 else -1

    def elect_preferred_leaders(self) -> None:
        """Have every broker lead again what it is preferred for."""
        self.admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(self.topic, n) for n in range(PARTITIONS)])
        self.until(lambda: len(set(self.leaders().values())) == len(self.cluster.nodes), IN_SYNC_S, "all brokers lead")

    def until_in_sync(self) -> None:
        """Wait until all brokers know the same leaders, with three replicas in sync for each partition."""
        self.until(self._is_in_sync, IN_SYNC_S, "all replicas are in sync")

    def _is_in_sync(self) -> bool:
        found = [self.known_to(node) for node in self.cluster.nodes]
        return (
            found.count(found[0]) == len(found)
            and found[0][0] > 0
            and len(found[0][1]) == PARTITIONS
            and all(leader > 0 and in_sync == 3 for leader, in_sync in found[0][1].values())
        )

    @staticmethod
    def until(holds: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(Exception):  # the broker asked may be the killed one
                if holds():
                    return
            assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
            time.sleep(0.1)

    def finish(self) -> None:
        """End the load and verify it, on the clients' side and in the files of the replicas."""
        self.until_in_sync()
        self.load.stop()
        records = self.load.verify()
        print(f"{self.topic}: {records} records verified")
        self._compare_replicas()
        for node in self.cluster.nodes:
            assert "Traceback" not in self.cluster.log(node), self.cluster.log(node)[-6000:]

    def _compare_replicas(self) -> None:
        """Every byte of the log is the same on all brokers."""
        for partition in range(PARTITIONS):
            contents = [self.cluster.content(node, self.topic, partition) for node in self.cluster.nodes]
            deadline = time.monotonic() + 20
            while len(set(contents)) > 1:
                assert time.monotonic() < deadline, f"{self.topic}-{partition}: {[len(each) for each in contents]}"
                time.sleep(0.2)
                contents = [self.cluster.content(node, self.topic, partition) for node in self.cluster.nodes]
