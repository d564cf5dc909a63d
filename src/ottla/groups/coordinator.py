"""The group coordinator: all groups whose partition of `__consumer_offsets` this broker leads.

Handlers call it with a group's name; it finds the partition, checks that this broker leads it and has read it, and asks
the group. Raises KafkaError for what concerns the whole request; what a group answers comes back as a value.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import NamedTuple, TypeVar

from ottla.coordination.view import ClusterView
from ottla.core.clock import Clock
from ottla.core.errors import (
    ErrorCode,
    GroupIdNotFound,
    InvalidGroupId,
    InvalidSessionTimeout,
    KafkaError,
    NotCoordinator,
    OffsetMetadataTooLarge,
    error_for,
)
from ottla.core.ids import OFFSETS_TOPIC, TopicPartition
from ottla.groups.config import GroupConfig
from ottla.groups.consumer_protocol import CONSUMER
from ottla.groups.events import (
    Answer,
    Commit,
    Event,
    Heartbeat,
    Join,
    JoinAnswer,
    Leave,
    LeaveAnswer,
    PlainAnswer,
    State,
    Sync,
    SyncAnswer,
)
from ottla.groups.group import Group
from ottla.groups.hosted import HostedGroup
from ottla.groups.offsets import CommittedOffset
from ottla.groups.shard import Shard
from ottla.groups.writer import OffsetsLog

log = logging.getLogger(__name__)


MEMBER_PREFIX_CHARS_MAX = 1_000
"""A member id begins with the client's own name; cut there, so that it always fits in a string of the protocol."""

A = TypeVar("A", bound=Answer)


class Joining(NamedTuple):
    """A JoinGroup as the wire says it; `protocols` are (name, metadata)."""

    member_id: str
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    instance_id: str | None
    client_id: str
    client_host: str
    must_know_its_id: bool
    may_skip_assignment: bool


class GroupSummary(NamedTuple):
    """A line of ListGroups."""

    group_id: str
    protocol_type: str
    state: State


def partition_of(group_id: str, partitions: int) -> int:
    """Kafka's own choice: the absolute value of Java's `String.hashCode` (0 for the smallest int), modulo partitions.

    >>> partition_of("team", 4), partition_of("javagrp", 4), partition_of("", 50)
    (1, 1, 0)
    """
    raw, value = group_id.encode("utf-16-be"), 0
    for at in range(0, len(raw), 2):
        value = (31 * value + (raw[at] << 8 | raw[at + 1])) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >> 31 else value
    return (abs(signed) if signed != -(1 << 31) else 0) % partitions


def _random_id() -> str:
    return str(uuid.uuid4())


