"""Coordinators of three brokers: transactions over partitions of all brokers, and coordinators that move."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ottla.client.cluster import Cluster
from ottla.client.groups import OffsetAndMetadata, committed_offsets
from ottla.client.offsets import list_offsets
from ottla.client.transactions import GroupMetadata, TransactionalProducer
from ottla.core.clock import SystemClock
from ottla.core.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition
from ottla.internal_topics.partitioning import partition_of
from tests.support.cluster import InProcessCluster, with_cluster

ALONE = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
NODES = (1, 2, 3)
PARTITIONS = (0, 1, 2)


async def create(cluster: InProcessCluster, topic: str, *, partitions: int = 3, factor: int = 1) -> None:
    controller = cluster.services(cluster.controller).controller
    await controller.create_topic(topic, partitions=partitions, replication_factor=factor)
    await cluster.known_everywhere(topic)


def leader_of(cluster: InProcessCluster, topic: str, partition: int) -> int:
    """Return the leader that the controller's broker knows."""
    found = cluster.services(cluster.controller).cluster.current.partition(topic, partition)
    assert found is not None
    return found.leader


async def names_by_coordinator(cluster: InProcessCluster, topic: str, key_type: int) -> dict[int, str]:
    """Return for each broker a key that it coordinates; the topic is created with the first one."""
    async with await cluster.client() as client:
        await client.retrying(lambda: client.coordinator("first", key_type=key_type))
    await cluster.known_everywhere(topic)
    names: dict[int, str] = {}
    for number in range(100):
        name = f"{topic.strip('_')}-{number}"
        names.setdefault(leader_of(cluster, topic, partition_of(name, 3)), name)
    assert set(names) == set(NODES)
    return names


async def committed_ends(client: Cluster, topic: str) -> list[int]:
    """Return the last stable offset of each partition."""
    wanted = {TopicPartition(topic, index): -1 for index in PARTITIONS}
    found = await list_offsets(client, wanted, read_committed=True)
    return [found[where].offset for where in wanted]


def test_any_broker_finds_the_coordinator_and_the_others_refuse(tmp_path: Path) -> None:
    async def scenario(cluster: InProcessCluster) -> None:
        names = await names_by_coordinator(cluster, OFFSETS_TOPIC, 0)
        for node_id in NODES:
            async with await cluster.client(node_id) as client:
                for coordinator, name in names.items():
                    assert await client.coordinator(name) == coordinator

    with_cluster(tmp_path, scenario, options=ALONE)


def test_a_transaction_spans_partitions_and_groups_of_all_brokers(tmp_path: Path) -> None:
    async def scenario(cluster: InProcessCluster) -> None:
        await create(cluster, "web")
        assert {leader_of(cluster, "web", index) for index in PARTITIONS} == set(NODES)
        groups = await names_by_coordinator(cluster, OFFSETS_TOPIC, 0)
        ids = await names_by_coordinator(cluster, TRANSACTIONS_TOPIC, 1)
        async with await cluster.client() as client:
            expected = 0
            for number, (name, first_version) in enumerate((name, v) for name in ids.values() for v in (False, True)):
                producer = TransactionalProducer(client, name, clock=SystemClock(), first_version=first_version)
                async with producer:
                    for is_committed in (True, False):
                        producer.begin()
                        for partition in PARTITIONS:
                            await (await producer.send("web", value=b"v", partition=partition))
                        offset = OffsetAndMetadata(10 * number + 1 + (not is_committed), -1, "")
                        for group_id in groups.values():
                            await producer.send_offsets(GroupMetadata(group_id), {TopicPartition("web", 0): offset})
                        await (producer.commit() if is_committed else producer.abort())
                        expected += 2  # a record and a marker
                for _ in range(200):
                    if await committed_ends(client, "web") == [expected] * 3:
                        break
                    await asyncio.sleep(0.02)
                assert await committed_ends(client, "web") == [expected] * 3
                for group_id in groups.values():
                    found = await committed_offsets(client, group_id)
                    assert found[TopicPartition("web", 0)].offset == 10 * number + 1

    with_cluster(tmp_path, scenario, options=ALONE)
