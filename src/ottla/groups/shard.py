"""The groups of one partition of `__consumer_offsets`: loaded from it, kept in it.

A shard lives as long as this broker leads the partition. Everything it promised after that is void, so each wait ends
with a look at whether it is still `open`.
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
from ottla.groups.errors import group_write_error, offset_write_error
from ottla.groups.events import GroupSnapshot, State
from ottla.groups.group import Group, restored
from ottla.groups.hosted import HostedGroup
from ottla.groups.offsets import Change, CommittedOffset, expired
from ottla.groups.writer import KeyValue, OffsetsLog, PartitionWriter

log = logging.getLogger(__name__)

REPLAYED_AT_ONCE = 500
"""So many records are replayed before the loop may do something else: well under 5 ms."""

RETRY_LOAD_SECONDS = 1.0


class _Finish(Protocol):
    """Told what came of a write."""

    def __call__(self, *, stored: bool) -> None: ...


_ErrorOf = Callable[[ErrorCode], ErrorCode]


class Shard:
    """What this broker coordinates because it leads one partition."""

    def __init__(self, partition: int, config: GroupConfig, offsets_log: OffsetsLog, clock: Clock) -> None:
        self.partition = partition
        self._config, self._log, self._clock = config, offsets_log, clock
        self._groups: dict[str, HostedGroup] = {}
        self._writer = PartitionWriter(offsets_log, partition)
        self._open = True
        self._ready = False
        self._loading = asyncio.get_running_loop().create_task(
            self._load(), name=f"load groups of partition {partition}"
        )

    # ---- Life ------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether everything is loaded."""
        return self._ready and self._open

    async def wait_until_loaded(self) -> None:
        """For whoever must not go on before."""
        await asyncio.shield(self._loading)

    def check_ready(self) -> None:
        """Raises NotCoordinator or CoordinatorLoadInProgress: nobody is answered from half of the truth."""
        if not self._open:
            raise NotCoordinator(f"this broker does not lead partition {self.partition} of the offsets topic any more")
        if not self._ready:
            raise CoordinatorLoadInProgress(f"partition {self.partition} of the offsets topic is being read")

    async def close(self) -> None:
        """The partition is led elsewhere, or the broker stops. What was asked to be written is still written."""
        self._open = False
        self._loading.cancel()
        for hosted in self._groups.values():
            hosted.close(NotCoordinator)
        await asyncio.gather(self._loading, return_exceptions=True)
        await self._writer.close()
        self._groups.clear()

    async def _load(self) -> None:
        while self._open and not self._ready:
            try:
                await self._replay()
            except Exception:
                log.exception("partition %d of the offsets topic cannot be read; it is tried again", self.partition)
                await asyncio.sleep(RETRY_LOAD_SECONDS)

    async def _replay(self) -> None:
        snapshots: dict[str, GroupSnapshot] = {}
        offsets: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        read = 0
        async for key, value in self._log.read_all(self.partition):
            try:
                _apply(records.decode(key, value), snapshots, offsets)
            except records.MalformedRecord as error:
                log.warning("a record of partition %d of the offsets topic is passed over: %s", self.partition, error)
            read += 1
            if read % REPLAYED_AT_ONCE == 0:
                await asyncio.sleep(0)
        self._groups = {
            group_id: self._host_loaded(group_id, snapshots.get(group_id), offsets.get(group_id, {}))
            for group_id in snapshots.keys() | {name for name, found in offsets.items() if found}
        }
        self._ready = True
        for hosted in self._groups.values():
            hosted.loaded()
        if read:
            log.info("groups loaded: partition %d, %d groups, %d records", self.partition, len(self._groups), read)

    def _host_loaded(
        self, group_id: str, snapshot: GroupSnapshot | None, offsets: dict[TopicPartition, CommittedOffset]
    ) -> HostedGroup:
        group = restored(group_id, snapshot or GroupSnapshot(), self._config.limits)
        hosted = self._host(group)
        hosted.in_log = snapshot is not None
        hosted.offsets.apply(offsets)
        return hosted

    def _host(self, group: Group) -> HostedGroup:
        return HostedGroup(group, self._writer, self._clock, write_timeout_ms=self._config.offset_commit_timeout_ms)

    # ---- Groups ----------------------------------------------------------------------------------------------

    def groups(self) -> list[HostedGroup]:
        """All groups that live."""
        return [hosted for hosted in self._groups.values() if hosted.group.state is not State.DEAD]

    def find(self, group_id: str) -> HostedGroup | None:
        """The group if there is one."""
        return self._groups.get(group_id)

    def found(self, group_id: str) -> HostedGroup:
        """The group, made if need be. It is written down with its first generation or its first offset."""
        hosted = self._groups.get(group_id)
        if hosted is None:
            group = Group(group_id, self._config.limits, state_since_wall_ms=self._clock.wall_ms())
            hosted = self._groups[group_id] = self._host(group)
        return hosted

    def forget_if_nothing(self, hosted: HostedGroup) -> None:
        """A group that nobody is in, that has no offsets and no record, was never more than a question."""
        nothing = hosted.group.forgettable and not hosted.in_log and not hosted.offsets and hosted.offsets.settled
        if nothing and self._groups.get(hosted.group.group_id) is hosted:
            hosted.close(NotCoordinator)
            del self._groups[hosted.group.group_id]

    # ---- Offsets ---------------------------------------------------------------------------------------------

    async def write_offsets(self, hosted: HostedGroup, change: Change) -> None:
        """Returns once the change is durable and seen by readers. Raises KafkaError; then it may still come to pass."""
        group_id = hosted.group.group_id
        pairs = [
            (records.offset_key(group_id, partition), None if committed is None else records.offset_value(committed))
            for partition, committed in change.items()
        ]
        hosted.offsets.begin(change.keys())
        await self._write(pairs, lambda stored: hosted.offsets.finish(change, stored=stored), offset_write_error)

    async def delete(self, hosted: HostedGroup) -> None:
        """Delete a group and all its offsets. Raises KafkaError: NonEmptyGroup, GroupIdNotFound, or a failed write."""
        refusal = hosted.machine.die()
        if refusal is not ErrorCode.NONE:
            raise error_for(refusal)
        group_id = hosted.group.group_id
        change: dict[TopicPartition, None] = dict.fromkeys(hosted.offsets.all_partitions())
        pairs: list[KeyValue] = [(records.offset_key(group_id, partition), None) for partition in change]
        if hosted.in_log:
            pairs.append((records.group_key(group_id), None))
        hosted.offsets.begin(change.keys())
        await self._write(pairs, lambda stored: self._deleted(hosted, change, stored=stored), group_write_error)

    def _deleted(self, hosted: HostedGroup, change: Change, *, stored: bool) -> None:
        hosted.offsets.finish(change, stored=stored)
        if not stored:
            hosted.machine.revive()
        elif self._groups.get(hosted.group.group_id) is hosted:
            hosted.close(NotCoordinator)
            del self._groups[hosted.group.group_id]

    async def _write(self, pairs: Sequence[KeyValue], finish: _Finish, error_of: _ErrorOf) -> None:
        """Wait for the write, but not for ever. `finish` is told what came of it in any case, in the log's order."""
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

    # ---- What goes away by itself ----------------------------------------------------------------------------

    async def expire(self, now_wall_ms: int) -> None:
        """Forget offsets that have had their day, and groups that are nothing any more (KIP-211)."""
        for hosted in self.groups():
            over = expired(
                hosted.offsets,
                hosted.group,
                now_wall_ms=now_wall_ms,
                retention_ms=self._config.offsets_retention_ms,
            )
            all_go = len(over) == len(hosted.offsets) and hosted.offsets.settled
            if all_go and hosted.group.forgettable:
                await self.delete(hosted)
            elif over:
                await self.write_offsets(hosted, dict.fromkeys(over))

    async def topics_deleted(self, topics: frozenset[str]) -> None:
        """Offsets into topics that are gone mean nothing, and must not meet a new topic of the same name."""
        for hosted in list(self._groups.values()):
            gone = [partition for partition in hosted.offsets.all_partitions() if partition.topic in topics]
            if gone:
                await self.write_offsets(hosted, dict.fromkeys(gone))


def _apply(
    record: records.OffsetRecord | records.GroupRecord | records.ForeignRecord,
    snapshots: dict[str, GroupSnapshot],
    offsets: dict[str, dict[TopicPartition, CommittedOffset]],
) -> None:
    """The last record of each key wins."""
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
