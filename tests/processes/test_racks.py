"""Brokers with `broker.rack`: groups of both kinds, a restart, and one more broker with a rack."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.support.ottla_process import OttlaProcess
from tests.support.processes import until
from tests.support.real_zookeeper import running_zookeeper
from tests.support.wire_client import Wire

COORDINATOR_LOAD_IN_PROGRESS = 14


def create(wire: Wire, name: str, **more: int) -> None:
    topic = {"name": name, "num_partitions": 2, "replication_factor": 1, **more}
    assert wire.call("create_topics", 5, topics=[topic], timeout=30_000)["topics"][0]["error_code"] == 0


def coordinator_of(wire: Wire, group_id: str) -> int:
    """The port of the group's coordinator, once there is one."""
    found: dict[str, int] = {}

    def is_found() -> bool:
        found.update(wire.call("find_coordinator", 4, key_type=0, coordinator_keys=[group_id])["coordinators"][0])
        return found["error_code"] == 0

    until(is_found, what="a coordinator")
    return found["port"]


def join_by_server_side_assignment(wire: Wire, group_id: str) -> set[int]:
    """Join the group as its only member (KIP-848); returns the partitions that it is assigned."""
    member_id, epoch, assigned = str(uuid.uuid4()), 0, set[int]()

    def is_assigned() -> bool:
        nonlocal epoch
        answer = wire.call(
            "consumer_group_heartbeat",
            1,
            group_id=group_id,
            member_id=member_id,
            member_epoch=epoch,
            rebalance_timeout=60_000 if epoch == 0 else -1,
            subscribed_topic_names=["web"] if epoch == 0 else None,
            topic_partitions=[] if epoch == 0 else None,
        )
        assert answer["error_code"] in {0, 14, 15, 16}, answer
        if answer["error_code"] == 0:
            epoch = answer["member_epoch"]
            for topic in (answer["assignment"] or {"topic_partitions": []})["topic_partitions"]:
                assigned.update(topic["partitions"])
        return bool(assigned)

    until(is_assigned, what="an assignment")
    return assigned


def commit(wire: Wire, group_id: str, offset: int) -> None:
    part = {"partition_index": 0, "committed_offset": offset}
    topics = [{"name": "web", "partitions": [part]}]

    def error_code() -> int:
        answer = wire.call("offset_commit", 8, group_id=group_id, topics=topics)
        return int(answer["topics"][0]["partitions"][0]["error_code"])

    while (code := error_code()) == COORDINATOR_LOAD_IN_PROGRESS:  # as in committed()
        pass
    assert code == 0


def committed(wire: Wire, group_id: str) -> int:
    groups = [{"group_id": group_id, "topics": [{"name": "web", "partition_indexes": [0]}]}]
    answer = wire.call("offset_fetch", 8, groups=groups)["groups"][0]
    while answer["error_code"] == COORDINATOR_LOAD_IN_PROGRESS:  # the partitions of all groups load one by one
        answer = wire.call("offset_fetch", 8, groups=groups)["groups"][0]
    assert answer["error_code"] == 0
    offset: int = answer["topics"][0]["partitions"][0]["committed_offset"]
    return offset


@pytest.mark.slow
def test_a_broker_with_a_rack_coordinates_groups_and_starts_again_with_their_offsets(tmp_path: Path) -> None:
    server = OttlaProcess(tmp_path, options=["-o", "broker.rack=r1"]).start()
    with Wire(server.port) as wire:
        create(wire, "web")
        assert coordinator_of(wire, "classic") == server.port
        commit(wire, "classic", 7)
        assert join_by_server_side_assignment(wire, "modern") == {0, 1}
    server.restart()
    with Wire(server.port) as wire:
        assert coordinator_of(wire, "classic") == server.port
        assert committed(wire, "classic") == 7
        assert join_by_server_side_assignment(wire, "modern-2") == {0, 1}
    assert server.stop() == 0
    server.assert_log_is_clean()


def brokers_known_by(server: OttlaProcess) -> int:
    with Wire(server.port) as wire:
        return len(wire.call("metadata", 9, topics=[])["brokers"])


@pytest.mark.slow
@pytest.mark.external
@pytest.mark.xdist_group("cluster")
def test_a_fourth_broker_with_a_rack_joins_a_cluster_with_groups(tmp_path: Path) -> None:
    with running_zookeeper(tmp_path / "zookeeper") as zookeeper:
        servers = []
        for node in range(1, 5):
            settings = (f"node.id={node}", f"broker.rack=r{node}", f"zookeeper.connect={zookeeper.address}")
            options = [text for setting in settings for text in ("-o", setting)]
            servers.append(OttlaProcess(tmp_path / f"broker-{node}", options=options))
        *first, fourth = servers
        for server in first:
            server.start()
        until(lambda: all(brokers_known_by(server) == 3 for server in first), what="a view of three brokers")
        with Wire(first[0].port) as wire:
            create(wire, "web", replication_factor=3)
            port = coordinator_of(wire, "classic")
        with Wire(port) as wire:
            commit(wire, "classic", 7)
        fourth.start()
        until(lambda: all(brokers_known_by(server) == 4 for server in servers), what="a view of four brokers")
        for server in servers:
            with Wire(server.port) as wire:
                assert coordinator_of(wire, "classic") == port
                coordinator = coordinator_of(wire, f"modern-{server.port}")
            with Wire(coordinator) as wire:
                assert join_by_server_side_assignment(wire, f"modern-{server.port}") == {0, 1}
        with Wire(port) as wire:
            assert committed(wire, "classic") == 7
        for server in servers:
            assert server.stop() == 0
            server.assert_log_is_clean()
