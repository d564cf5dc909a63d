"""Follows which partitions of an internal topic this broker leads, with one shard of a coordinator for each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Generic, Protocol, TypeVar

from ottla.coordination.view import ClusterView
from ottla.core.errors import NotCoordinator
from ottla.internal_topics.log import TopicLog
from ottla.internal_topics.partitioning import partition_of


class Shard(Protocol):
    """Coordinates the keys of one partition that this broker leads."""

    @property
    def is_ready(self) -> bool:
        """Return whether its state is loaded."""
        ...

    def check_ready(self) -> None:
        """Raise NotCoordinator or CoordinatorLoadInProgress unless its state is loaded."""
        ...

    async def wait_until_loaded(self) -> None:
        """Wait until its state is loaded."""
        ...

    async def close(self) -> None:
        """Fail the waiting requests and complete the queued writes."""
        ...


S = TypeVar("S", bound=Shard)


class LedPartitions(Generic[S]):
    """Holds the shards of one coordinator. Call `follow` with each new cluster snapshot, and `close` at the end."""

    def __init__(self, topic: str, topic_log: TopicLog, node_id: int, new_shard: Callable[[int], S]) -> None:
        self.topic = topic
        self._topic_log, self._node_id, self._new_shard = topic_log, node_id, new_shard
        self._shards: dict[int, S] = {}
        self._led: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- Leadership

    def follow(self, old: ClusterView, new: ClusterView) -> None:
        """Load the partitions that this broker now leads, and unload the others."""
        before, now = old.topics.get(self.topic), new.topics.get(self.topic)
        if now is before:
            return
        self._led = {part.index for part in now.partitions if part.leader == self._node_id} if now else set()
        for partition in self._shards.keys() - self._led:
            self.resign(partition)
        for partition in sorted(self._led):
            self.lead_again(partition)

    def lead(self, partition: int) -> None:
        """Load a partition that this broker leads. Requests fail with a retriable error until then."""
        assert partition not in self._shards, f"{self.topic}-{partition} is already led"
        self._led.add(partition)
        self._shards[partition] = self._new_shard(partition)

    def lead_again(self, partition: int) -> None:
        """Load a partition that this broker leads, unless it is loaded or its disk is offline."""
        if partition in self._led and partition not in self._shards and not self.is_offline(partition):
            self.lead(partition)

    def resign(self, partition: int) -> None:
        """Unload a partition that another broker leads or whose disk is offline; waiting requests fail."""
        shard = self._shards.pop(partition, None)
        if shard is not None:
            self.run(shard.close())

    def load_again(self, partition: int) -> None:
        """Unload a partition and load it from the log: its state in memory is ahead of the log after a failed write."""
        shard = self._shards.pop(partition, None)
        if shard is not None:
            self.run(self._close_and_lead(shard, partition))

    async def _close_and_lead(self, shard: S, partition: int) -> None:
        await shard.close()
        self.lead_again(partition)

    def is_offline(self, partition: int) -> bool:
        """Return whether this broker's replica is offline, so that its keys have no coordinator."""
        return self._topic_log.is_offline(partition)

    # ---- Shards

    def partition_for(self, key: str) -> int:
        """Return the partition of a key. Raises NotCoordinator before the topic exists."""
        partitions = self._topic_log.partitions
        if partitions <= 0:
            raise NotCoordinator(f"{self.topic} does not exist yet")
        return partition_of(key, partitions)

    def shard_of(self, key: str) -> S:
        """Return the loaded shard of a key. Raises NotCoordinator, CoordinatorLoadInProgress."""
        shard = self._shards.get(self.partition_for(key))
        if shard is None:
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
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Fail the waiting requests, complete the queued writes and stop."""
        self._led = set()
        for partition in list(self._shards):
            self.resign(partition)
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
