"""Coordinates the groups of one partition of `__consumer_offsets`: loads them and writes their changes.

A shard exists while this broker leads the partition, in one leader epoch or in several without a gap.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Collection, Sequence
from functools import partial

from ottla.core.clock import Clock
from ottla.core.errors import ErrorCode, GroupIdNotFound, error_for
from ottla.core.events import EventLog
from ottla.core.ids import NO_PRODUCER_ID, NO_TOPIC_ID, OFFSETS_TOPIC, TopicPartition
from ottla.groups import records
from ottla.groups.classic.events import GroupDisbanded, GroupSnapshot
from ottla.groups.classic.group import ClassicGroup
from ottla.groups.classic.machine import ClassicMachine
from ottla.groups.config import GroupConfig
from ottla.groups.consumer import records as consumer_records
from ottla.groups.consumer.conversion import consumer_group, validate_upgrade
from ottla.groups.consumer.group import ConsumerGroup
from ottla.groups.consumer.machine import ConsumerMachine
from ottla.groups.consumer.records import ConsumerRecord
from ottla.groups.group_events import record_expired
from ottla.groups.group_runtime import GroupRuntime
from ottla.groups.machine import GroupMachine
from ottla.groups.modern.cluster_image import ClusterImage
from ottla.groups.modern.events import RequestRefused, TopicsChanged
from ottla.groups.offsets import Change, CommittedOffset, expired
from ottla.groups.records import MalformedOffsetsRecord
from ottla.groups.share import records as share_records
from ottla.groups.share.group import ShareGroup
from ottla.groups.share.machine import ShareMachine
from ottla.groups.share.records import ShareRecord
from ottla.internal_topics.coordinator_partition import CoordinatorPartition, Term, WriteResult
from ottla.internal_topics.shard import CoordinatorShard
from ottla.internal_topics.topic_log import KeyValue, LoadedRecords, ProducerIdentity, TopicLog
from ottla.internal_topics.write_errors import coordinator_write_error

log = logging.getLogger(__name__)

STARTED_AT_ONCE, STARTING_SLICE_S = 50, 0.005
"""The loaded groups to start, and the time to spend on them, before yielding to the loop."""

OFFSETS_AT_ONCE = 1_000
"""The offsets to compare with the time or the topics before yielding to the loop."""


class GroupShard(CoordinatorShard):
    """Coordinates the groups of one partition that this broker leads."""

    def __init__(
        self,
        term: Term,
        config: GroupConfig,
        topic_log: TopicLog,
        clock: Clock,
        cluster: ClusterImage,
        events: EventLog | None = None,
    ) -> None:
        self._events = events
        self._config, self._clock, self._cluster = config, clock, cluster
        self._groups: dict[str, GroupRuntime] = {}
        self._in_transactions: dict[int, set[str]] = {}  # producer id -> groups with offsets in its transaction
        self._offset_records = records.OffsetRecordReader()
        super().__init__(
            CoordinatorPartition(
                OFFSETS_TOPIC,
                term,
                topic_log,
                self.begin_load,
                write_timeout_ms=config.offset_commit_timeout_ms,
                before_ready=self._start_groups,
            ),
            term,
        )
        self._partition.start()

    # ---- Loading

    def stop(self, *, refuse_writes: bool) -> None:
        """Stop coordinating: timers end and waiting requests fail."""
        super().stop(refuse_writes=refuse_writes)
        for runtime in self._groups.values():
            runtime.close()

    async def close(self) -> None:
        """Wait until the queued writes are written or have failed."""
        await super().close()
        self._groups.clear()

    def begin_load(self) -> GroupShard:
        """Forget what a load that failed before its end has left."""
        for runtime in self._groups.values():
            runtime.close()
        self._groups.clear()
        self._in_transactions.clear()
        return self

    def apply(self, loaded: LoadedRecords) -> None:
        """Apply records of the log; malformed ones are skipped."""
        producer_id = NO_PRODUCER_ID if loaded.producer is None else loaded.producer.producer_id
        if loaded.commits is not None:
            self.apply_marker(producer_id, commit=loaded.commits)
        for part in self._offset_records.read(loaded.records):
            try:
                if isinstance(part, records.GroupChange):
                    self.apply_offsets(self._loading(part.group_id), part.change, producer_id)
                else:
                    self._apply(*part, producer_id)
            except MalformedOffsetsRecord as error:
                log.warning("skipped a malformed record of offsets partition %d: %s", self.partition, error)

    def _apply(self, key: bytes, value: bytes | None, producer_id: int) -> None:
        if consumer_records.is_consumer_group(key):
            self._apply_consumer(consumer_records.decode(key, value))
        elif share_records.is_share_group(key):
            self._apply_share(share_records.decode(key, value))
        else:
            match records.decode(key, value):
                case records.OffsetRecord(group_id, where, committed):
                    self.apply_offsets(self._loading(group_id), {where: committed}, producer_id)
                case records.GroupRecord(group_id, snapshot):
                    self._apply_classic(group_id, snapshot)
                case records.ForeignRecord():
                    pass

    def _loading(self, group_id: str) -> GroupRuntime:
        """Return the group of a record: a classic one until the log says otherwise."""
        runtime = self._groups.get(group_id)
        if runtime is None:
            runtime = self.create(self._new_classic(group_id))
            runtime.is_started = False
        return runtime

    def _apply_consumer(self, record: ConsumerRecord) -> None:
        runtime = self._loading(record[0].group_id)
        if not isinstance(runtime.machine, ConsumerMachine) and record[1] is not None:
            runtime.replace_machine(self.new_consumer(ConsumerGroup(runtime.group_id)))
        if isinstance(runtime.machine, ConsumerMachine):
            runtime.machine.group.apply(record)

    def _apply_share(self, record: ShareRecord) -> None:
        runtime = self._loading(record[0].group_id)
        if not isinstance(runtime.machine, ShareMachine) and record[1] is not None:
            runtime.replace_machine(self.new_share(ShareGroup(runtime.group_id)))
        if isinstance(runtime.machine, ShareMachine):
            runtime.machine.group.apply(record)

    def _apply_classic(self, group_id: str, snapshot: GroupSnapshot | None) -> None:
        runtime = self._loading(group_id)
        if not isinstance(runtime.machine, ClassicMachine) and snapshot is not None:
            runtime.replace_machine(self._new_classic(group_id))
        if isinstance(runtime.machine, ClassicMachine):
            runtime.machine.group.apply(snapshot)
            runtime.in_log = snapshot is not None

    async def _start_groups(self) -> None:
        """Start the loaded groups in slices."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for count, runtime in enumerate(list(self._groups.values()), start=1):
            self._start(runtime)
            if count % STARTED_AT_ONCE == 0 or loop.time() - began_s > STARTING_SLICE_S:
                await asyncio.sleep(0)
                began_s = loop.time()

    def _start(self, runtime: GroupRuntime) -> None:
        """Start a loaded group: the sessions of its members begin again. One that fails is left out."""
        group = runtime.group
        if isinstance(group, ConsumerGroup | ShareGroup):
            runtime.in_log = group.is_in_log
            if not group.is_in_log:  # it is deleted
                runtime.replace_machine(self._new_classic(runtime.group_id))
        runtime.is_started = True
        runtime.loaded()
        if runtime.is_open:
            self.remove_if_unused(runtime)
        else:
            del self._groups[runtime.group_id]

    def complete(self) -> str:
        """Take the groups into use."""
        self._offset_records = records.OffsetRecordReader()
        return f"{len(self._groups)} groups"

    def _new_classic(self, group_id: str, state_since_wall_ms: int = -1) -> ClassicMachine:
        return ClassicMachine(
            ClassicGroup(group_id, self._config.classic_settings, state_since_wall_ms=state_since_wall_ms)
        )

    def new_consumer(self, group: ConsumerGroup, first_records: Sequence[KeyValue] = ()) -> ConsumerMachine:
        """Return the machine of a consumer group."""
        settings = self._config.consumer_settings(self._cluster.settings_of(group.group_id))
        return ConsumerMachine(group, settings, self._cluster.topics, first_records)

    def _runtime(self, machine: GroupMachine) -> GroupRuntime:
        writer, timeout_ms = self._partition.writer, self._config.offset_commit_timeout_ms
        return GroupRuntime(
            machine, writer, self._clock, write_timeout_ms=timeout_ms, on_failed=self._step_failed, events=self._events
        )

    # ---- Groups

    def groups(self) -> Collection[GroupRuntime]:
        """Return all groups, to be read before the loop turns."""
        return self._groups.values()

    def find(self, group_id: str) -> GroupRuntime | None:
        """Return the group, or None."""
        return self._groups.get(group_id)

    def find_or_create(self, group_id: str) -> GroupRuntime:
        """Return the group, created as a classic one if there is none.

        It is written with its first generation or its first offset.
        """
        found = self._groups.get(group_id)
        return found or self.create(self._new_classic(group_id, self._clock.wall_ms()))

    def find_or_create_consumer(self, group_id: str, *, may_create: bool) -> GroupRuntime:
        """Return a consumer group. A joining member creates it, and converts a classic one. Raises GroupIdNotFound."""
        runtime = self._groups.get(group_id)
        if runtime is None:
            if not may_create:
                raise GroupIdNotFound(f"Consumer group {group_id} not found.")
            return self.create(self.new_consumer(ConsumerGroup(group_id)))
        machine = runtime.machine
        if isinstance(machine, ConsumerMachine):
            return runtime
        if not may_create or not isinstance(machine, ClassicMachine) or runtime.is_being_deleted:
            raise GroupIdNotFound(f"Group {group_id} is not a consumer group.")
        with self.step_of(group_id, "conversion to a consumer group"):
            self._upgrade(runtime, machine.group)
        return runtime

    def new_share(self, group: ShareGroup) -> ShareMachine:
        """Return the machine of a share group."""
        settings = self._config.share_settings(self._cluster.settings_of(group.group_id))
        return ShareMachine(group, settings, self._cluster.topics)

    def find_or_create_share(self, group_id: str, *, may_create: bool) -> tuple[GroupRuntime, ShareMachine]:
        """Return a share group, which a joining member creates. Raises GroupIdNotFound."""
        runtime = self._groups.get(group_id)
        if runtime is None:
            if not may_create:
                raise GroupIdNotFound(f"Group {group_id} not found.")
            machine = self.new_share(ShareGroup(group_id))
            return self.create(machine), machine
        if not isinstance(runtime.machine, ShareMachine):
            raise GroupIdNotFound(f"Group {group_id} is not a share group.")
        return runtime, runtime.machine

    def _upgrade(self, runtime: GroupRuntime, classic: ClassicGroup) -> None:
        """Continue with a consumer group of the same members. Raises GroupIdNotFound if that is not allowed."""
        group, first_records = ConsumerGroup(classic.group_id), classic.tombstones() if runtime.in_log else []
        if classic.members.by_id:  # a client that was only given a member id is no member yet
            try:
                validate_upgrade(classic, self._config.consumer_settings({}))
                group, first_records = consumer_group(classic, self._cluster.topics)
            except RequestRefused as refusal:
                raise GroupIdNotFound(refusal.message) from None
        runtime.feed(GroupDisbanded())
        runtime.replace_machine(self.new_consumer(group, first_records))
        if group.members:
            runtime.loaded()

    def downgrade_empty(self, runtime: GroupRuntime) -> None:
        """Continue with a classic group after a member of the classic protocol joined an empty consumer group."""
        machine = runtime.machine
        if isinstance(machine, ConsumerMachine) and machine.group.is_unused:
            runtime.replace_machine(self._new_classic(runtime.group_id, self._clock.wall_ms()))
            runtime.write_first(machine.group.tombstones())

    def cluster_changed(self, runtime: GroupRuntime, topics: frozenset[str]) -> None:
        """Pass the present snapshot of the cluster to a group, in which these topics changed."""
        machine = runtime.machine
        if isinstance(machine, ConsumerMachine):
            machine.settings = self._config.consumer_settings(self._cluster.settings_of(runtime.group_id))
        elif isinstance(machine, ShareMachine):
            machine.settings = self._config.share_settings(self._cluster.settings_of(runtime.group_id))
        else:
            return
        machine.topics = self._cluster.topics
        if topics and runtime.is_started:
            runtime.feed(TopicsChanged(topics))

    def create(self, machine: GroupMachine) -> GroupRuntime:
        """Create a group of any type, in memory only."""
        group_id = machine.group.group_id
        assert group_id not in self._groups, f"{group_id} exists"
        runtime = self._groups[group_id] = self._runtime(machine)
        return runtime

    def remove_if_unused(self, runtime: GroupRuntime) -> None:
        """Remove a group without members, offsets and records from memory."""
        is_unused = (
            runtime.group.is_unused and not runtime.in_log and not runtime.offsets and runtime.offsets.all_stable
        )
        if is_unused and self._groups.get(runtime.group_id) is runtime:
            runtime.close()
            del self._groups[runtime.group_id]

    async def delete(self, runtime: GroupRuntime) -> None:
        """Delete a group and all its offsets. Raises KafkaError: NonEmptyGroup, GroupIdNotFound, or a failed write."""
        with self.step_of(runtime.group_id, "deletion"):
            refusal = runtime.machine.begin_deletion()
        if refusal is not ErrorCode.NONE:
            raise error_for(refusal)
        runtime.is_being_deleted = True
        change: dict[TopicPartition, None] = dict.fromkeys(runtime.offsets.all_partitions())
        pairs = records.offset_pairs(runtime.group_id, change)
        if runtime.in_log:
            pairs += runtime.group.tombstones()
        runtime.offsets.in_flight.begin(change.keys())
        await self._write(pairs, partial(self._deleted, runtime, change))

    def _deleted(self, runtime: GroupRuntime, change: Change, *, stored: bool) -> None:
        self._offsets_written(runtime, change, stored=stored)
        runtime.is_being_deleted = False
        if not stored:
            runtime.machine.cancel_deletion()
        elif self._groups.get(runtime.group_id) is runtime:
            runtime.close()
            del self._groups[runtime.group_id]

    # ---- Offsets

    async def write_offsets(
        self, runtime: GroupRuntime, change: Change, pairs: Sequence[KeyValue], producer: ProducerIdentity | None = None
    ) -> None:
        """Write a change, encoded as `pairs`; returns once it is durable and visible.

        With a producer it is part of its transaction: it becomes visible with the transaction's marker
        (`complete_transaction`). After a KafkaError it may still become durable.
        """
        producer_id = NO_PRODUCER_ID if producer is None else producer.producer_id
        runtime.offsets.in_flight.begin(change.keys(), producer_id=producer_id)
        await self._write(pairs, partial(self._offsets_written, runtime, change, producer_id), producer)

    def _offsets_written(
        self, runtime: GroupRuntime, change: Change, producer_id: int = NO_PRODUCER_ID, *, stored: bool
    ) -> None:
        """Note the result of a write; called in the order of the log, so that the last one wins."""
        runtime.offsets.in_flight.end(change.keys(), producer_id=producer_id)
        if stored:
            self.apply_offsets(runtime, change, producer_id)

    def apply_offsets(self, runtime: GroupRuntime, change: Change, producer_id: int) -> None:
        """Apply durable records of a group's offsets."""
        runtime.offsets.apply(change, producer_id=producer_id)
        if producer_id != NO_PRODUCER_ID:
            self._in_transactions.setdefault(producer_id, set()).add(runtime.group_id)

    def apply_marker(self, producer_id: int, *, commit: bool) -> list[GroupRuntime]:
        """Apply a transaction's marker: make its offsets visible, or drop them. Returns the groups that had some."""
        ended = [self._groups[name] for name in self._in_transactions.pop(producer_id, set()) if name in self._groups]
        for runtime in ended:
            with self.step_of(runtime.group_id, "end of a transaction"):
                runtime.offsets.end_transaction(producer_id, commit=commit)
        return ended

    def _write(
        self, pairs: Sequence[KeyValue], finish: WriteResult, producer: ProducerIdentity | None = None
    ) -> Awaitable[None]:
        """Write records; `finish` applies them once they are durable, in the order of the log."""
        return self._partition.write(pairs, finish, coordinator_write_error, producer=producer)

    async def flush(self) -> None:
        """Wait until all changes of now are durable or have failed."""
        await self._partition.writer.flush()

    def marker_appended(self, offset: int) -> None:
        """Note the place of a transaction marker in the log."""
        self._partition.writer.marker_appended(offset)

    async def complete_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Make a producer's transactional offsets visible or drop them, after its marker is in the log.

        Results of writes before the marker may still be on their way; while the partition is being loaded, the marker
        may or may not have been read. Raises NotCoordinator if the term ends meanwhile.
        """
        await self.wait_until_loaded()
        await self.flush()
        self.check_ready()
        for runtime in self.apply_marker(producer_id, commit=commit):
            self.remove_if_unused(runtime)

    # ---- Expiry

    async def _in_slices(self) -> AsyncIterator[GroupRuntime]:
        """Yield the groups, in slices of so many offsets; those that go meanwhile are left out."""
        offsets = 0
        for runtime in list(self._groups.values()):
            if self._groups.get(runtime.group_id) is runtime:
                yield runtime
            offsets += 1 + len(runtime.offsets)
            if offsets >= OFFSETS_AT_ONCE:
                offsets = 0
                await asyncio.sleep(0)

    async def expire(self, now_wall_ms: int) -> None:
        """Delete expired offsets and unused groups (KIP-211)."""
        async for runtime in self._in_slices():
            if runtime.is_being_deleted:
                continue
            expired_ones = expired(
                runtime.offsets, runtime.group, now_wall_ms=now_wall_ms, retention_ms=self._config.offsets_retention_ms
            )
            if expired_ones and self._events is not None:
                record_expired(self._events, runtime.group_id, expired_ones, self._config.offsets_retention_ms)
            all_expired = len(expired_ones) == len(runtime.offsets) and runtime.offsets.all_stable
            if all_expired and runtime.group.is_unused:
                await self.delete(runtime)
            elif expired_ones:
                change: dict[TopicPartition, None] = dict.fromkeys(expired_ones)
                await self.write_offsets(runtime, change, records.offset_pairs(runtime.group_id, change))

    async def topics_deleted(self, topics: frozenset[str]) -> None:
        """Delete the offsets of deleted topics: they must not apply to a new topic of the same name."""
        async for runtime in self._in_slices():
            await self._delete_offsets(
                runtime,
                [
                    where
                    for where in runtime.offsets.all_partitions()
                    if where.topic in topics and not self._is_of_present_topic(where, runtime.offsets.get(where))
                ],
            )

    async def topics_compared(self) -> None:
        """Delete the offsets of topics that were deleted while this broker did not coordinate, or was loading."""
        async for runtime in self._in_slices():
            await self._delete_offsets(
                runtime,
                [
                    where
                    for where, committed in runtime.offsets.items()
                    if committed.topic_id != NO_TOPIC_ID and not self._is_of_present_topic(where, committed)
                ],
            )

    def _is_of_present_topic(self, where: TopicPartition, committed: CommittedOffset | None) -> bool:
        """Return whether an offset is known to be of the topic that has the name now."""
        if where.topic in self._cluster.unreadable_topics:
            return True
        present = self._cluster.topics.get(where.topic)
        return present is not None and committed is not None and committed.topic_id == present.topic_id

    async def _delete_offsets(self, runtime: GroupRuntime, gone: Sequence[TopicPartition]) -> None:
        if gone:
            change: dict[TopicPartition, None] = dict.fromkeys(gone)
            await self.write_offsets(runtime, change, records.offset_pairs(runtime.group_id, change))