class GroupCoordinator:
    """One per broker. Call `follow` with every new picture of the cluster, and `close` at the end."""

    def __init__(
        self,
        config: GroupConfig,
        *,
        clock: Clock,
        log: OffsetsLog,
        node_id: int,
        new_id: Callable[[], str] = _random_id,
    ) -> None:
        self.config = config
        self._clock, self._log, self._node_id, self._new_id = clock, log, node_id, new_id
        self._shards: dict[int, Shard] = {}
        self._led: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._expiry: asyncio.Task[None] | None = None

    # ---- What this broker coordinates ------------------------------------------------------------------------

    def follow(self, old: ClusterView, new: ClusterView) -> None:
        """Take up the partitions this broker leads from now on, let go of the others; forget deleted topics."""
        before, now = old.topics.get(OFFSETS_TOPIC), new.topics.get(OFFSETS_TOPIC)
        if now is not before:
            self._led = {part.index for part in now.partitions if part.leader == self._node_id} if now else set()
            for partition in self._shards.keys() - self._led:
                self.resign(partition)
            for partition in sorted(self._led):
                self.lead_again(partition)
        gone = old.topics.keys() - new.topics.keys() if old.topics is not new.topics else set()
        if gone:
            self._run(self.topics_deleted(frozenset(gone)))

    def lead(self, partition: int) -> None:
        """This broker leads the partition: read its groups. Until they are read, requests are told to come again."""
        assert partition not in self._shards, f"partition {partition} is led already"
        self._shards[partition] = Shard(partition, self.config, self._log, self._clock)
        if self._expiry is None:
            self._expiry = asyncio.get_running_loop().create_task(self._expire_for_ever(), name="expire offsets")

    def lead_again(self, partition: int) -> None:
        """Read the groups of a partition that this broker leads, if that is not done and the disk allows it."""
        if partition in self._led and partition not in self._shards and not self._log.is_offline(partition):
            self.lead(partition)

    def resign(self, partition: int) -> None:
        """Another broker leads the partition, or its disk is gone: whoever waits here is sent away."""
        shard = self._shards.pop(partition, None)
        if shard is not None:
            self._run(shard.close())

    def is_offline(self, partition: int) -> bool:
        """Whether the disk of this broker's replica refuses, so that its groups have no coordinator for now."""
        return self._log.is_offline(partition)

    async def wait_until_loaded(self) -> None:
        """For tests and tools; clients are told to come again instead."""
        for shard in list(self._shards.values()):
            await shard.wait_until_loaded()

    async def close(self) -> None:
        """Answer whoever waits, write what is queued, stop everything."""
        if self._expiry is not None:
            self._expiry.cancel()
            await asyncio.gather(self._expiry, return_exceptions=True)
            self._expiry = None
        for partition in list(self._shards):
            self.resign(partition)
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def partition_for(self, group_id: str) -> int:
        """The partition that keeps the group. Raises NotCoordinator before the topic's first use."""
        partitions = self._log.partitions
        if partitions <= 0:
            raise NotCoordinator(f"{OFFSETS_TOPIC} does not exist yet")
        return partition_of(group_id, partitions)

    # ---- Members ---------------------------------------------------------------------------------------------

    async def join(self, group_id: str, joining: Joining) -> JoinAnswer:
        """JoinGroup. Raises KafkaError. Answers when the rebalance is complete."""
        shard = self._shard_of(group_id, may_be_empty=False)
        if not self.config.min_session_timeout_ms <= joining.session_timeout_ms <= self.config.max_session_timeout_ms:
            raise InvalidSessionTimeout
        hosted = shard.found(group_id)
        prefix = joining.instance_id if joining.instance_id is not None else joining.client_id
        event = Join(new_member_id=f"{prefix[:MEMBER_PREFIX_CHARS_MAX]}-{self._new_id()}", **joining._asdict())
        answer = await self._ask(hosted, event, JoinAnswer)
        shard.forget_if_nothing(hosted)
        return answer

    async def sync(self, group_id: str, sync: Sync) -> SyncAnswer:
        """SyncGroup. Raises KafkaError. Answers when the leader's assignment is durable."""
        hosted = self._shard_of(group_id, may_be_empty=False).find(group_id)
        if hosted is None:
            return SyncAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID)
        return await self._ask(hosted, sync, SyncAnswer)

    async def heartbeat(self, group_id: str, beat: Heartbeat) -> ErrorCode:
        """Heartbeat. Raises KafkaError."""
        hosted = self._shard_of(group_id, may_be_empty=False).find(group_id)
        return ErrorCode.UNKNOWN_MEMBER_ID if hosted is None else (await self._ask(hosted, beat, PlainAnswer)).error

    async def leave(self, group_id: str, leave: Leave) -> LeaveAnswer:
        """LeaveGroup. Raises KafkaError."""
        shard = self._shard_of(group_id, may_be_empty=False)
        hosted = shard.find(group_id)
        if hosted is None:
            return LeaveAnswer((ErrorCode.UNKNOWN_MEMBER_ID,) * len(leave.leavers))
        answer = await self._ask(hosted, leave, LeaveAnswer)
        shard.forget_if_nothing(hosted)
        return answer

    # ---- Offsets ---------------------------------------------------------------------------------------------

    async def commit(
        self, group_id: str, commit: Commit, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> dict[TopicPartition, ErrorCode]:
        """OffsetCommit: the outcome per partition. Raises KafkaError for all; GroupIdNotFound: see the handler."""
        shard = self._shard_of(group_id)
        hosted = shard.find(group_id)
        if hosted is None and commit.generation >= 0:
            raise GroupIdNotFound
        hosted = hosted or shard.found(group_id)
        try:
            refusal = (await self._ask(hosted, commit, PlainAnswer)).error
            if refusal is not ErrorCode.NONE:
                raise error_for(refusal)
            limit = self.config.offset_metadata_max_bytes
            fitting = {tp: one for tp, one in offsets.items() if len(one.metadata) <= limit}
            if fitting:
                await shard.write_offsets(hosted, fitting)
        finally:
            shard.forget_if_nothing(hosted)
        return {tp: ErrorCode.NONE if tp in fitting else OffsetMetadataTooLarge.code for tp in offsets}

    def fetch(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """All durable offsets of a group; none of an unknown one. Raises KafkaError."""
        hosted = self._shard_of(group_id).find(group_id)
        return dict(hosted.offsets.items()) if hosted is not None else {}

    async def delete_offsets(
        self, group_id: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """OffsetDelete: the outcome per partition. Raises KafkaError for all."""
        shard = self._shard_of(group_id)
        hosted = self._existing(shard, group_id)
        group = hosted.group
        if group.state is not State.EMPTY and group.protocol_type != CONSUMER:
            raise error_for(ErrorCode.NON_EMPTY_GROUP)  # what its members read is not to be known
        subscribed = {partition for partition in partitions if group.is_subscribed_to(partition.topic)}
        doomed = {p for p in partitions if p not in subscribed and p in hosted.offsets.all_partitions()}
        if doomed:
            await shard.write_offsets(hosted, dict.fromkeys(doomed))
            shard.forget_if_nothing(hosted)
        return {p: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if p in subscribed else ErrorCode.NONE for p in partitions}

    async def topics_deleted(self, topics: frozenset[str]) -> None:
        """Forget all groups' offsets into these topics."""
        for shard in [shard for shard in self._shards.values() if shard.ready]:
            try:
                await shard.topics_deleted(topics)
            except KafkaError as error:
                log.warning(
                    "offsets of deleted topics stay for now in partition %d: %s", shard.partition, error.message
                )

    # ---- Groups ----------------------------------------------------------------------------------------------

    def list_groups(self) -> list[GroupSummary]:
        """All groups here. Raises CoordinatorLoadInProgress: a list with holes would look like deletions."""
        for shard in self._shards.values():
            shard.check_ready()
        return [
            GroupSummary(hosted.group.group_id, hosted.group.protocol_type or "", hosted.group.state)
            for shard in self._shards.values()
            for hosted in shard.groups()
        ]

    def describe(self, group_id: str) -> Group:
        """The group, to be looked at only. Raises GroupIdNotFound and other KafkaErrors."""
        return self._existing(self._shard_of(group_id), group_id).group

    async def delete(self, group_id: str) -> None:
        """DeleteGroups, one of them. Raises KafkaError."""
        shard = self._shard_of(group_id)
        await shard.delete(self._existing(shard, group_id))

    async def expire(self) -> None:
        """One look for what has had its day. Runs by itself; tests and tools call it too."""
        for shard in [shard for shard in self._shards.values() if shard.ready]:
            try:
                await shard.expire(self._clock.wall_ms())
            except KafkaError as error:
                log.warning("partition %d keeps expired offsets for now: %s", shard.partition, error.message)

    # ---- Inside ----------------------------------------------------------------------------------------------

    def _shard_of(self, group_id: str, *, may_be_empty: bool = True) -> Shard:
        """Members need a name; offsets are kept under the empty one too, as Kafka always did."""
        if not group_id and not may_be_empty:
            raise InvalidGroupId
        shard = self._shards.get(self.partition_for(group_id))
        if shard is None:
            raise NotCoordinator(f"another broker coordinates the group {group_id!r}")
        shard.check_ready()
        return shard

    def _existing(self, shard: Shard, group_id: str) -> HostedGroup:
        hosted = shard.find(group_id)
        if hosted is None or hosted.group.state is State.DEAD:
            raise GroupIdNotFound(f"Group {group_id} not found.")
        return hosted

    async def _ask(self, hosted: HostedGroup, event: Event, kind: type[A]) -> A:
        answer = await hosted.ask(event)
        assert isinstance(answer, kind), f"{answer} answers {event}"
        return answer

    async def _expire_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self.config.offsets_retention_check_interval_ms / 1000)
            try:
                await self.expire()
            except Exception:
                log.exception("looking for expired offsets failed; it is tried again")

    def _run(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
