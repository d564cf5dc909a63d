"""Three real brokers with a real ZooKeeper, under load by real clients, while parts of the cluster are killed or paused.

Idempotent producers with acks=all: nothing acknowledged is lost, nothing is there twice or out of order, and the replicas
are equal. `make cluster-kills KILLS=20` runs more kills, with more records.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from ottla.local_cluster.cluster import SESSION_TIMEOUT_MS
from tests.support.cluster_load import ClusterLoad
from tests.support.up_process import UpProcess

KILLS = int(os.environ.get("OTTLA_CLUSTER_KILLS", "2"))
RECORDS_PER_KILL = int(os.environ.get("OTTLA_CLUSTER_RECORDS", "20000")) // max(KILLS, 1)
RATE = float(os.environ.get("OTTLA_CLUSTER_RATE", "500"))
PAUSE_S = float(os.environ.get("OTTLA_CLUSTER_PAUSE", "10"))
"""How long ZooKeeper or the controller is paused: longer than the session timeout."""

SEED = int(os.environ.get("OTTLA_CLUSTER_SEED", "1"))
PARTITIONS = 6
RESUME_S = SESSION_TIMEOUT_MS / 1000 + 3
IN_SYNC_S = 60.0
MARGIN = 3.0
"""Times are those of the issue for a machine of its own; tests share theirs."""

pytestmark = [pytest.mark.slow, pytest.mark.external, pytest.mark.timeout(0), pytest.mark.xdist_group("cluster")]
_names = count(1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    up = UpProcess(tmp_path_factory.mktemp("cluster")).start()
    try:
        yield up
    finally:
        if up.process is not None and up.process.poll() is None:
            up.stop()


class Scenario:
    """One topic, its load, and what is asked about it."""

    def __init__(self, cluster: UpProcess) -> None:
        self.cluster = cluster
        self.topic = f"load-{next(_names)}"
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        for created in self.admin.create_topics([NewTopic(self.topic, PARTITIONS, 3)]).values():
            created.result(30)
        self.until_in_sync()
        self.load = ClusterLoad(cluster.bootstrap, self.topic, partitions=PARTITIONS, rate=RATE)

    def leaders(self) -> dict[int, int]:
        return {index: partition.leader for index, partition in self._partitions().items()}

    def until_in_sync(self) -> None:
        """Wait until each partition has three replicas in sync."""
        self.until(lambda: self._in_sync() == PARTITIONS, IN_SYNC_S * MARGIN, "all replicas are in sync")

    def _in_sync(self) -> int:
        return sum(len(partition.isrs) == 3 and partition.leader > 0 for partition in self._partitions().values())

    def _partitions(self) -> dict[int, Any]:
        return dict(self.admin.list_topics(self.topic, timeout=20).topics[self.topic].partitions)

    def controller(self) -> int:
        return int(self.admin.list_topics(timeout=20).controller_id)

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
            contents = [self._content(node, partition) for node in self.cluster.nodes]
            deadline = time.monotonic() + 20
            while len(set(contents)) > 1:
                assert time.monotonic() < deadline, f"{self.topic}-{partition}: {[len(each) for each in contents]}"
                time.sleep(0.2)
                contents = [self._content(node, partition) for node in self.cluster.nodes]

    def _content(self, node: int, partition: int) -> bytes:
        directory = self.cluster.directory / f"broker-{node}" / f"{self.topic}-{partition}"
        return b"".join(file.read_bytes() for file in sorted(directory.glob("*.log")))


@pytest.fixture
def scenario(cluster: UpProcess) -> Iterator[Scenario]:
    running = Scenario(cluster)
    running.load.start()
    try:
        running.load.until_acknowledged(200)
        yield running
    finally:
        running.load.stop()


def test_leaders_are_killed_under_load(scenario: Scenario) -> None:
    cluster, load, rng = scenario.cluster, scenario.load, random.Random(SEED)
    pauses = []
    for _ in range(KILLS):
        leader = scenario.leaders()[rng.randrange(PARTITIONS)]
        began = time.monotonic()
        cluster.kill(leader)
        load.until_acknowledged(RECORDS_PER_KILL // 2, seconds=300)
        pauses.append(load.longest_pause_s(began))
        cluster.start_broker(leader)
        load.until_acknowledged(RECORDS_PER_KILL // 2, seconds=300)
        scenario.until_in_sync()
    print(f"longest pauses after {KILLS} kills: {', '.join(f'{pause:.1f}' for pause in sorted(pauses))} s")
    scenario.finish()
    assert max(pauses) < RESUME_S * MARGIN


def test_the_controller_is_killed_and_another_one_paused(scenario: Scenario) -> None:
    cluster, load = scenario.cluster, scenario.load
    killed = scenario.controller()
    cluster.kill(killed)
    scenario.until(lambda: scenario.controller() not in {killed, -1}, RESUME_S * MARGIN, "there is another controller")
    cluster.start_broker(killed)
    scenario.until_in_sync()

    paused = scenario.controller()
    cluster.signal(f"broker {paused}", signal.SIGSTOP)
    time.sleep(PAUSE_S)
    load.until_acknowledged(200, seconds=60)
    cluster.signal(f"broker {paused}", signal.SIGCONT)
    scenario.until(lambda: scenario.controller() not in {paused, -1}, RESUME_S * MARGIN, "there is another controller")
    load.until_acknowledged(500)
    scenario.finish()


def test_zookeeper_is_down_for_longer_than_the_sessions(scenario: Scenario) -> None:
    cluster, load = scenario.cluster, scenario.load
    cluster.signal("zookeeper", signal.SIGSTOP)
    began = time.monotonic()
    time.sleep(PAUSE_S)
    load.until_acknowledged(500)  # an outage of the store alone stops no producer
    assert load.longest_pause_s(began) < 2 * MARGIN
    cluster.signal("zookeeper", signal.SIGCONT)
    scenario.until(lambda: scenario.controller() != -1, 30 * MARGIN, "there is a controller")
    load.until_acknowledged(500)
    scenario.finish()


def test_zookeeper_is_killed(scenario: Scenario) -> None:
    cluster, load = scenario.cluster, scenario.load
    began = time.monotonic()
    cluster.signal("zookeeper", signal.SIGKILL)  # `up` starts it again
    load.until_acknowledged(1000)
    assert load.longest_pause_s(began) < 2 * MARGIN
    scenario.until(lambda: scenario.controller() != -1, 30 * MARGIN, "there is a controller")
    scenario.finish()


def test_brokers_are_restarted_one_by_one(scenario: Scenario) -> None:
    cluster, load = scenario.cluster, scenario.load
    for node in cluster.nodes:
        began = time.monotonic()
        cluster.stop_broker(node)
        load.until_acknowledged(300)
        cluster.start_broker(node)
        scenario.until_in_sync()
        print(f"restart of broker {node}: longest pause {load.longest_pause_s(began):.1f} s")
    scenario.finish()


def test_everything_is_killed_at_once_and_started_again(scenario: Scenario) -> None:
    cluster, load = scenario.cluster, scenario.load
    cluster.kill_all()
    cluster.start()
    load.until_acknowledged(500, seconds=120)
    scenario.finish()


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_the_command_ends_and_is_started_again(scenario: Scenario, how: str) -> None:
    """Between two loads: the brokers stop cleanly, also if the command that started them is killed."""
    cluster = scenario.cluster
    scenario.load.stop()
    if how == "stopped":
        assert cluster.stop() == 0
    else:
        cluster.kill_command()
    for node in cluster.nodes:
        assert cluster.log(node).rstrip().endswith("stopped: everything is on the disk")
    cluster.start()
    scenario.until_in_sync()
    assert scenario.load.verify() >= scenario.load.acknowledged
    again = ClusterLoad(cluster.bootstrap, scenario.topic, partitions=PARTITIONS, first=10).start()
    again.until_acknowledged(500, seconds=60)
    again.stop()
    assert again.verify() >= scenario.load.acknowledged + again.acknowledged
    scenario.finish()
