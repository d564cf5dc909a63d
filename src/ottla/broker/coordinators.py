"""Creates each coordinator when its internal topic exists, or when the first request needs it.

Most brokers on one machine use one coordinator or none: the others cost no time at the start.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from ottla.core.clock import Clock
from ottla.core.events import EventLog
from ottla.core.ids import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC, TopicPartition
from ottla.internal_topics.topic import InternalTopic
from ottla.metadata_store.cluster_view import ClusterView
from ottla.metadata_store.metadata_cache import MetadataCache

if TYPE_CHECKING:  # imported when they are first needed
    from ottla.broker.config import BrokerConfig
    from ottla.broker.remote.high_watermarks import HighWatermarks
    from ottla.broker.remote.share_state_persister import ShareStatePersister
    from ottla.broker.remote.transaction_marker_channel import TransactionMarkerChannelManager
    from ottla.broker.remote.transaction_verification import TransactionVerifier
    from ottla.broker.transaction_marker_writer import TransactionMarkerWriter
    from ottla.client.connection import ConnectTo
    from ottla.controller.topics import CreateTopic
    from ottla.groups.coordinator import GroupCoordinator
    from ottla.groups.share_group_coordinator import ShareGroupCoordinator
    from ottla.internal_topics.led_partitions import LedPartitions
    from ottla.internal_topics.session_check import SessionCheck
    from ottla.metadata_store.producer_ids import ProducerIdManager
    from ottla.replication.replicas import Replicas
    from ottla.share_coordinator.coordinator import ShareCoordinator
    from ottla.share_partitions.partition_manager import SharePartitionManager
    from ottla.transactions.coordinator import TransactionCoordinator

Follower = Callable[[ClusterView, ClusterView], None]

GROUPS: Final = "ottla.groups.coordinator"
SHARE_GROUPS: Final = "ottla.broker.share_groups"
TRANSACTIONS: Final = "ottla.transactions.coordinator"

_imported: Final[set[str]] = set()


async def import_in_thread(*modules: str) -> None:
    """Import what a coordinator needs, before its first use: on the loop it would hold everybody for 10 to 60 ms."""
    for module in modules:
        if module not in _imported:
            await asyncio.to_thread(importlib.import_module, module)
            _imported.add(module)


def naming_work(key: str) -> int:
    """Return the work, for a slice, of finding a group or a transactional id: each character counts in its hash."""
    return len(key) // 16


class Coordinators:
    """Holds the coordinators of this broker. Call `follow` with each new cluster snapshot, and `close` at the end."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        cluster: MetadataCache,
        replicas: Replicas,
        producer_ids: ProducerIdManager,
        clock: Clock,
        create_topic: Callable[[str], Awaitable[None]],
        create_named_topic: Callable[[CreateTopic], Awaitable[None]],
        current_config: Callable[[], BrokerConfig],
        connect_to: ConnectTo,
        events: EventLog | None = None,
    ) -> None:
        self._config, self._node_id = config, config.server.node_id
        self._cluster, self._replicas, self._producer_ids = cluster, replicas, producer_ids
        self._clock, self._create_topic, self._connect_to = clock, create_topic, connect_to
        self._events = events
        self._create_named_topic, self._current_config = create_named_topic, current_config
        self._created: list[LedPartitions[Any]] = []
        self._followers: list[Follower] = []
        self._closers: list[Callable[[], Awaitable[None]]] = []

    # ---- Coordinators

    @cached_property
    def groups(self) -> GroupCoordinator:
        """The coordinator of groups."""
        from ottla.groups.coordinator import GroupCoordinator

        log = self._topic(OFFSETS_TOPIC)
        created = GroupCoordinator(
            self._config.groups, clock=self._clock, log=log, node_id=self._node_id, events=self._events
        )
        created.start()
        self._begin_to_follow(created.led, created.follow)
        self._closers.append(created.close)
        return created

    @cached_property
    def transactions(self) -> TransactionCoordinator:
        """The coordinator of transactions."""
        from ottla.transactions.coordinator import TransactionCoordinator

        created = TransactionCoordinator(
            self._config.transactions,
            clock=self._clock,
            log=self._topic(TRANSACTIONS_TOPIC),
            node_id=self._node_id,
            markers=self._marker_channel,
            producer_ids=self._producer_ids,
        )
        created.start()
        self._begin_to_follow(created.led, created.follow)
        self._closers.append(created.close)
        return created

    @cached_property
    def transaction_marker_writer(self) -> TransactionMarkerWriter:
        """The writer of transaction markers on the partitions that this broker leads."""
        from ottla.broker.transaction_marker_writer import TransactionMarkerWriter

        return TransactionMarkerWriter(self._replicas, self.groups, self._clock)

    @cached_property
    def _marker_channel(self) -> TransactionMarkerChannelManager:
        from ottla.broker.remote.transaction_marker_channel import TransactionMarkerChannelManager

        created = TransactionMarkerChannelManager(
            self.transaction_marker_writer, self._cluster, node_id=self._node_id, connect_to=self._connect_to
        )
        self._followers.append(created.follow)
        self._closers.append(created.close)
        return created

    @cached_property
    def transaction_verifier(self) -> TransactionVerifier:
        """The verification of transactional batches."""
        from ottla.broker.remote.add_partitions_to_txn import AddPartitionsToTxnManager
        from ottla.broker.remote.transaction_verification import TransactionVerifier

        manager = AddPartitionsToTxnManager(
            lambda: self.transactions, self._cluster, node_id=self._node_id, connect_to=self._connect_to
        )
        self._followers.append(manager.follow)
        self._closers.append(manager.close)
        return TransactionVerifier(manager, self._clock)

    @cached_property
    def share_states(self) -> ShareCoordinator:
        """The share coordinator, which keeps the states of share partitions."""
        from ottla.broker.share_groups import topic_exists
        from ottla.share_coordinator.coordinator import ShareCoordinator

        created = ShareCoordinator(
            self._config.share_coordinator,
            clock=self._clock,
            log=self._topic(SHARE_STATE_TOPIC),
            node_id=self._node_id,
            exists=topic_exists(self._cluster),
        )
        created.start()
        self._begin_to_follow(created.led, created.led.follow)
        self._closers.append(created.close)
        return created

    @cached_property
    def _share_state_persister(self) -> ShareStatePersister:
        from ottla.broker.remote.share_state_persister import ShareStatePersister

        created = ShareStatePersister(
            lambda: self.share_states, self._cluster, node_id=self._node_id, connect_to=self._connect_to
        )
        self._followers.append(created.follow)
        self._closers.append(created.close)
        return created

    @cached_property
    def share_partitions(self) -> SharePartitionManager:
        """The share partitions that this broker leads."""
        from ottla.broker.remote.dead_letters import DeadLetterWriter
        from ottla.broker.share_groups import ShareGroupSettings
        from ottla.share_partitions.partition_manager import SharePartitionManager

        config = self._config.share
        settings = ShareGroupSettings(self._cluster, config)
        persister = self._share_state_persister
        dead_letters = DeadLetterWriter(
            self._cluster,
            self._replicas,
            node_id=self._node_id,
            config=self._current_config,
            settings=settings,
            create_topic=self._create_named_topic,
            clock=self._clock,
            connect_to=self._connect_to,
        )
        self._followers.append(dead_letters.follow)
        self._closers.append(dead_letters.close)
        created = SharePartitionManager(
            config,
            persister=persister,
            dead_letters=dead_letters,
            clock=self._clock,
            settings=settings,
            events=self._events,
        )
        self._closers.append(created.close)
        return created

    @cached_property
    def share_groups(self) -> ShareGroupCoordinator:
        """The coordinator of share groups."""
        from ottla.broker.share_groups import ShareGroupStates
        from ottla.groups.share_group_coordinator import ShareGroupCoordinator

        states = ShareGroupStates(
            self._share_state_persister, self.share_partitions, lambda: self._create_topic(SHARE_STATE_TOPIC)
        )
        return ShareGroupCoordinator(self.groups.led, states)

    @cached_property
    def high_watermarks(self) -> HighWatermarks:
        """The high watermarks of all partitions, wherever they are led."""
        from ottla.broker.remote.high_watermarks import HighWatermarks

        created = HighWatermarks(self._replicas, self._cluster, node_id=self._node_id, connect_to=self._connect_to)
        self._followers.append(created.follow)
        self._closers.append(created.close)
        return created

    @cached_property
    def _session_check(self) -> SessionCheck | None:
        """Detects that this process was stopped for longer than its session may last. None without ZooKeeper."""
        from ottla.internal_topics.session_check import SessionCheck

        zookeeper = self._config.zookeeper
        if not zookeeper.connect:
            return None
        created = SessionCheck(self._clock, zookeeper.session_timeout_ms / 1000, self._cluster.sync)
        created.start()
        self._closers.append(created.close)
        return created

    def _topic(self, name: str) -> InternalTopic:
        return InternalTopic(name, replicas=self._replicas, cluster=self._cluster, clock=self._clock)

    def _begin_to_follow(self, led: LedPartitions[Any], follow: Follower) -> None:
        led.session_check = self._session_check
        self._created.append(led)
        self._followers.append(follow)
        follow(ClusterView(), self._cluster.current)

    # ---- Changes

    def follow(self, old: ClusterView, new: ClusterView) -> None:
        """Create the coordinators whose topic exists; the others follow their leadership and deleted topics."""
        for follow in tuple(self._followers):
            follow(old, new)
        if OFFSETS_TOPIC in new.topics:
            _ = self.groups
        if TRANSACTIONS_TOPIC in new.topics:
            _ = self.transactions
        if SHARE_STATE_TOPIC in new.topics:
            _ = self.share_states, self.share_groups

    def partition_changed(self, topic_partition: TopicPartition, *, is_online: bool) -> None:
        """Load or unload a partition whose log directory is online again or offline."""
        for led in self._created:
            if led.topic == topic_partition.topic:
                (led.lead_again if is_online else led.resign)(topic_partition.partition)

    async def close(self) -> None:
        """Stop the coordinators in the reverse order of their creation: one is created after those that it uses."""
        while self._closers:
            await self._closers.pop()()
