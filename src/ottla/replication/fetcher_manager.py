"""Assigns the partitions that this broker follows to replica fetchers, `num.replica.fetchers` for each leader."""

from __future__ import annotations

import asyncio

from ottla.client.connection import ConnectTo
from ottla.core.runtime import new_random
from ottla.replication.config import ReplicationConfig
from ottla.replication.fetcher import ReplicaFetcher
from ottla.replication.follower_state import FetchState
from ottla.replication.partition import Partition
from ottla.replication.replication_context import ReplicationContext


class ReplicaFetcherManager:
    """All fetchers of this broker."""

    def __init__(
        self, connect: ConnectTo, *, node_id: int, config: ReplicationConfig, context: ReplicationContext
    ) -> None:
        self._connect, self._node_id, self._config, self._context = connect, node_id, config, context
        self._jitter = new_random().random
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        self._of: dict[Partition, ReplicaFetcher] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def assign(self, partition: Partition) -> None:
        """Fetch a partition from its current leader; fetch it no longer if it is no follower."""
        follower = partition.follower
        if follower is None or follower.fetch_state is FetchState.FAILED:
            self.remove(partition)
            return
        topic_id, index = partition.log.topic_id, partition.topic_partition.partition
        where = (partition.leader, (topic_id.int + index) % self._config.fetchers)
        fetcher = self._fetchers.get(where)
        if fetcher is None:
            fetcher = self._fetchers[where] = ReplicaFetcher(
                partition.leader,
                self._connect,
                node_id=self._node_id,
                config=self._config,
                context=self._context,
                jitter=self._jitter,
            )
        before = self._of.get(partition)
        if before is not None and before is not fetcher:
            self.remove(partition)
        self._of[partition] = fetcher
        fetcher.add(partition)

    def remove(self, partition: Partition) -> None:
        """Fetch a partition no longer. A fetcher without partitions ends."""
        fetcher = self._of.pop(partition, None)
        if fetcher is None:
            return
        fetcher.remove(partition)
        if not len(fetcher):
            for where, other in list(self._fetchers.items()):
                if other is fetcher:
                    del self._fetchers[where]
            task = asyncio.get_running_loop().create_task(fetcher.close(), name="close replica fetcher")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Stop all."""
        fetchers, self._fetchers = list(self._fetchers.values()), {}
        self._of.clear()
        for fetcher in fetchers:
            await fetcher.close()
        if self._closing:
            await asyncio.gather(*tuple(self._closing), return_exceptions=True)
