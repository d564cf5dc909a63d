"""Coordinators of three brokers with three replicas each: one is killed, another takes over and has lost nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ottla.client.cluster import Cluster
from ottla.client.groups import commit_offsets, committed_offsets
from ottla.core.errors import KafkaError
from ottla.core.ids import OFFSETS_TOPIC, TopicPartition
from ottla.internal_topics.partitioning import partition_of
from tests.support.cluster import InProcessCluster, with_cluster
from tests.unit.broker.test_moving_coordinators import create, leader_of, names_by_coordinator

pytestmark = pytest.mark.filterwarnings("ignore:coroutine 'handle' was never awaited:RuntimeWarning")
"""A killed broker does not run the requests that it has just received."""

REPLICATED = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "min.insync.replicas": "2",
}
WEB = TopicPartition("web", 0)


def with_replicas(path: Path, scenario: Callable[[InProcessCluster], Awaitable[None]]) -> None:
    with_cluster(path, scenario, options=REPLICATED, seconds=90)


async def in_sync(cluster: InProcessCluster, topic: str) -> None:
    """Wait until all running brokers are in sync on a topic."""

    def is_in_sync() -> bool:
        found = cluster.services(cluster.controller).cluster.current.topics[topic]
        return all(len(partition.isr) == len(cluster.brokers) for partition in found.partitions)

    await cluster.until(is_in_sync, seconds=30)


class Committer:
    """Commits growing offsets of one group, and remembers the last one that was acknowledged."""

    def __init__(self, client: Cluster, group_id: str) -> None:
        self.client, self.group_id = client, group_id
        self.next = self.acknowledged = 0
        self.is_stopping = False

    async def run(self) -> None:
        while not self.is_stopping:
            self.next += 1
            await commit_offsets(self.client, self.group_id, {WEB: self.next})
            self.acknowledged = self.next

    async def committed(self) -> int:
        found = await committed_offsets(self.client, self.group_id)
        return found[WEB].offset

    async def advance(self, count: int = 20) -> None:
        """Wait for more acknowledged commits."""
        target = self.acknowledged + count
        async with asyncio.timeout(30):
            while self.acknowledged < target:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


def test_no_commit_is_lost_when_its_coordinator_is_killed_again_and_again(tmp_path: Path) -> None:
    async def scenario(cluster: InProcessCluster) -> None:
        await create(cluster, "web", factor=3)
        groups = list((await names_by_coordinator(cluster, OFFSETS_TOPIC, 0)).values())
        await in_sync(cluster, OFFSETS_TOPIC)
        async with await cluster.client() as client:
            committers = [Committer(client, group_id) for group_id in groups]
            running = [asyncio.create_task(committer.run()) for committer in committers]
            for killed in (1, 2, 3):
                await asyncio.gather(*(committer.advance() for committer in committers))
                before = [committer.acknowledged for committer in committers]
                await cluster.kill(killed)
                for committer, acknowledged in zip(committers, before, strict=True):
                    assert await committer.committed() >= acknowledged
                await asyncio.gather(*(committer.advance() for committer in committers))
                await cluster.restart(killed)
                await in_sync(cluster, OFFSETS_TOPIC)
            for committer in committers:
                committer.is_stopping = True
            await asyncio.gather(*running)
            for committer in committers:
                assert await committer.committed() == committer.acknowledged

    with_replicas(tmp_path, scenario)


def test_a_group_has_one_coordinator_which_is_the_leader_after_a_kill(tmp_path: Path) -> None:
    async def scenario(cluster: InProcessCluster) -> None:
        await create(cluster, "web", factor=3)
        names = await names_by_coordinator(cluster, OFFSETS_TOPIC, 0)
        await in_sync(cluster, OFFSETS_TOPIC)
        group_id = names[2]
        async with await cluster.client(1, 3) as client:
            await commit_offsets(client, group_id, {WEB: 7})
            await cluster.kill(2)
            found = await committed_offsets(client, group_id)
            assert found[WEB].offset == 7
            leader = leader_of(cluster, OFFSETS_TOPIC, partition_of(group_id, 3))
            assert leader in {1, 3}
            assert await client.coordinator(group_id) == leader
            (other,) = {1, 3} - {leader}
            try:
                cluster.services(other).coordinators.groups.fetch(group_id)
            except KafkaError as error:
                assert error.code.name == "NOT_COORDINATOR"  # noqa: PT017
            else:
                raise AssertionError("two coordinators")

    with_replicas(tmp_path, scenario)
