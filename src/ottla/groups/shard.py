"""Coordinates the groups of one partition of `__consumer_offsets`: loads them and writes their changes.

A shard exists while this broker leads the partition.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ottla.core.clock import Clock
from ottla.core.errors import ErrorCode, NotCoordinator, error_for
from ottla.core.ids import OFFSETS_TOPIC, TopicPartition
from ottla.groups import records
from ottla.groups.config import GroupConfig
from ottla.groups.events import GroupSnapshot, State
from ottla.groups.group import Group, restored
from ottla.groups.group_runtime import GroupRuntime
from ottla.groups.offsets import Change, CommittedOffset, expired
from ottla.internal_topics.coordinator_partition import CoordinatorPartition
from ottla.internal_topics.log import KeyValue, LoadedRecords, TopicLog
from ottla.internal_topics.write_errors import coordinator_write_error, offset_write_error

log = logging.getLogger(__name__)


class Shard:
    """Coordinates the groups of one partition that this broker leads."""

    def __init__(self, partition: int, config: GroupConfig, topic_log: TopicLog, clock: Clock) -> None:
        self._config, self._clock = config, clock
        self._groups: dict[str, GroupRuntime] = {}
        self._partition = CoordinatorPartition(
            OFFSETS_TOPIC, partition, topic_log, lambda: _Loader(self), write_timeout_ms=config.offset_commit_timeout_ms
        )
        self._partition.start()

    # ---- Loading

    @property
    def partition(self) -> int:
        """Return the partition of `__consumer_offsets`."""
        return self._partition.partition

    @property
    def is_ready(self) -> bool:
        """Return whether all groups are loaded."""
        return self._partition.is_ready

    async def wait_until_loaded(self) -> None:
        """Wait until all groups are loaded."""
        await self._partition.wait_until_loaded()

    def check_ready(self) -> None:
        """Raise NotCoordinator or CoordinatorLoadInProgress unless all groups are loaded."""
        self._partition.check_ready()

    async def close(self) -> None:
        """Stop coordinating. Queued writes are still written."""
        self._partition.stop()
        for runtime in self._groups.values():
            runtime.close(NotCoordinator)
        await self._partition.close()
        self._groups.clear()

    def use_loaded(
        self, snapshots: dict[str, GroupSnapshot], offsets: dict[str, dict[TopicPartition, CommittedOffset]]
    ) -> int:
        """Take loaded groups and offsets into use; returns how many groups there are."""
        self._groups = {
            group_id: self._runtime_from_log(group_id, snapshots.get(group_id), offsets.get(group_id, {}))
            for group_id in snapshots.keys() | {name for name, found in offsets.items() if found}
        }
        for runtime in self._groups.values():
            runtime.loaded()
        return len(self._groups)

    def _runtime_from_log(
        self, group_id: str, snapshot: GroupSnapshot | None, offsets: dict[TopicPartition, CommittedOffset]
    ) -> GroupRuntime:
        group = restored(group_id, snapshot or GroupSnapshot(), self._config.limits)
        runtime = self._runtime(group)
        runtime.in_log = snapshot is not None
        runtime.offsets.apply(offsets)
        return runtime

    def _runtime(self, group: Group) -> GroupRuntime:
        return GroupRuntime(
            group, self._partition.writer, self._clock, write_timeout_ms=self._config.offset_commit_timeout_ms
        )

    # ---- Groups

    def groups(self) -> list[GroupRuntime]:
        """List all groups that are not being deleted."""
        return [runtime for runtime in self._groups.values() if runtime.group.state is not State.DEAD]

    def find(self, group_id: str) -> GroupRuntime | None:
        """Return the group, or None."""
        return self._groups.get(group_id)

    def find_or_create(self, group_id: str) -> GroupRuntime:
        """Return the group, created if necessary. It is written with its first generation or its first offset."""
        runtime = self._groups.get(group_id)
        if runtime is None:
            group = Group(group_id, self._config.limits, state_since_wall_ms=self._clock.wall_ms())
            runtime = self._groups[group_id] = self._runtime(group)
        return runtime

    def remove_if_unused(self, runtime: GroupRuntime) -> None:
        """Remove a group without members, offsets and records from memory."""
        is_unused = (
            runtime.group.is_unused and not runtime.in_log and not runtime.offsets and runtime.offsets.all_stable
        )
        if is_unused and self._groups.get(runtime.group.group_id) is runtime:
            runtime.close(NotCoordinator)
            del self._groups[runtime.group.group_id]

    # ---- Offsets

    async def write_offsets(self, runtime: GroupRuntime, change: Change, pairs: Sequence[KeyValue]) -> None:
        """Write a change, encoded as `pairs`; returns once it is durable and visible.

        After a KafkaError it may still become durable.
        """
        runtime.offsets.begin(change.keys())
        await self._partition.write(
            pairs, lambda stored: runtime.offsets.finish(change, stored=stored), offset_write_error
        )

    async def delete(self, runtime: GroupRuntime) -> None:
        """Delete a group and all its offsets. Raises KafkaError: NonEmptyGroup, GroupIdNotFound, or a failed write."""
        refusal = runtime.machine.begin_deletion()
        if refusal is not ErrorCode.NONE:
            raise error_for(refusal)
        group_id = runtime.group.group_id
        change: dict[TopicPartition, None] = dict.fromkeys(runtime.offsets.all_partitions())
        pairs: list[KeyValue] = [(records.offset_key(group_id, partition), None) for partition in change]
        if runtime.in_log:
            pairs.append((records.group_key(group_id), None))
        runtime.offsets.begin(change.keys())
        await self._partition.write(
            pairs, lambda stored: self._deleted(runtime, change, stored=stored), coordinator_write_error
        )

    def _deleted(self, runtime: GroupRuntime, change: Change, *, stored: bool) -> None:
        runtime.offsets.finish(change, stored=stored)
        if not stored:
            runtime.machine.cancel_deletion()
        elif self._groups.get(runtime.group.group_id) is runtime:
            runtime.close(NotCoordinator)
            del self._groups[runtime.group.group_id]

    # ---- Expiry

    async def expire(self, now_wall_ms: int) -> None:
        """Delete expired offsets and unused groups (KIP-211)."""
        for runtime in self.groups():
            expired_ones = expired(
                runtime.offsets,
                runtime.group,
                now_wall_ms=now_wall_ms,
                retention_ms=self._config.offsets_retention_ms,
            )
            all_expired = len(expired_ones) == len(runtime.offsets) and runtime.offsets.all_stable
            if all_expired and runtime.group.is_unused:
                await self.delete(runtime)
            elif expired_ones:
                change = dict.fromkeys(expired_ones)
                await self.write_offsets(runtime, change, records.offset_pairs(runtime.group.group_id, change))

    async def topics_deleted(self, topics: frozenset[str]) -> None:
        """Delete the offsets of deleted topics: they must not apply to a new topic of the same name."""
        for runtime in list(self._groups.values()):
            gone = [partition for partition in runtime.offsets.all_partitions() if partition.topic in topics]
            if gone:
                change = dict.fromkeys(gone)
                await self.write_offsets(runtime, change, records.offset_pairs(runtime.group.group_id, change))


class _Loader:
    """Builds the groups and offsets of a partition; the last record of each key wins."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._snapshots: dict[str, GroupSnapshot] = {}
        self._offsets: dict[str, dict[TopicPartition, CommittedOffset]] = {}

    def apply(self, loaded: LoadedRecords) -> None:
        """Apply records; malformed ones are skipped."""
        for key, value in loaded.records:
            try:
                self._apply(records.decode(key, value))
            except records.MalformedRecord as error:
                log.warning("skipped a malformed record of offsets partition %d: %s", self._shard.partition, error)

    def complete(self) -> str:
        """Take the groups into use."""
        return f"{self._shard.use_loaded(self._snapshots, self._offsets)} groups"

    def _apply(self, record: records.OffsetRecord | records.GroupRecord | records.ForeignRecord) -> None:
        match record:
            case records.OffsetRecord(group_id, partition, None):
                self._offsets.get(group_id, {}).pop(partition, None)
            case records.OffsetRecord(group_id, partition, committed):
                assert committed is not None
                self._offsets.setdefault(group_id, {})[partition] = committed
            case records.GroupRecord(group_id, None):
                self._snapshots.pop(group_id, None)
            case records.GroupRecord(group_id, snapshot):
                assert snapshot is not None
                self._snapshots[group_id] = snapshot
            case records.ForeignRecord():
                pass
