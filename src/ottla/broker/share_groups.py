"""Connects share groups with the broker: the settings of each group, and the topics that exist."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

from ottla.broker.entity_config import OneGroupConfig
from ottla.core.errors import ErrorCode, error_for
from ottla.core.settings import SettingText, load
from ottla.groups.share.events import StateSummary
from ottla.metadata_store import znodes
from ottla.metadata_store.metadata_cache import MetadataCache
from ottla.share_coordinator.machine import StateResult
from ottla.share_coordinator.persister_port import Persister
from ottla.share_coordinator.records import SharePartitionKey, Snapshot
from ottla.share_partitions.config import ShareConfig
from ottla.share_partitions.events import SharePartitionLimits
from ottla.share_partitions.partition_manager import SharePartitionManager
from ottla.share_partitions.share_partition import GroupSettings

READ_COMMITTED = "read_committed"


class ShareGroupStates:
    """Implements the port `ShareStates` with the persister. The topic of the states is created on first use."""

    def __init__(
        self, persister: Persister, partitions: SharePartitionManager, create_topic: Callable[[], Awaitable[None]]
    ) -> None:
        self._persister, self._partitions, self._create_topic = persister, partitions, create_topic

    async def initialize(
        self, group_id: str, topic_id: UUID, partition: int, state_epoch: int, start_offset: int
    ) -> None:
        """Begin or reset a state. Raises KafkaError."""
        await self._create_topic()
        key = SharePartitionKey(group_id, topic_id, partition)
        _check(await self._persister.initialize(key, state_epoch, start_offset))
        self._partitions.unload([key])

    async def delete(self, group_id: str, topic_id: UUID, partition: int) -> None:
        """Delete a state. Raises KafkaError."""
        key = SharePartitionKey(group_id, topic_id, partition)
        _check(await self._persister.delete(key))
        self._partitions.unload([key])

    async def summary(self, group_id: str, topic_id: UUID, partition: int) -> StateSummary:
        """Read the place of a share partition. Raises KafkaError."""
        state = _check(await self._persister.summary(SharePartitionKey(group_id, topic_id, partition)))
        assert state is not None, "a summary without an error has a state"
        return StateSummary(state.start_offset, state.leader_epoch, state.delivery_complete_count)


def _check(result: StateResult) -> Snapshot | None:
    if result.error is not ErrorCode.NONE:
        raise error_for(result.error, result.message)
    return result.state


def topic_exists(cluster: MetadataCache) -> Callable[[UUID, int], bool]:
    """Return a function that reports whether a topic with an id has a partition."""

    def exists(topic_id: UUID, partition: int) -> bool:
        topic = cluster.current.topic_by_id.get(topic_id.bytes)
        if topic is None:
            return bool(cluster.current.unreadable_topics)  # it may be one of them
        return partition < len(topic.partitions)

    return exists


class ShareGroupSettings:
    """Reads the settings of share groups: the group's own, within the broker's bounds, else the broker's."""

    def __init__(self, cluster: MetadataCache, config: ShareConfig) -> None:
        self._cluster, self._config = cluster, config
        self._cache: dict[str, tuple[object, GroupSettings]] = {}

    def __call__(self, group_id: str) -> GroupSettings:
        """Return the settings of a group."""
        stored = self._cluster.current.configs.get(znodes.GROUPS_KIND, {}).get(group_id)
        cached = self._cache.get(group_id)
        if cached is not None and cached[0] is stored:
            return cached[1]
        settings = _settings({} if stored is None else dict(stored.values), self._config)
        self._cache[group_id] = (stored, settings)
        return settings


def _settings(own: dict[str, str], config: ShareConfig) -> GroupSettings:
    group = load(OneGroupConfig, {key: SettingText(text, "group config") for key, text in own.items()})

    def value(key: str, own_value: int, default: int, lowest: int, highest: int) -> int:
        return min(max(own_value, lowest), highest) if key in own else default

    limits = SharePartitionLimits(
        lock_duration_ms=value(
            "share.record.lock.duration.ms",
            group.share_record_lock,
            config.record_lock_duration_ms,
            config.min_record_lock_duration_ms,
            config.max_record_lock_duration_ms,
        ),
        delivery_count_max=value(
            "share.delivery.count.limit",
            group.share_delivery_count_limit,
            config.delivery_count_limit,
            config.min_delivery_count_limit,
            config.max_delivery_count_limit,
        ),
        record_locks_max=value(
            "share.partition.max.record.locks",
            group.share_max_record_locks,
            config.partition_max_record_locks,
            config.min_partition_max_record_locks,
            config.max_partition_max_record_locks,
        ),
        may_renew=group.share_renew_acknowledge,
        has_dead_letter_queue=bool(group.dead_letter_topic),
    )
    return GroupSettings(
        limits,
        committed_only=group.share_isolation == READ_COMMITTED,
        offset_reset=group.share_offset_reset,
        dead_letter_topic=group.dead_letter_topic,
        copies_dead_letters=group.dead_letter_copy,
    )
