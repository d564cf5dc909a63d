"""Follows which partitions of an internal topic this broker leads, with one shard of a coordinator for each.

A shard belongs to a partition and a leader epoch. It is kept in the next epoch only if this broker leads in that one
too, and the log ends where the shard's state does; otherwise it is closed and the partition is loaded again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Generic, TypeVar

from ottla.coordination.view import ClusterView
from ottla.core.errors import CoordinatorLoadInProgress, NotCoordinator
from ottla.internal_topics.coordinator_partition import Term
from ottla.internal_topics.partitioning import partition_of
from ottla.internal_topics.shard import CoordinatorShard
from ottla.internal_topics.topic_log import TopicLog

S = TypeVar("S", bound=CoordinatorShard)


class LedPartitions(Generic[S]):
    """Holds the shards of one coordinator. Call `follow` with each new cluster snapshot, and `close` at the end."""

    def __init__(self, topic: str, topic_log: TopicLog, node_id: int, new_shard: Callable[[Term], S]) -> None:
        self.topic = topic
        self._topic_log, self._node_id, self._new_shard = topic_log, node_id, new_shard
        self._shards: dict[int, S] = {}
        self._led: dict[int, int] = {}  # partition -> leader epoch
        self._reloading: set[int] = set()  # partitions whose old shard has writes in flight yet
        self._tasks: dict[asyncio.Task[None], None] = {}

    # ---- Leadership

    def follow(self, old: ClusterView, new: ClusterView) -> None:
        """Load the partitions that this broker now leads, and unload the others."""
        before, now = old.topics.get(self.topic), new.topics.get(self.topic)
        if now is before:
            return
        self._led = (
            {part.index: part.leader_epoch for part in now.partitions if part.leader == self._node_id} if now else {}
        )
        is_another = before is not None and now is not None and before.topic_id != now.topic_id
        for partition, shard in list(self._shards.items()):
            leader_epoch = self._led.get(partition)
            is_same = leader_epoch == shard.leader_epoch and not is_another
            if not is_same and (leader_epoch is None or is_another or not shard.continue_in(leader_epoch)):
                self.resign(partition)
        for partition in sorted(self._led):
            self.lead_again(partition)

    def lead(self, partition: int, leader_epoch: int = 0) -> None:
        """Load a partition that this broker leads. Requests fail with a retriable error until then."""
        assert partition not in self._shards, f"{self.topic}-{partition} is already led"
        self._led[partition] = leader_epoch
        shard: S  # the one that asks to be loaded again: maybe it is closed, and another one has its place

        def load_again() -> None:
            if self._shards.get(partition) is shard:
                self._load_again(partition)

        shard = self._shards[partition] = self._new_shard(Term(partition, leader_epoch, load_again))

    def lead_again(self, partition: int) -> None:
        """Load a partition that this broker leads, unless it is loaded or its disk is offline."""
        leader_epoch = self._led.get(partition)
        if leader_epoch is not None and partition not in self._shards and not self.is_offline(partition):
            self.lead(partition, leader_epoch)

    def resign(self, partition: int) -> None:
        """Unload a partition: its term has ended or its disk is offline. Waiting requests fail, and queued writes."""
        shard = self._shards.pop(partition, None)
        if shard is not None:
            shard.stop(refuse_writes=True)
            self.run(shard.close())

    def _load_again(self, partition: int) -> None:
        """Unload a partition and load it from the log, which differs from its state in memory."""
        shard = self._shards.pop(partition)
        shard.stop(refuse_writes=True)
        self._reloading.add(partition)
        self.run(self._close_and_lead(shard, partition))

    async def _close_and_lead(self, shard: S, partition: int) -> None:
        await shard.close()
        self._reloading.discard(partition)
        self.lead_again(partition)

    def is_offline(self, partition: int) -> bool:
        """Return whether this broker's replica is offline, so that its keys have no coordinator."""
        return self._topic_log.is_offline(partition)

    # ---- Shards

    @property
    def exists(self) -> bool:
        """Return whether the topic exists; without it no key has a coordinator."""
        return self._topic_log.partitions > 0

    def partition_for(self, key: str) -> int:
        """Return the partition of a key. Raises NotCoordinator before the topic exists."""
        if not self.exists:
            raise NotCoordinator(f"{self.topic} does not exist yet")
        return partition_of(key, self._topic_log.partitions)

    def shard_of(self, key: str) -> S:
        """Return the loaded shard of a key. Raises NotCoordinator, CoordinatorLoadInProgress."""
        partition = self.partition_for(key)
        shard = self._shards.get(partition)
        if shard is None:
            if partition in self._reloading and partition in self._led:
                raise CoordinatorLoadInProgress(f"{self.topic}-{partition} is being loaded again")
            raise NotCoordinator(f"another broker coordinates {key!r}")
        shard.check_ready()
        return shard

    def shard(self, partition: int) -> S | None:
        """Return the shard of a partition, loaded or not; None if another broker leads it."""
        return self._shards.get(partition)

    def shards(self) -> list[S]:
        """Return all shards, loaded or not."""
        return list(self._shards.values())

    def ready_shards(self) -> list[S]:
        """Return the loaded shards."""
        return [shard for shard in self._shards.values() if shard.is_ready]

    async def wait_until_loaded(self) -> None:
        """Wait until all shards are loaded, for tests and tools."""
        for shard in self.shards():
            await shard.wait_until_loaded()

    # ---- Tasks

    def run(self, work: Coroutine[object, object, None]) -> None:
        """Run work of the coordinator that `close` waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def close(self) -> None:
        """Fail the waiting requests, complete the queued writes and stop."""
        self._led = {}
        shards, self._shards = self._shards, {}
        for shard in shards.values():
            shard.stop(refuse_writes=False)
            self.run(shard.close())
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
