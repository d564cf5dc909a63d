"""Real brokers in racks and three ZooKeeper servers, all of which are moved, paused and replaced, under load.

The tests walk one cluster through a scenario, in this order: each leaves it whole. What was acknowledged during all of it
is verified at the end.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kazoo.client import KazooClient

from ottla.core.errors import ErrorCode
from tests.processes.cli_runner import Cli
from tests.support.cluster_load import ClusterLoad
from tests.support.rack_cluster import RACKS, RackCluster
from tests.support.wire_client import ConnectionEnded, Wire

PARTITIONS = 6
TOPIC = "load"
GROUP = "team"
WAIT_S = 120.0
"""Deadline of each wait. On a machine of its own the longest takes 5 s."""

pytestmark = [pytest.mark.slow, pytest.mark.external, pytest.mark.timeout(0), pytest.mark.xdist_group("cluster")]


class Walk:
    """The cluster, its load, and what is asked about it."""

    def __init__(self, directory: Path) -> None:
        self.cluster = RackCluster(directory).start()
        self.cli = Cli(self.cluster.bootstrap, directory)
        self.admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap, "log_level": 0})
        self.create(TOPIC, PARTITIONS)
        self.load = ClusterLoad(self.cluster.bootstrap, TOPIC, partitions=PARTITIONS, producers=1, rate=200).start()

    def create(self, name: str, partitions: int = 1, *, replicas: list[list[int]] | None = None) -> None:
        if replicas:
            topic = NewTopic(name, num_partitions=len(replicas), replica_assignment=replicas)
        else:
            topic = NewTopic(name, partitions, 3)
        self.admin.create_topics([topic])[name].result(30)
        self.until(lambda: all(len(isr) == 3 for _, isr in self.replicas(name).values()), f"{name} is in sync")

    def wire(self, node: int) -> Wire:
        return Wire(self.cluster.brokers[node].port, timeout_s=WAIT_S)

    def metadata(self, node: int, *topics: str) -> dict[str, Any]:
        """What a broker knows."""
        asked = [{"name": name} for name in topics]
        with self.wire(node) as wire:
            return wire.call("metadata", 8, topics=asked, allow_auto_topic_creation=False)

    def replicas(self, topic: str, *, known_to: int = 3) -> dict[int, tuple[list[int], list[int]]]:
        """Return the replicas and the ISR of each partition; none while there is no such topic."""
        (found,) = self.metadata(known_to, topic)["topics"]
        return {
            each["partition_index"]: (list(each["replica_nodes"]), list(each["isr_nodes"]))
            for each in found["partitions"]
        }

    def racks(self, *, known_to: int) -> dict[int, str]:
        return {broker["node_id"]: broker["rack"] for broker in self.metadata(known_to)["brokers"]}

    def are_spread(self, topic: str) -> bool:
        """Whether the replicas of each partition are in three racks."""
        racks = self.racks(known_to=3)
        return all(len({racks[node] for node in replicas}) == 3 for replicas, _ in self.replicas(topic).values())

    def coordinator(self, *, known_to: int) -> int:
        with self.wire(known_to) as wire:
            return int(wire.call("find_coordinator", 2, key=GROUP, key_type=0)["node_id"])

    def commit(self, node: int, offset: int) -> ErrorCode:
        partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        with self.wire(node) as wire:
            answer = wire.call(
                "offset_commit",
                7,
                group_id=GROUP,
                generation_id_or_member_epoch=-1,
                topics=[{"name": TOPIC, "partitions": [partition]}],
            )
        return ErrorCode(answer["topics"][0]["partitions"][0]["error_code"])

    def until_in_sync(self) -> None:
        self.until(lambda: all(len(isr) == 3 for _, isr in self.replicas(TOPIC).values()), "all replicas are in sync")

    @staticmethod
    def until(holds: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                if holds():
                    return
            except (OSError, ConnectionEnded, ValueError):  # a broker starts or has just stopped
                pass
            assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}"
            time.sleep(0.05)

    def check_logs(self) -> None:
        for node in self.cluster.nodes:
            for unexpected in ("Traceback", "unexpected error"):
                assert unexpected not in self.cluster.log(node), self.cluster.log(node)[-6000:]


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    walk = Walk(tmp_path_factory.mktemp("racks"))
    try:
        yield walk
    finally:
        walk.load.stop()
        walk.cluster.close()


@pytest.fixture(autouse=True)
def whole(walk: Walk) -> Iterator[None]:
    """Each test begins and ends with all replicas in sync, a running load, and logs without surprises."""
    walk.load.until_acknowledged(20)
    yield
    walk.until_in_sync()
    walk.load.until_acknowledged(20)
    walk.check_logs()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups_of_both_protocols_work_in_racks(walk: Walk, protocol: str) -> None:
    assert walk.racks(known_to=2) == RACKS
    settings = {
        "bootstrap.servers": walk.cluster.bootstrap,
        "group.id": f"group-{protocol}",
        "group.protocol": protocol,
        "client.rack": "b",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "log_level": 0,
    }
    consumer = Consumer(settings)
    try:
        consumer.subscribe([TOPIC])
        found: list[Any] = []

        def are_enough() -> bool:
            found.extend(consumer.consume(100, 0.2))
            return len(found) >= 50

        walk.until(are_enough, "records")
        committed = consumer.commit(message=found[-1], asynchronous=False)
        assert committed is not None
        assert [each.offset for each in consumer.committed([TopicPartition(TOPIC, found[-1].partition())], 30)] == [
            found[-1].offset() + 1
        ]
    finally:
        consumer.close()


def test_a_fourth_broker_in_a_rack_of_another_one_takes_its_share(walk: Walk) -> None:
    walk.cluster.add(4, "a")
    walk.until(lambda: all(len(walk.racks(known_to=node)) == 4 for node in walk.cluster.nodes), "all know it")
    plan = walk.cli.out("cluster", "reassign", "plan", TOPIC, "--format", "json")
    assert (
        walk.cli.out("cluster", "reassign", "apply", "-", "--wait", stdin=plan)
        .decode()
        .splitlines()[-1]
        .startswith("moved")
    )
    counts = [sum(node in replicas for replicas, _ in walk.replicas(TOPIC).values()) for node in walk.cluster.nodes]
    assert counts[0] > 0 < counts[3]
    assert walk.are_spread(TOPIC)
    walk.create("placed", 8)
    assert walk.are_spread("placed")


def test_a_broker_that_starts_in_another_rack_gets_other_replicas(walk: Walk) -> None:
    walk.cluster.add(4, "d")
    walk.until(lambda: all(walk.racks(known_to=node).get(4) == "d" for node in walk.cluster.nodes), "all know its rack")
    walk.create("four-racks", 16)
    together = [{1, 4} <= set(replicas) for replicas, _ in walk.replicas("four-racks").values()]
    assert any(together), "they are in one rack no more"
    walk.until(lambda: walk.commit(walk.coordinator(known_to=4), 1) is ErrorCode.NONE, "a commit")


def test_a_replica_is_moved_while_another_broker_is_down_which_comes_back_with_an_empty_disk(walk: Walk) -> None:
    walk.create("moved", replicas=[[1, 2, 3]])
    walk.cluster.brokers[2].kill()
    walk.until(lambda: set(walk.replicas("moved")[0][1]) == {1, 3}, "broker 2 is gone")
    plan = {"version": 1, "partitions": [{"topic": "moved", "partition": 0, "replicas": [4, 2, 3]}]}
    walk.cli.out("cluster", "reassign", "apply", "-", "--wait", stdin=json.dumps(plan).encode())
    assert walk.replicas("moved") == {0: ([4, 2, 3], [4, 3])}
    walk.cluster.start_with_empty_disk(2)
    walk.until(lambda: len(walk.replicas("moved")[0][1]) == 3, "broker 2 is in sync")


def test_the_zookeeper_servers_are_replaced_one_by_one(walk: Walk) -> None:
    for member in walk.cluster.ensemble.servers:
        walk.cluster.replace_member(member)
        walk.load.until_acknowledged(20)
        walk.create(f"after-{member}")


def test_a_coordinator_that_was_paused_beyond_its_session_answers_no_offset_of_before(walk: Walk) -> None:
    walk.until(lambda: walk.commit(walk.coordinator(known_to=3), 10) is ErrorCode.NONE, "a commit")
    paused = walk.coordinator(known_to=3)
    other = next(node for node in walk.cluster.nodes if node != paused)
    wires = [walk.wire(paused) for _ in range(5)]
    topics = [{"name": TOPIC, "partition_indexes": [0]}]
    for wire in wires:
        assert (
            wire.call("offset_fetch", 7, group_id=GROUP, topics=topics)["topics"][0]["partitions"][0][
                "committed_offset"
            ]
            == 10
        )
    process = walk.cluster.brokers[paused].process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    try:
        walk.until(lambda: walk.coordinator(known_to=other) not in {paused, -1}, "another coordinator")
        walk.until(lambda: walk.commit(walk.coordinator(known_to=other), 20) is ErrorCode.NONE, "another commit")
        asked = [
            (wire, wire.send("offset_fetch", 7, group_id=GROUP, topics=topics)) for wire in wires for _ in range(20)
        ]
    finally:
        process.send_signal(signal.SIGCONT)
    for wire, request in asked:
        answer = wire.receive("offset_fetch", 7, request)
        assert answer["error_code"] == ErrorCode.NOT_COORDINATOR, answer
    for wire in wires:
        wire.close()


def test_a_topic_whose_nodes_were_changed_by_hand_is_deleted(walk: Walk) -> None:
    walk.create("changed", 3)
    client = KazooClient(walk.cluster.ensemble.address)
    client.start()
    try:
        for partition in range(3):
            path = f"/ottla/brokers/topics/changed/partitions/{partition}/state"
            client.set(path, client.get(path)[0])
        walk.cli.out("topic", "delete", "changed", "--yes")
        walk.until(lambda: client.exists("/ottla/brokers/topics/changed") is None, "it is deleted")
    finally:
        client.stop()
        client.close()
    walk.until(lambda: not walk.replicas("changed"), "its deletion is known")


def test_nothing_acknowledged_was_lost_or_doubled(walk: Walk) -> None:
    walk.load.stop()
    assert walk.load.verify() >= walk.load.acknowledged
    walk.load = ClusterLoad(
        walk.cluster.bootstrap, TOPIC, partitions=PARTITIONS, producers=1, rate=200, first=9
    ).start()
