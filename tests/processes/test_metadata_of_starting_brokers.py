"""A broker that starts answers nothing before it knows the cluster and is known in it: Metadata polled every 10 ms.

`make restart-kills KILLS=20` runs more restarts.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from tests.processes.test_start_and_stop import make_topic
from tests.support.metadata_poll import MetadataPoll
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import NotReady, descendants, free_port, until
from tests.support.real_zookeeper import running_zookeeper
from tests.support.wire_client import Wire
from tests.support.workers_process import WorkersProcess
from tests.support.zookeeper_cluster import ZooKeeperCluster, running_cluster

KILLS = int(os.environ.get("OTTLA_RESTART_KILLS", "2"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0)]


def test_one_broker_never_answers_metadata_without_brokers(tmp_path: Path) -> None:
    server = OttlaProcess(tmp_path).start()
    with Wire(server.port) as wire:
        make_topic(wire, "t", partitions=3)
    with MetadataPoll([server.port], "t") as poll:
        for _ in range(KILLS):
            server.kill()
            server.start()
            poll.until_answered()
            server.restart()
            poll.until_answered()
    server.stop()
    assert not poll.faults
    server.assert_log_is_clean()


def test_workers_never_answer_metadata_without_brokers(tmp_path: Path) -> None:
    service = WorkersProcess(tmp_path, workers=2, port=free_port()).start()
    ports = [int(address.rpartition(":")[2]) for address in service.bootstrap.split(",")]
    with Wire(ports[0]) as wire:
        make_topic(wire, "t", partitions=3)
    with MetadataPoll(ports, "t") as poll:
        for round_number in range(KILLS):
            killed = service.kill_worker(1 + round_number % 2)
            until(lambda: killed not in descendants(service.pid), what="the end of the worker")  # noqa: B023
            poll.until_answered()
            service.stop()
            service.start()
            poll.until_answered()
    service.stop()
    assert not poll.faults


@pytest.mark.external
@pytest.mark.xdist_group("cluster")
def test_brokers_of_a_cluster_never_answer_metadata_without_brokers(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        with Wire(cluster.brokers[1].port) as wire:
            new = {"name": "t", "num_partitions": 3, "replication_factor": 3}
            assert wire.call("create_topics", 5, topics=[new], timeout=10_000)["topics"][0]["error_code"] == 0
        until(lambda: all(knows(port, "t") for port in cluster.ports), what="the topic on every broker")
        with MetadataPoll(cluster.ports, "t") as poll:
            for round_number in range(KILLS):
                restart(cluster, round_number)
                poll.until_answered()
        cluster.stop()
        assert not poll.faults
        for broker in cluster.brokers.values():
            broker.assert_log_is_clean()


def knows(port: int, topic: str) -> bool:
    with Wire(port) as wire:
        answer = wire.call("metadata", 9, topics=[{"name": topic}], allow_auto_topic_creation=False)
    return bool(answer["topics"][0]["error_code"] == 0)


def restart(cluster: ZooKeeperCluster, round_number: int) -> None:
    """All brokers killed, one stopped, one killed, all stopped, in turn."""
    one = [1 + round_number // 4 % 3]
    match round_number % 4:
        case 0:
            cluster.kill()
            cluster.start()
        case 1:
            cluster.stop(one)
            cluster.start(one)
        case 2:
            cluster.kill(one)
            cluster.start(one)
        case _:
            cluster.stop()
            cluster.start()


@pytest.mark.external
def test_a_start_says_what_it_waits_for_and_refuses_connections_until_then(tmp_path: Path) -> None:
    with running_zookeeper(tmp_path / "zookeeper", tick_ms=1000) as zookeeper:
        settings = {"zookeeper.connect": zookeeper.address, "zookeeper.session.timeout.ms": "4000"}
        options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
        server = OttlaProcess(tmp_path / "broker", options=options).start()
        server.kill()
        server.start()  # the session of the killed run expires first
        reason = "the session of the earlier run of broker 1 has to expire first"
        begun = f"waiting for this broker's registration: {reason}"
        assert begun in server.log
        assert "s for this broker's registration" in server.log.partition(begun)[2]
        server.kill()
        zookeeper.pause()
        try:
            with pytest.raises(NotReady):
                server.start(timeout_s=3)
            assert f"waiting for ZooKeeper at {zookeeper.address}" in server.log
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", server.port), timeout=5)
            began = time.monotonic()
            server.stop()
            assert time.monotonic() - began < 10, "SIGTERM does not wait for ZooKeeper"
        finally:
            zookeeper.resume()
