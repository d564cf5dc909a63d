"""Groups whose coordinator moves between three nodes in simulated time, over a replicated log with late followers."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import Any, cast

import pytest

from ottla.core.errors import KafkaError
from ottla.core.ids import NO_TOPIC_ID, OFFSETS_TOPIC, TopicPartition
from ottla.groups.config import GroupConfig
from ottla.groups.coordinator import GroupCoordinator
from ottla.groups.machine import Commit
from ottla.groups.offsets import CommittedOffset
from ottla.metadata_store.cluster_view import ClusterView, PartitionView, TopicView
from ottla.testing.sim_loop import SimClock, simulate
from tests.coordinator_schedules.schedules import seeds
from tests.coordinator_schedules.test_groups import Member, committed, settled
from tests.support.replicated_topic import ReplicatedTopic

NODES = (1, 2, 3)
WEB = TopicPartition("web", 0)
ALONE = Commit(member_id="", generation=-1)


class MovingCoordinators:
    """Three brokers' coordinators of one partition. `coordinator` is the one that a client finds."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.owners: dict[tuple[int, TopicPartition], str] = {}
        self.acked: dict[TopicPartition, int] = {}
        self.topic = ReplicatedTopic(rng, self._follow, NODES)
        names = iter(range(1_000_000))
        self.coordinators = {
            node_id: GroupCoordinator(
                GroupConfig(),
                clock=SimClock(),
                log=self.topic.replicas[node_id],
                node_id=node_id,
                new_id=lambda: str(next(names)),
            )
            for node_id in NODES
        }
        self._views = dict.fromkeys(NODES, ClusterView())

    def _follow(self, node_id: int, leader: int, epoch: int) -> None:
        known = self._views[node_id].partition(OFFSETS_TOPIC, 0)
        if known is not None and known.leader_epoch >= epoch:
            return
        part = PartitionView(0, leader, epoch, NODES, NODES, epoch)
        topic = TopicView(OFFSETS_TOPIC, NO_TOPIC_ID, (part,), {}, 0, 0)
        old, new = self._views[node_id], self._views[node_id].with_topics({OFFSETS_TOPIC: topic})
        self._views[node_id] = new
        self.coordinators[node_id].follow(old, new)

    @property
    def coordinator(self) -> GroupCoordinator:
        """Return the coordinator that a client knows: mostly the right one."""
        if self.rng.random() < 0.1:
            return self.coordinators[self.rng.choice(NODES)]
        return self.coordinators[self.topic.leader]

    @property
    def current(self) -> GroupCoordinator:
        """Return the coordinator of the current leader."""
        return self.coordinators[self.topic.leader]

    async def ready(self) -> None:
        """Wait until the current leader's coordinator is loaded."""
        while True:
            try:
                self.current.check_ready("team")
            except KafkaError:
                await asyncio.sleep(0.05)
            else:
                return

    async def close(self) -> None:
        for coordinator in self.coordinators.values():
            await coordinator.close()
        self.topic.task.cancel()


class Committer:
    """Commits growing offsets of a group of its own; nothing that was acknowledged may ever go back."""

    def __init__(self, cluster: MovingCoordinators, group_id: str) -> None:
        self.cluster, self.group_id = cluster, group_id
        self.next = self.acknowledged = self.seen = 0
        self.stop = False

    async def run(self) -> None:
        while not self.stop:
            await asyncio.sleep(self.cluster.rng.random() * 0.2)
            self.next += 1
            number = self.next
            try:
                await self.cluster.coordinator.commit(self.group_id, ALONE, {WEB: CommittedOffset(number)})
            except KafkaError:
                continue
            self.acknowledged = max(self.acknowledged, number)

    async def read(self) -> None:
        """Read from the coordinator of the newest term only: an older one may not know yet that it is replaced."""
        while not self.stop:
            await asyncio.sleep(self.cluster.rng.random() * 0.1)
            topic = self.cluster.topic
            if topic.replicas[topic.leader].known_epoch != topic.epoch:
                continue
            try:
                found = self.cluster.current.fetch(self.group_id).get(WEB)
            except KafkaError:
                continue
            offset = 0 if found is None else found.offset
            assert offset >= self.acknowledged, f"{offset} is read, {self.acknowledged} was acknowledged"
            assert offset >= self.seen, f"{offset} is read after {self.seen}"
            self.seen = max(offset, self.seen)


async def moves(rng: random.Random) -> None:
    cluster = MovingCoordinators(rng)
    cluster.topic.elect(1)
    await cluster.ready()
    committers = [Committer(cluster, "one"), Committer(cluster, "two")]
    members = [Member(cast("Any", cluster)), Member(cast("Any", cluster), "static")]
    working = [asyncio.create_task(each.run()) for each in committers]
    working += [asyncio.create_task(each.read()) for each in committers]
    working += [asyncio.create_task(member.run()) for member in members]
    for _ in range(25):
        await asyncio.sleep(rng.random() * 3)
        match rng.randrange(4):
            case 0:  # the same leader in the next epoch: the ISR changed
                cluster.topic.elect(cluster.topic.leader)
            case 1:  # it goes away and comes back, and its coordinator sees only the last of these snapshots
                home = cluster.topic.leader
                cluster.topic.elect(rng.choice([node for node in NODES if node != home]), unseen_by=home)
                await asyncio.sleep(1 + rng.random())
                cluster.topic.elect(home)
            case _:
                cluster.topic.elect(rng.choice(NODES))
        for task in working:
            if task.done():
                task.result()
    await cluster.ready()
    await settled(cast("Any", _Settling(cluster)), members, within_s=300)
    for member in members:
        member.stop = True
    for each in committers:
        each.stop = True
    for ended in await asyncio.gather(*working, return_exceptions=True):
        if isinstance(ended, AssertionError):
            raise ended
    for each in committers:
        found = cluster.current.fetch(each.group_id).get(WEB)
        assert found is not None
        assert found.offset >= each.acknowledged, f"{found.offset} is read, {each.acknowledged} was acknowledged"
    now = committed(cast("Any", _Settling(cluster)))
    lost = {work: offset for work, offset in cluster.acked.items() if now.get(work, 0) < offset}
    assert not lost, f"acknowledged offsets are lost: {lost}, there is {now}"
    await cluster.close()


class _Settling:
    """Shows the checks of one broker the current coordinator."""

    def __init__(self, cluster: MovingCoordinators) -> None:
        self._cluster = cluster

    @property
    def coordinator(self) -> GroupCoordinator:
        return self._cluster.current


@pytest.mark.parametrize("seed", seeds(30))
def test_nothing_acknowledged_is_lost_while_the_coordinator_moves(seed: int) -> None:
    simulate(partial(moves), seed=seed)
