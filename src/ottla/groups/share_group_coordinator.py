"""Coordinates share groups: their members, and the states of their share partitions (KIP-932).

A share partition gets its state before a member gets the partition. The states are kept by share coordinators, which
the port `ShareStates` reaches.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Mapping
from uuid import UUID

from ottla.core.errors import ErrorCode, GroupIdNotFound, InvalidGroupId, KafkaError, error_for
from ottla.groups.assignors.spec import Partitions
from ottla.groups.group_runtime import GroupRuntime
from ottla.groups.modern.events import JOIN_EPOCH, LEAVE_EPOCH, HeartbeatAnswer
from ottla.groups.shard import GroupShard
from ottla.groups.share.events import (
    OffsetsAltered,
    ShareHeartbeat,
    ShareStates,
    StatesDeleted,
    StatesInitialized,
    StateSummary,
)
from ottla.groups.share.group import ShareGroup
from ottla.groups.share.machine import ShareMachine
from ottla.internal_topics.led_partitions import LedPartitions

log = logging.getLogger(__name__)

UNINITIALIZED_OFFSET = -1

TopicPartitionId = tuple[UUID, int]


class ShareGroupCoordinator:
    """Coordinates the share groups among the groups of a GroupCoordinator, whose partitions it uses."""

    def __init__(self, led: LedPartitions[GroupShard], states: ShareStates) -> None:
        self._led, self._states = led, states
        self._initializing: set[str] = set()  # groups whose share partitions get their states now

    # ---- Members

    async def heartbeat(self, group_id: str, beat: ShareHeartbeat) -> HeartbeatAnswer:
        """Handle ShareGroupHeartbeat; returns once the changes are durable. Raises KafkaError."""
        shard = self._shard_of(group_id)
        runtime, machine = shard.find_or_create_share(group_id, may_create=beat.member_epoch == JOIN_EPOCH)
        try:
            if beat.member_epoch != LEAVE_EPOCH:
                await self._initialize(runtime, machine, machine.group.topics() | (beat.topics or frozenset()))
            answer = await runtime.ask(beat)
        finally:
            shard.remove_if_unused(runtime)
        assert isinstance(answer, HeartbeatAnswer), f"{answer} answers {beat}"
        return answer

    async def _initialize(self, runtime: GroupRuntime, machine: ShareMachine, topics: frozenset[str]) -> None:
        """Give states to the share partitions that have none. What fails is tried again with the next heartbeat."""
        missing = machine.uninitialized(topics)
        if not missing or machine.group.group_id in self._initializing:
            return
        group_id = machine.group.group_id
        self._initializing.add(group_id)
        done: dict[UUID, frozenset[int]] = {}
        try:
            for topic_id, indexes in missing.items():
                epoch = machine.group.epoch
                await asyncio.gather(  # they share writes
                    *(
                        self._states.initialize(group_id, topic_id, index, epoch, UNINITIALIZED_OFFSET)
                        for index in sorted(indexes)
                    )
                )
                done[topic_id] = indexes
        except KafkaError as error:
            log.warning("share group %s: initializing share partitions failed: %s", group_id, error.message)
        finally:
            self._initializing.discard(group_id)
        if done:
            runtime.feed(StatesInitialized(done))

    def describe(self, group_id: str) -> ShareGroup:
        """Return the share group for reading. Raises GroupIdNotFound and other KafkaErrors."""
        return self._existing(group_id)[1].group

    # ---- Offsets

    async def offsets(
        self, group_id: str, partitions: Collection[TopicPartitionId] | None
    ) -> dict[TopicPartitionId, StateSummary | KafkaError]:
        """Handle DescribeShareGroupOffsets: of these share partitions, or of all. Raises KafkaError.

        An unknown group is a group without offsets, as in Kafka; named partitions need no group at all.
        """
        initialized: dict[UUID, frozenset[int]] = {}
        if partitions is None or self._led.exists:
            with contextlib.suppress(GroupIdNotFound):
                initialized = self.describe(group_id).initialized
        everything = [(topic_id, index) for topic_id, indexes in initialized.items() for index in sorted(indexes)]
        found: dict[TopicPartitionId, StateSummary | KafkaError] = {}
        asked: list[TopicPartitionId] = []
        for topic_id, index in everything if partitions is None else partitions:
            found[topic_id, index] = StateSummary(UNINITIALIZED_OFFSET, 0, -1)
            if index in initialized.get(topic_id, frozenset()):
                asked.append((topic_id, index))
        summaries = await asyncio.gather(*(self._summary(group_id, *each) for each in asked))
        found.update(zip(asked, summaries, strict=True))
        return found

    async def _summary(self, group_id: str, topic_id: UUID, index: int) -> StateSummary | KafkaError:
        try:
            return await self._states.summary(group_id, topic_id, index)
        except KafkaError as error:
            return error

    async def alter_offsets(
        self, group_id: str, offsets: Mapping[TopicPartitionId, int]
    ) -> dict[TopicPartitionId, KafkaError | None]:
        """Handle AlterShareGroupOffsets: set the starts of share partitions of an empty group. Raises KafkaError.

        A group that was never used is created, unless there is nothing to set.
        """
        shard = self._shard_of(group_id)
        runtime, machine = shard.find_or_create_share(group_id, may_create=True)
        if runtime.is_being_deleted:
            raise GroupIdNotFound(f"Group {group_id} not found.")
        try:
            self._check_empty(machine.group)
            if offsets:
                await self._ask(runtime, OffsetsAltered())
        finally:
            shard.remove_if_unused(runtime)
        results: dict[TopicPartitionId, KafkaError | None] = {}
        done: dict[UUID, frozenset[int]] = {}
        for (topic_id, index), offset in offsets.items():
            try:
                await self._states.initialize(group_id, topic_id, index, machine.group.epoch, offset)
            except KafkaError as error:
                results[topic_id, index] = error
                continue
            results[topic_id, index] = None
            done[topic_id] = done.get(topic_id, frozenset()) | {index}
        if done:
            runtime.feed(StatesInitialized(done))
        return results

    async def delete_offsets(self, group_id: str, topics: Collection[UUID]) -> dict[UUID, KafkaError | None]:
        """Handle DeleteShareGroupOffsets: delete the states of topics of an empty group. Raises KafkaError."""
        runtime, machine = self._existing(group_id)
        self._check_empty(machine.group)
        initialized = {topic: machine.group.initialized.get(topic, frozenset()) for topic in topics}
        results, deleted = await self._delete_states(group_id, initialized)
        if deleted:
            await self._ask(runtime, StatesDeleted(deleted))
        return results

    async def prepare_deletion(self, group_id: str) -> None:
        """Delete the states of a share group that is about to be deleted. Raises KafkaError if it has members."""
        runtime = self._shard_of(group_id, may_be_empty=True).find(group_id)
        machine = None if runtime is None else runtime.machine
        if runtime is None or not isinstance(machine, ShareMachine) or not machine.group.initialized:
            return
        self._check_empty(machine.group)
        results, deleted = await self._delete_states(group_id, machine.group.initialized)
        if deleted:
            await self._ask(runtime, StatesDeleted(deleted))
        for error in results.values():
            if error is not None:
                raise error

    async def _delete_states(
        self, group_id: str, partitions: Partitions
    ) -> tuple[dict[UUID, KafkaError | None], frozenset[UUID]]:
        results: dict[UUID, KafkaError | None] = {}
        for topic_id, indexes in list(partitions.items()):
            results[topic_id] = None
            try:
                for index in sorted(indexes):
                    await self._states.delete(group_id, topic_id, index)
            except KafkaError as error:
                results[topic_id] = error
        return results, frozenset(topic_id for topic_id, error in results.items() if error is None)

    # ---- Internals

    def _shard_of(self, group_id: str, *, may_be_empty: bool = False) -> GroupShard:
        if not group_id and not may_be_empty:
            raise InvalidGroupId
        return self._led.shard_of(group_id)

    def _existing(self, group_id: str) -> tuple[GroupRuntime, ShareMachine]:
        runtime = self._shard_of(group_id).find(group_id)
        if runtime is None or runtime.is_being_deleted:
            raise GroupIdNotFound(f"Group {group_id} not found.")
        if not isinstance(runtime.machine, ShareMachine):
            raise GroupIdNotFound(f"Group {group_id} is not a share group.")
        return runtime, runtime.machine

    def _check_empty(self, group: ShareGroup) -> None:
        if group.members:
            raise error_for(ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")

    async def _ask(self, runtime: GroupRuntime, event: OffsetsAltered | StatesDeleted) -> None:
        answer = await runtime.ask(event)
        if answer.error is not ErrorCode.NONE:
            raise error_for(answer.error)
