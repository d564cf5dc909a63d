"""Holds the connections of one identity to the cluster, with the snapshot and the samples that its requests share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ottla.client.cluster import Cluster
from ottla.console.samples import EVERY_S, Sampler
from ottla.console.snapshot import Snapshot, SnapshotCache

Connect = Callable[[], Awaitable[Cluster]]


class Workspace:
    """Connects at the first use. The rights are those of the credentials in `connect`."""

    def __init__(self, connect: Connect, *, sample_every_s: float = EVERY_S) -> None:
        self._connect = connect
        self._cluster: Cluster | None = None
        self._connecting = asyncio.Lock()
        self._snapshots = SnapshotCache(self.cluster)
        self.sampler = Sampler(self.cluster, self.snapshot, every_s=sample_every_s)

    async def cluster(self) -> Cluster:
        """Return the client of the cluster. Raises CannotConnect or KafkaError."""
        async with self._connecting:
            if self._cluster is None:
                self._cluster = await self._connect()
            return self._cluster

    async def snapshot(self) -> Snapshot:
        """Return a snapshot that is at most some seconds old."""
        return await self._snapshots.get()

    def changed(self) -> None:
        """Let the next page show what was changed."""
        self._snapshots.forget()

    @property
    def readings(self) -> int:
        """The number of snapshots that were read."""
        return self._snapshots.readings

    def start(self) -> None:
        """Begin to take samples."""
        self.sampler.start()

    async def close(self) -> None:
        """Stop the samples and close the connections."""
        await self.sampler.stop()
        await self._snapshots.close()
        if self._cluster is not None:
            await self._cluster.close()
            self._cluster = None
