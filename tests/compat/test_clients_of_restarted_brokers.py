"""Clients of three languages live through "all brokers killed with -9, started again": none of them is lost.

A broker that answered Metadata before it knew the cluster lost librdkafka's clients for ever. `make restart-kills KILLS=20`
runs more restarts.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from ottla.pipeline.jars import JarsNotFound
from tests.support.kafka_jars import kafka_jars
from tests.support.processes import until
from tests.support.restarted_clients import (
    LibrdkafkaClient,
    NoGo,
    ProgramClient,
    RestartedClient,
    go_program,
    java_command,
)
from tests.support.wire_client import Wire
from tests.support.zookeeper_cluster import ZooKeeperCluster, running_cluster

KILLS = int(os.environ.get("OTTLA_RESTART_KILLS", "2"))
TOPIC, PARTITIONS = "numbers", 3
MORE_RECORDS = 20
"""That each client has to send and to read after each restart."""

LIBRDKAFKA_CLIENTS = int(os.environ.get("OTTLA_RESTART_CLIENTS", "6"))
SESSION_TIMEOUT_MS = 4000
"""For so long the brokers that are started have to wait until their earlier registrations have expired."""
ALIVE_S = 120.0

pytestmark = [pytest.mark.external, pytest.mark.slow, pytest.mark.timeout(0), pytest.mark.xdist_group("cluster")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), session_timeout_ms=SESSION_TIMEOUT_MS) as running:
        with Wire(running.brokers[1].port) as wire:
            new = {"name": TOPIC, "num_partitions": PARTITIONS, "replication_factor": 3}
            assert wire.call("create_topics", 5, topics=[new], timeout=10_000)["topics"][0]["error_code"] == 0
        yield running


def live_through_restarts(cluster: ZooKeeperCluster, clients: Sequence[RestartedClient]) -> None:
    """Kill all brokers and start them, until every client has sent and read more; then verify what each has sent."""
    until_more(clients, dict.fromkeys(clients, (0, 0)))
    for _ in range(KILLS):
        cluster.kill()
        before = {client: client.counts() for client in clients}
        cluster.start()
        until_more(clients, before)
    sent = {client.name: client.finish() for client in clients}
    found = values_in(cluster.bootstrap, sum(sent.values()), names=set(sent))
    for name, count in sent.items():
        lost = [number for number in range(count) if f"{name}-{number}" not in found]
        assert not lost, f"{name}: {len(lost)} of {count} acknowledged records are lost, the first is {lost[0]}"
    assert max(found.values()) == 1, f"written twice: {found.most_common(3)}"


def until_more(clients: Sequence[RestartedClient], before: dict[RestartedClient, tuple[int, int]]) -> None:
    def is_alive(client: RestartedClient) -> bool:
        return all(now >= then + MORE_RECORDS for now, then in zip(client.counts(), before[client], strict=True))

    for client in clients:
        until(lambda: is_alive(client), timeout_s=ALIVE_S, what=f"more records of {client.name}")  # noqa: B023


def values_in(bootstrap: str, count: int, *, names: set[str]) -> Counter[str]:
    """Read the topic to its end: how often each value of these clients is in it."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "verification", "enable.partition.eof": False})
    consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
    found: Counter[str] = Counter()
    try:
        ends = {
            index: consumer.get_watermark_offsets(TopicPartition(TOPIC, index), 30)[1] for index in range(PARTITIONS)
        }
        while any(end > 0 for end in ends.values()):
            message = consumer.poll(30)
            assert message is not None, f"{ends} are left to read"
            assert message.error() is None
            value = (message.value() or b"").decode()
            if value.rpartition("-")[0] in names:
                found[value] += 1
            index, offset = message.partition(), message.offset()
            assert index is not None
            assert offset is not None
            if offset + 1 >= ends[index]:
                ends[index] = 0
    finally:
        consumer.close()
    assert found.total() >= count
    return found


def test_librdkafka_lives_through_restarts_of_all_brokers(cluster: ZooKeeperCluster) -> None:
    with contextlib.ExitStack() as stack:
        clients = []
        for number in range(LIBRDKAFKA_CLIENTS):
            one = cluster.brokers[1 + number % 3].bootstrap  # that a client was given one address is no reason to die
            bootstrap = one if number % 2 else cluster.bootstrap
            clients.append(LibrdkafkaClient(f"librdkafka-{number}", bootstrap, TOPIC))
            stack.callback(clients[-1].close)
        live_through_restarts(cluster, clients)


def test_javas_client_lives_through_restarts_of_all_brokers(cluster: ZooKeeperCluster, tmp_path: Path) -> None:
    try:
        jars = kafka_jars()
    except JarsNotFound as error:
        pytest.fail(f"the jars of Kafka could not be fetched: {error}")
    live_with_program("java", java_command(jars), cluster, tmp_path)


def test_a_client_of_go_lives_through_restarts_of_all_brokers(cluster: ZooKeeperCluster, tmp_path: Path) -> None:
    try:
        program = go_program()
    except NoGo as error:
        pytest.skip(str(error))
    live_with_program("go", [str(program)], cluster, tmp_path)


def live_with_program(name: str, command: Sequence[str], cluster: ZooKeeperCluster, directory: Path) -> None:
    client = ProgramClient(name, [*command, cluster.bootstrap, TOPIC, name], directory / f"{name}.err")
    try:
        live_through_restarts(cluster, [client])
    finally:
        client.close()
