"""Clusters of tests, on real and on simulated machines: what they keep over restarts, and what a kill leaves."""

from __future__ import annotations

import asyncio

import pytest

from ottla.client.producer import Producer
from ottla.core.files import FileSystem, SystemFiles
from ottla.core.ids import TopicPartition
from ottla.testing.cluster import BrokerHandlers, TestCluster
from ottla.testing.real_machine import RealMachines
from ottla.wire.generated.metadata import MetadataRequest

TP = TopicPartition("orders", 1)
KINDS = pytest.mark.parametrize(
    "kind",
    [
        pytest.param("simulated", marks=pytest.mark.simulated_time),
        pytest.param("real", marks=pytest.mark.real_time("its sockets are the system's")),
    ],
)


async def send(cluster: TestCluster, count: int) -> None:
    async with await cluster.client() as client, Producer(client, clock=cluster.clock) as producer:
        for _ in range(count):
            sent = await producer.send(TP.topic, partition=TP.partition, value=b"x", timestamp_ms=1)
            await sent


def end_of(cluster: TestCluster, node_id: int) -> int:
    return cluster.services(node_id).replicas.partition(TP).high_watermark


@KINDS
async def test_a_killed_broker_is_gone_and_comes_back_with_its_records_at_its_port(
    cluster: TestCluster, kind: str
) -> None:
    await cluster.create_topic(TP.topic, 4)
    await send(cluster, 5)
    ports = dict(cluster.ports)
    await cluster.kill(2)
    assert sorted(cluster.brokers) == [1, 3]
    assert f":{ports[2]}" not in cluster.bootstrap or kind == "simulated"
    await cluster.until(lambda: 2 not in cluster.services(1).cluster.current.brokers)
    await cluster.restart(2)
    assert cluster.ports == ports
    await cluster.until(lambda: end_of(cluster, 2) == 5)


@KINDS
async def test_a_killed_broker_is_alive_for_the_store_until_its_session_expires(
    cluster: TestCluster, kind: str
) -> None:
    other = next(node_id for node_id in cluster.brokers if node_id != cluster.controller)
    await cluster.kill(other, session_expires=False)
    await asyncio.sleep(0.1 if kind == "real" else 60)
    assert other in cluster.services(cluster.controller).cluster.current.brokers
    await cluster.expire(other)
    await cluster.until(lambda: other not in cluster.services(cluster.controller).cluster.current.brokers)


@KINDS
@pytest.mark.brokers(1)
async def test_a_full_disk_refuses_records_until_it_has_space(cluster: TestCluster, kind: str) -> None:
    await cluster.create_topic(TP.topic, 2)
    cluster.fill_disk(1)
    sending = asyncio.create_task(send(cluster, 1))
    await cluster.until(lambda: cluster.services(1).replicas.partition(TP).log.health.is_full)
    assert not sending.done()
    cluster.free_disk(1)
    await sending
    assert end_of(cluster, 1) == 1


@KINDS
async def test_a_broker_alone_keeps_its_metadata_over_restarts_and_needs_no_replicas(
    broker: BrokerHandlers, kind: str
) -> None:
    await broker.cluster.create_topic("kept")
    await broker.restart()
    answer = await broker.call("metadata", 12, MetadataRequest(topics=None))
    assert [topic.name for topic in answer.topics] == ["kept"]
    assert broker.services.has_own_store


async def test_real_sockets_serve_disks_in_memory() -> None:
    async with TestCluster(RealMachines()) as cluster:
        await cluster.start(1, topics={TP.topic: 2})
        await send(cluster, 3)
        await cluster.stop(1)
        files: FileSystem = cluster.files(1)
        assert str(TP) in files.names_in(cluster.paths(1)[0])
        assert not SystemFiles().exists(cluster.paths(1)[0])
        await cluster.restart(1)
        assert end_of(cluster, 1) == 3


async def test_a_port_is_kept_for_a_broker_that_is_down() -> None:
    async with TestCluster(RealMachines()) as cluster:
        await cluster.start(1)
        port = cluster.ports[1]
        await cluster.stop(1)
        with pytest.raises(OSError, match="in use"):
            await asyncio.start_server(lambda *_: None, "127.0.0.1", port, reuse_address=False)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        await cluster.restart(1)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()


@pytest.mark.simulated_time
async def test_minutes_of_heartbeats_pass_at_once(cluster: TestCluster) -> None:
    before = cluster.clock.wall_ms()
    await asyncio.sleep(300)
    assert cluster.clock.wall_ms() - before == 300_000
    assert len(cluster.services(1).cluster.current.brokers) == 3
