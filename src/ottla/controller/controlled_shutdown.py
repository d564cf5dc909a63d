"""Hands over what this broker leads before it stops."""

from __future__ import annotations

import asyncio

from ottla.core.clock import Clock
from ottla.metadata_store import znodes
from ottla.metadata_store.cluster_view import ClusterView
from ottla.metadata_store.metadata_cache import MetadataCache
from ottla.metadata_store.store import MetadataStore, Put


class ControlledShutdown:
    """The shutdown of one broker: it notes in its registration that it stops, and waits for the controller."""

    def __init__(self, store: MetadataStore, cluster: MetadataCache, clock: Clock, node_id: int) -> None:
        self._store, self._cluster, self._clock, self._node_id = store, cluster, clock, node_id
        self._news = asyncio.Event()  # the snapshot has changed

    def view_changed(self) -> None:
        """Note that there is a newer snapshot."""
        self._news.set()

    async def run(self, broker: znodes.BrokerRegistration, within_s: float) -> int:
        """Wait until this broker is in no ISR with a broker that stays: leaders would wait for its fetches.

        Returns how many partitions others could still take over; at once without other live brokers.
        """
        view = self._cluster.current
        if len(view.brokers) < 2 or not (self._can_hand_over(view) or self._is_awaited(view)):
            return 0
        deadline = self._clock.monotonic() + within_s
        node = await self._store.get(znodes.broker_path(self._node_id))
        if node is not None:
            text = znodes.encode_broker(broker._replace(is_shutting_down=True))
            await self._store.commit([Put(znodes.broker_path(self._node_id), text, node.version)])
            await self._cluster.refresh()
        while (remaining := self._can_hand_over(self._cluster.current)) or self._is_awaited(self._cluster.current):
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), deadline - self._clock.monotonic())
            except TimeoutError:
                return remaining
        return 0

    def _can_hand_over(self, view: ClusterView) -> int:
        """Count the partitions that this broker leads and another could lead."""
        me, others = self._node_id, self._others_that_stay(view)
        return sum(
            partition.leader == me and not others.isdisjoint((*partition.isr, *partition.elr))
            for topic in view.topics.values()
            for partition in topic.partitions
        )

    def _is_awaited(self, view: ClusterView) -> bool:
        """Return whether a leader on another broker counts this one as in sync."""
        me, others = self._node_id, self._others_that_stay(view)
        return any(
            partition.leader in others and me in partition.isr
            for topic in view.topics.values()
            for partition in topic.partitions
        )

    def _others_that_stay(self, view: ClusterView) -> set[int]:
        return {node for node, broker in view.brokers.items() if node != self._node_id and not broker.is_shutting_down}
