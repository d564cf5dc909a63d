"""A cluster in which the disk of one broker is full: the others go on, and it comes back when there is space."""

from __future__ import annotations

import asyncio

import pytest

from ottla.client.producer import Producer
from ottla.core.errors import ErrorCode
from ottla.core.ids import TopicPartition
from ottla.testing.cluster import TestCluster
from ottla.wire.generated.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from ottla.wire.generated.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.unit.broker.test_replicated_topic import TP, create, equal_replicas, in_sync, leader_of, read, replica, send

pytestmark = pytest.mark.simulated_time

SOON_S = 10
"""The cluster goes on after so long at most; `replica.lag.time.max.ms` and the producers' patience are longer."""

PATIENT = {"replica.lag.time.max.ms": "300000", "log.retention.ms": "-1"}  # the records are old


def fill(cluster: TestCluster, node_id: int) -> None:
    cluster.fill_disk(node_id)


def isr(cluster: TestCluster, node_id: int, tp: TopicPartition = TP) -> set[int]:
    partition = cluster.services(node_id).cluster.current.partition(*tp)
    assert partition is not None
    return set(partition.isr)


async def free(cluster: TestCluster, node_id: int) -> None:
    """Give a disk free space, and wait until the broker counts as a replica again."""
    cluster.free_disk(node_id)
    await in_sync(cluster, 3)


@pytest.mark.options(PATIENT)
async def test_a_leader_on_a_full_disk_hands_over_and_comes_back_when_there_is_space(cluster: TestCluster) -> None:
    await create(cluster)
    await send(cluster, range(10))
    full = leader_of(cluster)
    fill(cluster, full)
    async with asyncio.timeout(SOON_S):
        await send(cluster, range(10, 20))  # the producer repeats what is refused
    await cluster.until(lambda: leader_of(cluster) not in {-1, full})
    assert isr(cluster, full) == {1, 2, 3} - {full}
    await free(cluster, full)
    await send(cluster, range(20, 30))
    assert await read(cluster, 30) == list(range(30))
    await equal_replicas(cluster, 30)


@pytest.mark.options(PATIENT)
async def test_a_follower_on_a_full_disk_leaves_the_isr_at_once_and_comes_back_when_there_is_space(
    cluster: TestCluster,
) -> None:
    await create(cluster)
    await send(cluster, range(10))
    leader = leader_of(cluster)
    full = next(iter({1, 2, 3} - {leader}))
    fill(cluster, full)
    async with asyncio.timeout(SOON_S):
        await send(cluster, range(10, 20))
    await in_sync(cluster, 2)
    assert leader_of(cluster) == leader
    assert full not in isr(cluster, leader)
    await free(cluster, full)
    await equal_replicas(cluster, 20)


async def test_without_another_replica_in_sync_the_leader_stays_and_accepts_records_when_there_is_space(
    cluster: TestCluster,
) -> None:
    await create(cluster, factor=1)
    full = leader_of(cluster)
    fill(cluster, full)
    async with await cluster.client() as client, Producer(client, clock=cluster.clock) as producer:
        sent = await producer.send("web", partition=0, value=b"1", timestamp_ms=1)
        await cluster.until(lambda: replica(cluster, full).log.health.is_full)
        assert leader_of(cluster) == full
        cluster.free_disk(full)
        assert (await sent).offset == 0


@pytest.mark.options(PATIENT)
async def test_a_full_follower_takes_over_the_log_start_and_frees_its_disk(cluster: TestCluster) -> None:
    await create(cluster, configs={"segment.bytes": "1048576"})
    await send(cluster, range(10))
    leader = leader_of(cluster)
    full = next(iter({1, 2, 3} - {leader}))
    fill(cluster, full)
    async with asyncio.timeout(SOON_S):
        await send(cluster, range(10, 20))
    await cluster.until(lambda: replica(cluster, full).log.health.is_full)
    asked = DeleteRecordsPartition(partition_index=0, offset=5)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="web", partitions=[asked])], timeout_ms=8000)
    answer = await cluster.handlers(leader).call("delete_records", 2, request)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
    assert replica(cluster, full).log.log_start_offset == 5
    await free(cluster, full)


@pytest.mark.options(PATIENT)
async def test_a_group_whose_coordinator_has_a_full_disk_commits_at_another_one(cluster: TestCluster) -> None:
    await create(cluster)
    offsets = TopicPartition("__consumer_offsets", 0)
    controller = cluster.services(cluster.controller).controller
    await controller.create_topic("__consumer_offsets", partitions=3, replication_factor=3)
    await cluster.known_everywhere("__consumer_offsets")
    group = next(f"group-{n}" for n in range(100) if _partition_of(f"group-{n}") == 0)

    async def committed_by() -> int:
        """Commit an offset as a client does, which tries again; return the coordinator that took it."""
        topic = OffsetCommitRequestTopic(
            name="web", partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
        )
        request = OffsetCommitRequest(group_id=group, topics=[topic])
        async with asyncio.timeout(SOON_S):
            while True:
                coordinator = leader_of(cluster, offsets)
                if coordinator >= 0:
                    answer = await cluster.handlers(coordinator).call("offset_commit", 8, request)
                    if not answer.topics[0].partitions[0].error_code:
                        return coordinator
                await asyncio.sleep(0.05)

    full = await committed_by()
    fill(cluster, full)
    assert await committed_by() != full


def _partition_of(group: str) -> int:
    """The partition of __consumer_offsets of a group, of three."""
    code = 0
    for char in group.encode():
        code = (31 * code + char) & 0xFFFFFFFF
    return (code & 0x7FFFFFFF) % 3


@pytest.mark.brokers(1)
@pytest.mark.directories(2)
async def test_a_full_directory_of_several_stops_only_its_own_partitions(cluster: TestCluster) -> None:
    await create(cluster, partitions=2, factor=1)
    own = {index: replica(cluster, 1, TopicPartition("web", index)) for index in (0, 1)}
    assert len({each.log.health for each in own.values()}) == 2
    cluster.fill_disk(1, own[0].log.directory.parent)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await send(cluster, range(1), TopicPartition("web", 0))
    assert own[0].log.health.is_full
    async with asyncio.timeout(SOON_S):
        assert await send(cluster, range(5), TopicPartition("web", 1)) == list(range(5))
    cluster.free_disk(1)
