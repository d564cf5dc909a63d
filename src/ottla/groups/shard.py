"""Coordinates the groups of one partition of `__consumer_offsets`: loads them and writes their changes.

A shard exists while this broker leads the partition. Results after that are invalid, so `_open` is checked after every
wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from ottla.core.clock import Clock
from ottla.core.errors import CoordinatorLoadInProgress, ErrorCode, NotCoordinator, error_for
from ottla.core.ids import TopicPartition
from ottla.groups import records
from ottla.groups.config import GroupConfig
from ottla.groups.events import GroupSnapshot, State
from ottla.groups.group import Group, restored
from ottla.groups.group_runtime import GroupRuntime
from ottla.groups.offsets import Change, CommittedOffset, expired
from ottla.groups.write_errors import group_write_error, offset_write_error
from ottla.groups.writer import KeyValue, OffsetsLog, PartitionWriter

log = logging.getLogger(__name__)

REPLAYED_AT_ONCE = 500
"""Records to replay before yielding to the loop: well under 5 ms."""

RETRY_LOAD_SECONDS = 1.0


class _Finish(Protocol):
    """Called with the result of a write."""

    def __call__(self, *, stored: bool) -> None: ...


_ErrorOf = Callable[[ErrorCode], ErrorCode]


class Shard:
    """Coordinates the groups of one partition that this broker leads."""

    def __init__(self, partition: int, config: GroupConfig, offsets_log: OffsetsLog, clock: Clock) -> None:
        self.partition = partition
        self._config, self._log, self._clock = config, offsets_log, clock
        self._groups: dict[str, GroupRuntime] = {}
        self._writer = PartitionWriter(offsets_log, partition)
        self._open = True
        self._ready = False
        self._loading = asyncio.get_running_loop().create_task(
            self._load(), name=f"load groups of partition {partition}"
        )

    # ---- Loading

    @property
    def ready(self) -> bool:
        """Return whether all groups are loaded."""
        return self._ready and self._open

    async def wait_until_loaded(self) -> None:
        """Wait until all groups are loaded."""
        await asyncio.shield(self._loading)

    def check_ready(self) -> None:
        """Raise NotCoordinator or CoordinatorLoadInProgress unless all groups are loaded."""
        if not self._open:
            raise NotCoordinator(f"this broker does not lead partition {self.partition} of the offsets topic any more")
        if not self._ready:
            raise CoordinatorLoadInProgress(f"partition {self.partition} of the offsets topic is being loaded")

    async def close(self) -> None:
        """Stop coordinating. Queued writes are still written."""
        self._open = False
        self._loading.cancel()
        for runtime in self._groups.values():
            runtime.close(NotCoordinator)
        await asyncio.gather(self._loading, return_exceptions=True)
        await self._writer.close()
        self._groups.clear()

    async def _load(self) -> None:
        while self._open and not self._ready:
            try:
                await self._replay()
            except Exception:
                log.exception("loading partition %d of the offsets topic failed; retrying in 1 s", self.partition)
                await asyncio.sleep(RETRY_LOAD_SECONDS)

    async def _replay(self) -> None:
        snapshots: dict[str, GroupSnapshot] = {}
        offsets: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        read = 0
        async for key, value in self._log.read_all(self.partition):
            try:
                _apply(records.decode(key, value), snapshots, offsets)
            except records.MalformedRecord as error:
                log.warning("skipped a malformed record of offsets partition %d: %s", self.partition, error)
            read += 1
            if read % REPLAYED_AT_ONCE == 0:
                await asyncio.sleep(0)
        self._groups = {
            group_id: self._runtime_from_log(group_id, snapshots.get(group_id), offsets.get(group_id, {}))
            for group_id in snapshots.keys() | {name for name, found in offsets.items() if found}
        }
        self._ready = True
        for runtime in self._groups.values():
            runtime.loaded()
        if read:
            log.info("groups loaded: partition %d, %d groups, %d records", self.partition, len(self._groups), read)

    def _runtime_from_log(
        self, group_id: str, snapshot: GroupSnapshot | None, offsets: dict[TopicPartition, CommittedOffset]
    ) -> GroupRuntime:
        group = restored(group_id, snapshot or GroupSnapshot(), self._config.limits)
        runtime = self._runtime(group)
        runtime.in_log = snapshot is not None
        runtime.offsets.apply(offsets)
        return runtime

    def _runtime(self, group: Group) -> GroupRuntime:
        return GroupRuntime(group, self._writer, self._clock, write_timeout_ms=self._config.offset_commit_timeout_ms)

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
        await self._write(pairs, lambda stored: runtime.offsets.finish(change, stored=stored), offset_write_error)

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
        await self._write(pairs, lambda stored: self._deleted(runtime, change, stored=stored), group_write_error)

    def _deleted(self, runtime: GroupRuntime, change: Change, *, stored: bool) -> None:
        runtime.offsets.finish(change, stored=stored)
        if not stored:
            runtime.machine.cancel_deletion()
        elif self._groups.get(runtime.group.group_id) is runtime:
            runtime.close(NotCoordinator)
            del self._groups[runtime.group.group_id]

    async def _write(self, pairs: Sequence[KeyValue], finish: _Finish, error_of: _ErrorOf) -> None:
        """Wait for the write up to the timeout. `finish` gets the result in any case, in the order of the log."""
        if not pairs:
            finish(stored=True)
            return
        done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def written(error: ErrorCode) -> None:
            finish(stored=error is ErrorCode.NONE)
            if not done.done():
                done.set_result(error)

        self._writer.write(pairs, written)
        try:
            error = await asyncio.wait_for(done, self._config.offset_commit_timeout_ms / 1000)
        except TimeoutError:
            error = ErrorCode.REQUEST_TIMED_OUT
        if not self._open:
            raise NotCoordinator
        if error is not ErrorCode.NONE:
            raise error_for(error_of(error))

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


def _apply(
    record: records.OffsetRecord | records.GroupRecord | records.ForeignRecord,
    snapshots: dict[str, GroupSnapshot],
    offsets: dict[str, dict[TopicPartition, CommittedOffset]],
) -> None:
    """Apply a record; the last record of each key wins."""
    match record:
        case records.OffsetRecord(group_id, partition, None):
            offsets.get(group_id, {}).pop(partition, None)
        case records.OffsetRecord(group_id, partition, committed):
            assert committed is not None
            offsets.setdefault(group_id, {})[partition] = committed
        case records.GroupRecord(group_id, None):
            snapshots.pop(group_id, None)
        case records.GroupRecord(group_id, snapshot):
            assert snapshot is not None
            snapshots[group_id] = snapshot
        case records.ForeignRecord():
            pass
