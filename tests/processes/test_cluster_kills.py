"""Three real brokers with a real ZooKeeper, under load by real clients, while parts of the cluster are killed or paused.

Idempotent producers with acks=all: nothing acknowledged is lost, nothing is there twice or out of order, and the replicas
are equal. `make cluster-kills KILLS=20` runs more kills, with more records.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator

import pytest

from ottla.local_cluster.cluster import SESSION_TIMEOUT_MS
from tests.support.changing_rights import ChangingRights, load_user
from tests.support.cluster_load import ClusterLoad
from tests.support.cluster_scenario import PARTITIONS, ClusterScenario
from tests.support.leader_probe import LeaderProbe
from tests.support.up_process import UpProcess

KILLS = int(os.environ.get("OTTLA_CLUSTER_KILLS", "2"))
RECORDS_PER_KILL = int(os.environ.get("OTTLA_CLUSTER_RECORDS", "20000")) // max(KILLS, 1)
RATE = float(os.environ.get("OTTLA_CLUSTER_RATE", "500"))
PAUSE_S = float(os.environ.get("OTTLA_CLUSTER_PAUSE", "10"))
"""How long ZooKeeper or the controller is paused: longer than the session timeout."""

FORM = "secured" if os.environ.get("OTTLA_SECURED") else "plain"
"""Of the cluster, but for tests that run with both."""

SEED = int(os.environ.get("OTTLA_CLUSTER_SEED", "1"))
RESUME_S = SESSION_TIMEOUT_MS / 1000 + 3
LEADERLESS_S = 1.0
"""At p99, of the partitions of a broker that stops cleanly."""

MARGIN = 3.0
"""Times are those of the issue for a machine of its own; tests share theirs."""

pytestmark = [pytest.mark.slow, pytest.mark.external, pytest.mark.timeout(0), pytest.mark.xdist_group("cluster")]


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """Three brokers; as "secured" with TLS, SCRAM and ACLs."""
    is_secured = getattr(request, "param", FORM) == "secured"
    up = UpProcess(tmp_path_factory.mktemp("cluster"), is_secured=is_secured).start()
    try:
        yield up
    finally:
        if up.process is not None and up.process.poll() is None:
            up.stop()


@pytest.fixture
def scenario(cluster: UpProcess) -> Iterator[ClusterScenario]:
    running = ClusterScenario(cluster, rate=RATE, security=load_user(cluster))
    running.load.start()
    try:
        running.load.until_acknowledged(200)
        yield running
    finally:
        running.load.stop()


@pytest.mark.parametrize("cluster", sorted({FORM, "secured"}), indirect=True)
def test_leaders_are_killed_under_load(cluster: UpProcess, scenario: ClusterScenario) -> None:
    load, rng = scenario.load, random.Random(SEED)
    pauses = []
    rights = ChangingRights(cluster).start() if cluster.is_secured else None
    for _ in range(KILLS):
        scenario.until_in_sync()
        leader = scenario.leaders()[rng.randrange(PARTITIONS)]
        began = time.monotonic()
        cluster.kill(leader)
        load.until_acknowledged(RECORDS_PER_KILL // 2, seconds=300)
        pauses.append(load.longest_pause_s(began))
        cluster.start_broker(leader)
        load.until_acknowledged(RECORDS_PER_KILL // 2, seconds=300)
        scenario.until_in_sync()
    if rights is not None:
        rights.finish()
        assert rights.changes > 5 * KILLS
        print(f"{rights.changes} changes of a user's ACL and password")
    print(f"longest pauses after {KILLS} kills: {', '.join(f'{pause:.1f}' for pause in sorted(pauses))} s")
    scenario.finish()
    assert max(pauses) < RESUME_S * MARGIN


def test_the_controller_is_killed_and_another_one_paused(cluster: UpProcess, scenario: ClusterScenario) -> None:
    load = scenario.load
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


def test_zookeeper_is_down_for_longer_than_the_sessions(cluster: UpProcess, scenario: ClusterScenario) -> None:
    load = scenario.load
    cluster.signal("zookeeper", signal.SIGSTOP)
    began = time.monotonic()
    time.sleep(PAUSE_S)
    load.until_acknowledged(500)  # an outage of the store alone stops no producer
    assert load.longest_pause_s(began) < 2 * MARGIN
    cluster.signal("zookeeper", signal.SIGCONT)
    scenario.until(lambda: scenario.controller() != -1, 30 * MARGIN, "there is a controller")
    load.until_acknowledged(500)
    scenario.finish()


def test_zookeeper_is_killed(cluster: UpProcess, scenario: ClusterScenario) -> None:
    load = scenario.load
    began = time.monotonic()
    cluster.signal("zookeeper", signal.SIGKILL)  # `up` starts it again
    load.until_acknowledged(1000)
    assert load.longest_pause_s(began) < 2 * MARGIN
    scenario.until(lambda: scenario.controller() != -1, 30 * MARGIN, "there is a controller")
    scenario.finish()


def test_brokers_are_restarted_one_by_one(cluster: UpProcess, scenario: ClusterScenario) -> None:
    """A clean stop hands the leaders over first: no partition is without one for long."""
    load = scenario.load
    gaps, pauses = [], []
    for turn in range(max(KILLS, len(cluster.nodes))):
        node = cluster.nodes[turn % len(cluster.nodes)]
        scenario.elect_preferred_leaders()
        leaders = scenario.leaders()
        began = time.monotonic()
        with LeaderProbe(cluster.ports, scenario.topic, partitions=PARTITIONS, security=scenario.security) as probe:
            cluster.stop_broker(node)
            load.until_acknowledged(300)
        pauses.append(load.longest_pause_s(began))
        found = probe.longest_gaps_s()
        gaps += [found[partition] for partition, leader in leaders.items() if leader == node]
        cluster.start_broker(node)
        scenario.until_in_sync()
    gaps.sort()
    print(f"{len(gaps)} partitions were without a leader for {', '.join(f'{gap:.2f}' for gap in gaps)} s")
    print(f"longest pauses of a producer: {', '.join(f'{pause:.1f}' for pause in sorted(pauses))} s")
    scenario.finish()
    assert gaps[int(len(gaps) * 0.99)] < LEADERLESS_S * MARGIN


def test_everything_is_killed_at_once_and_started_again(cluster: UpProcess, scenario: ClusterScenario) -> None:
    load = scenario.load
    cluster.kill_all()
    cluster.start()
    load.until_acknowledged(500, seconds=120)
    scenario.finish()


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_the_command_ends_and_is_started_again(cluster: UpProcess, scenario: ClusterScenario, how: str) -> None:
    """Between two loads: the brokers stop cleanly, also if the command that started them is killed."""
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
    again = ClusterLoad(
        cluster.bootstrap, scenario.topic, partitions=PARTITIONS, first=10, security=scenario.security
    ).start()
    again.until_acknowledged(500, seconds=60)
    again.stop()
    assert again.verify() >= scenario.load.acknowledged + again.acknowledged
    scenario.finish()
