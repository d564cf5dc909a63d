"""Models one replicated partition of an internal topic on several nodes, for simulations of coordinators that move.

Followers copy from the leader that they know, a moment later, and truncate what differs. The high watermark of the
leader is the smallest end of all nodes; a follower knows it later. Nodes learn of a new leader at different times: an
old leader may still accept writes, which never pass its high watermark.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

from ottla.core.errors import FencedLeaderEpoch, NotLeaderOrFollower, UnknownLeaderEpoch
from ottla.internal_topics.topic_log import AppendedBatch, KeyValue, LoadedRecords, ProducerIdentity

ANY_EPOCH = -1


class Batch(NamedTuple):
    """Holds one batch of the log."""

    leader_epoch: int
    base_offset: int
    records: tuple[KeyValue, ...]

    @property
    def next_offset(self) -> int:
        """Return the offset after it."""
        return self.base_offset + len(self.records)


class Replica:
    """Implements `TopicLog` of one partition on one node."""

    partitions = 1

    def __init__(self, node_id: int, rng: random.Random) -> None:
        self.node_id, self._rng = node_id, rng
        self.batches: list[Batch] = []
        self.hw = 0
        self.leader, self.known_epoch = -1, -1
        self.positions: dict[int, int] = {}  # as leader: how far each follower has fetched in this term
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def end(self) -> int:
        """Return the end of this node's log."""
        return self.batches[-1].next_offset if self.batches else 0

    # ---- The port

    def is_offline(self, partition: int) -> bool:
        return False

    def leader_epoch(self, partition: int) -> int:
        if self.leader != self.node_id:
            raise NotLeaderOrFollower
        return self.known_epoch

    def check_epoch(self, leader_epoch: int) -> None:
        """Refuse what is not of this node's term."""
        known = self.leader_epoch(0)
        if leader_epoch not in (ANY_EPOCH, known):
            raise FencedLeaderEpoch if leader_epoch < known else UnknownLeaderEpoch

    def end_offset(self, partition: int) -> int:
        return self.end

    def delete_records(self, partition: int, before_offset: int, *, leader_epoch: int) -> None:
        self.check_epoch(leader_epoch)

    async def append(
        self,
        partition: int,
        records: Sequence[KeyValue],
        producer: ProducerIdentity | None = None,
        *,
        leader_epoch: int,
    ) -> AppendedBatch:
        is_large = self._rng.random() < 0.05  # it is built in a thread, on a busy machine
        await asyncio.sleep(self._rng.random() * (6 if is_large else 0.02))
        self.check_epoch(leader_epoch)
        batch = Batch(self.known_epoch, self.end, tuple(records))
        self.batches.append(batch)
        return AppendedBatch(batch.base_offset, batch.next_offset, self._replicated(batch.next_offset))

    async def read_all(self, partition: int, end_offset: int) -> AsyncIterator[LoadedRecords]:
        for batch in list(self.batches):
            if batch.next_offset > end_offset:
                return
            if self._rng.random() < 0.05:
                await asyncio.sleep(self._rng.random() * 0.2)
            yield LoadedRecords(batch.records, base_offset=batch.base_offset)

    async def wait_until_replicated(self, partition: int, end_offset: int, *, leader_epoch: int) -> None:
        self.check_epoch(leader_epoch)
        await self._replicated(end_offset)

    def _replicated(self, end_offset: int) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if end_offset <= self.hw:
            done.set_result(None)
        else:
            self._waiters.append((end_offset, done))
        return done

    # ---- Replication

    def learn(self, leader: int, epoch: int) -> None:
        """Follow a decision of the controller, unless a newer one is known."""
        if epoch <= self.known_epoch:
            return
        is_contiguous = leader == self.leader == self.node_id and epoch == self.known_epoch + 1
        self.leader, self.known_epoch = leader, epoch
        self.positions = {}
        if not is_contiguous:
            waiters, self._waiters = self._waiters, []
            for _, waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(NotLeaderOrFollower())
                    waiter.exception()

    def fetch_from(self, leader: Replica, nodes: int) -> None:
        """Copy what the leader has, if both are in the same term."""
        if leader is self or leader.leader != leader.node_id or leader.known_epoch != self.known_epoch:
            return
        common = 0
        while common < min(len(self.batches), len(leader.batches)) and self.batches[common] == leader.batches[common]:
            common += 1
        del self.batches[common:]
        leader.positions[self.node_id] = self.end
        leader.advance(nodes)
        self.batches += leader.batches[common : common + 3]
        self.hw = min(leader.hw, self.end)

    def advance(self, nodes: int) -> None:
        """Move the high watermark: a follower that has not fetched in this term is unknown."""
        if len(self.positions) < nodes - 1:
            return
        self.hw = max(self.hw, min(self.end, *self.positions.values()))
        reached = [waiter for offset, waiter in self._waiters if offset <= self.hw]
        self._waiters = [(offset, waiter) for offset, waiter in self._waiters if offset > self.hw]
        for waiter in reached:
            if not waiter.done():
                waiter.set_result(None)


class ReplicatedTopic:
    """Holds the replicas and elects leaders. `follow(node_id, leader, epoch)` is called when a node learns of one."""

    def __init__(self, rng: random.Random, follow: Callable[[int, int, int], None], nodes: Sequence[int]) -> None:
        self._rng, self._follow = rng, follow
        self.replicas = {node_id: Replica(node_id, rng) for node_id in nodes}
        self.leader, self.epoch = -1, -1
        self.slow_s = 0.5
        self.task = asyncio.create_task(self._replicate())

    def elect(self, leader: int, *, unseen_by: int = -1) -> None:
        """Elect a leader. The coordinator of the node `unseen_by` never sees this snapshot, only its replica does."""
        self.epoch += 1
        self.leader = leader
        for node_id in self.replicas:
            delay_s = self._rng.random() * self.slow_s
            is_seen = node_id != unseen_by
            asyncio.get_running_loop().call_later(delay_s, self._learn, node_id, leader, self.epoch, is_seen)

    def _learn(self, node_id: int, leader: int, epoch: int, is_seen: bool) -> None:
        self.replicas[node_id].learn(leader, epoch)
        if is_seen:
            delay_s = self._rng.random() * self.slow_s if self._rng.random() < 0.3 else 0.0
            asyncio.get_running_loop().call_later(delay_s, self._follow, node_id, leader, epoch)

    async def _replicate(self) -> None:
        while True:
            await asyncio.sleep(self._rng.random() * 0.06)
            for replica in self.replicas.values():
                leader = self.replicas.get(replica.leader)
                if leader is not None and self._rng.random() < 0.7:
                    replica.fetch_from(leader, len(self.replicas))
