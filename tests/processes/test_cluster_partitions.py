"""A leader is cut off from ZooKeeper, its followers, both, or its clients, under load: real processes and proxies."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from tests.support.cluster_scenario import ClusterScenario
from tests.support.proxied_cluster import LAG_TIME_MS, SESSION_TIMEOUT_MS, ProxiedCluster

MARGIN = 4.0
CUT_S = 12.0
"""Longer than the session timeout and than the time after which a replica is out of sync."""

assert 2 * max(SESSION_TIMEOUT_MS, LAG_TIME_MS) < CUT_S * 1000
pytestmark = [pytest.mark.slow, pytest.mark.external, pytest.mark.timeout(0), pytest.mark.xdist_group("cluster")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedCluster]:
    proxied = ProxiedCluster(tmp_path_factory.mktemp("proxied"))
    try:
        yield proxied.start()
    finally:
        proxied.close()


@pytest.fixture
def scenario(cluster: ProxiedCluster) -> Iterator[ClusterScenario]:
    running = ClusterScenario(cluster, rate=400)
    running.load.start()
    try:
        running.load.until_acknowledged(200)
        yield running
    finally:
        for proxy in cluster.proxies:
            cluster.heal(proxy)
        running.load.stop()


def victim(scenario: ClusterScenario, *, is_controller: bool) -> int:
    """A leader that is the controller, or is not."""
    scenario.until_in_sync()
    controller = scenario.controller()
    return controller if is_controller else next(node for node in scenario.leaders().values() if node != controller)


@pytest.mark.parametrize("silently", [False, True], ids=["refused", "silent"])
@pytest.mark.parametrize("is_controller", [False, True], ids=["broker", "controller"])
def test_a_leader_without_zookeeper_is_replaced(
    cluster: ProxiedCluster, scenario: ClusterScenario, is_controller: bool, silently: bool
) -> None:
    node = victim(scenario, is_controller=is_controller)
    cluster.cut_off(cluster.to_zookeeper[node], silently=silently)
    time.sleep(CUT_S)
    other = next(each for each in cluster.nodes if each != node)
    scenario.until(lambda: node not in scenario.leaders(known_to=other).values(), 10 * MARGIN, "it leads nothing")
    scenario.load.until_acknowledged(500, seconds=60)
    cluster.heal(cluster.to_zookeeper[node])
    scenario.load.until_acknowledged(500, seconds=60)
    scenario.finish()


def test_a_leader_without_followers_acknowledges_nothing_alone(
    cluster: ProxiedCluster, scenario: ClusterScenario
) -> None:
    node = victim(scenario, is_controller=False)
    led = {partition for partition, leader in scenario.leaders().items() if leader == node}
    cluster.cut_off(cluster.to_broker[node], silently=True)
    before = scenario.load.sent
    other = next(each for each in cluster.nodes if each != node)

    def is_alone() -> bool:
        partitions = scenario.known_to(other)[1]
        return all(partitions[partition] == (node, 1) for partition in led)

    scenario.until(is_alone, 10 * MARGIN, "it leads alone")
    time.sleep(CUT_S)
    assert is_alone()
    assert min(sent - earlier for sent, earlier in zip(scenario.load.sent, before, strict=True)) > 100
    assert scenario.load.acknowledged_of(led, sent_after=before) == []
    cluster.heal(cluster.to_broker[node])
    scenario.load.until_acknowledged(500, seconds=90)
    scenario.finish()


def test_a_leader_without_any_connection_to_the_cluster_is_replaced(
    cluster: ProxiedCluster, scenario: ClusterScenario
) -> None:
    node = victim(scenario, is_controller=True)
    for proxy in (cluster.to_broker[node], cluster.to_zookeeper[node]):
        cluster.cut_off(proxy, silently=True)
    time.sleep(CUT_S)
    other = next(each for each in cluster.nodes if each != node)
    scenario.until(lambda: node not in scenario.leaders(known_to=other).values(), 10 * MARGIN, "it leads nothing")
    scenario.load.until_acknowledged(200, seconds=60)
    for proxy in (cluster.to_broker[node], cluster.to_zookeeper[node]):
        cluster.heal(proxy)
    scenario.load.until_acknowledged(500, seconds=60)
    scenario.finish()


def test_a_leader_whose_answers_are_lost_stays_and_knows_what_is_sent_again(
    cluster: ProxiedCluster, scenario: ClusterScenario
) -> None:
    node = victim(scenario, is_controller=False)
    leaders = scenario.leaders()
    other = next(each for each in cluster.nodes if each != node)
    cluster.lose_answers(cluster.from_clients[node])
    time.sleep(CUT_S)
    assert scenario.leaders(known_to=other) == leaders
    cluster.heal(cluster.from_clients[node])
    scenario.load.until_acknowledged(500, seconds=90)
    scenario.finish()


def test_a_leader_that_was_paused_steps_down(cluster: ProxiedCluster, scenario: ClusterScenario) -> None:
    node = victim(scenario, is_controller=False)
    process = cluster.brokers[node].process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    time.sleep(CUT_S)
    other = next(each for each in cluster.nodes if each != node)
    scenario.until(lambda: node not in scenario.leaders(known_to=other).values(), 10 * MARGIN, "it leads nothing")
    scenario.load.until_acknowledged(200, seconds=60)
    process.send_signal(signal.SIGCONT)
    scenario.load.until_acknowledged(500, seconds=60)
    scenario.finish()
