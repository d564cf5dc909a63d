"""Coordinates the groups whose partition of `__consumer_offsets` this broker leads.

Handlers call it with a group's id; it finds the partition, checks that this broker leads it and has loaded it, and
passes the request to the group. Raises KafkaError for an error of the whole request; a group's answer is a value.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from ottla.core.clock import Clock
from ottla.core.errors import (
    ErrorCode,
    GroupIdNotFound,
    IllegalGeneration,
    InvalidGroupId,
    InvalidSessionTimeout,
    KafkaError,
    NotCoordinator,
    OffsetMetadataTooLarge,
    error_for,
)
from ottla.core.events import EventLog
from ottla.core.ids import OFFSETS_TOPIC, TopicPartition
from ottla.core.regexes import invalid_regex_message
from ottla.core.regexes import why_invalid as why_invalid_regex
from ottla.core.runtime import new_uuid
from ottla.groups.classic.events import Heartbeat, Join, JoinAnswer, Leave, LeaveAnswer, Sync, SyncAnswer
from ottla.groups.classic.group import ClassicGroup
from ottla.groups.classic.machine import ClassicMachine
from ottla.groups.config import GroupConfig
from ottla.groups.consumer.events import CommitAnswer, MemberHeartbeat
from ottla.groups.consumer.group import ConsumerGroup
from ottla.groups.consumer.validation import MEMBER_EPOCH_SINCE
from ottla.groups.group_runtime import GroupRuntime
from ottla.groups.machine import Commit, GroupAnswer, PlainAnswer
from ottla.groups.modern.cluster_image import ClusterImage
from ottla.groups.modern.events import JOIN_EPOCH, HeartbeatAnswer
from ottla.groups.offsets import CommittedOffset, GroupOffsets
from ottla.groups.records import offset_pairs
from ottla.groups.shard import GroupShard
from ottla.internal_topics.coordinator_partition import Term
from ottla.internal_topics.led_partitions import LedPartitions
from ottla.internal_topics.topic_log import ProducerIdentity, TopicLog
from ottla.metadata_store.cluster_view import ClusterView

log = logging.getLogger(__name__)


MEMBER_PREFIX_CHARS_MAX = 1_000
"""Bound on the client's name at the start of a member id, which must fit in a string of the protocol."""

OFFSETS_ON_LOOP_MAX = 500
"""The records of a commit of more offsets are encoded in a thread."""

CHANGED_AT_ONCE = 200
"""The groups to pass a new snapshot of the cluster to before yielding to the loop: consumer groups take 20 us each."""

A = TypeVar("A", bound=GroupAnswer)


class Joining(NamedTuple):
    """Holds the fields of a JoinGroup request; `protocols` are (name, metadata)."""

    member_id: str
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    instance_id: str | None
    client_id: str
    client_host: str
    requires_member_id: bool
    may_skip_assignment: bool


def _random_id() -> str:
    return str(new_uuid())


def _deleted_topics(old: ClusterView, new: ClusterView) -> frozenset[str]:
    """Return the names of topics that are deleted, or made again with another id."""
    if old.topics is new.topics:
        return frozenset()
    changed = new.changes_since(old).topics
    gone = (name for name in changed if name in old.topics)
    return frozenset(
        name for name in gone if name not in new.topics or new.topics[name].topic_id != old.topics[name].topic_id
    )


class GroupCoordinator:
    """Coordinates groups; one per broker. Call `follow` with each new cluster snapshot, and `close` at the end."""

    def __init__(
        self,
        config: GroupConfig,
        *,
        clock: Clock,
        log: TopicLog,
        node_id: int,
        new_id: Callable[[], str] = _random_id,
        events: EventLog | None = None,
    ) -> None:
        self.config = config
        self._clock, self._new_id = clock, new_id
        self._cluster = ClusterImage()

        def new_shard(term: Term) -> GroupShard:
            shard = GroupShard(term, config, log, clock, self._cluster, events)
            self.led.run(self._compare_topics(shard))
            return shard

        self.led = LedPartitions(OFFSETS_TOPIC, log, node_id, new_shard)
        self._expiry: asyncio.Task[None] | None = None
        self._compare_turn = asyncio.Lock()

    # ---- Led partitions

    def follow(self, old: ClusterView, new: ClusterView) -> None:
        """Follow the leadership of the partitions and the groups' topics; delete offsets of deleted topics."""
        changed = self._cluster.follow(new)
        if changed or old.configs is not new.configs:
            groups = [(shard, runtime) for shard in self.led.shards() for runtime in shard.groups()]
            self._pass_on(groups[:CHANGED_AT_ONCE], changed)
            if len(groups) > CHANGED_AT_ONCE:
                self.led.run(self._pass_on_in_slices(groups[CHANGED_AT_ONCE:], changed))
        self.led.follow(old, new)
        gone = _deleted_topics(old, new)
        if gone:
            self.led.run(self.topics_deleted(gone))

    @staticmethod
    def _pass_on(groups: Sequence[tuple[GroupShard, GroupRuntime]], topics: frozenset[str]) -> None:
        """Pass the present snapshot of the cluster to groups, in which these topics changed since an earlier one."""
        for shard, runtime in groups:
            shard.cluster_changed(runtime, topics)

    async def _pass_on_in_slices(
        self, groups: Sequence[tuple[GroupShard, GroupRuntime]], topics: frozenset[str]
    ) -> None:
        for first in range(0, len(groups), CHANGED_AT_ONCE):
            await asyncio.sleep(0)
            self._pass_on(groups[first : first + CHANGED_AT_ONCE], topics)

    async def _compare_topics(self, shard: GroupShard) -> None:
        """Compare the offsets of a shard with the present topics, once it is loaded."""
        await shard.wait_until_loaded()
        async with self._compare_turn:  # slices of many partitions would make one long turn of the loop
            if shard.is_ready:
                await self._warn_if_refused(shard, shard.topics_compared())

    def start(self) -> None:
        """Begin to delete expired offsets periodically."""
        self._expiry = asyncio.get_running_loop().create_task(self._expire_periodically(), name="expire offsets")

    async def close(self) -> None:
        """Fail the waiting requests, complete the queued writes and stop."""
        if self._expiry is not None:
            self._expiry.cancel()
            await asyncio.gather(self._expiry, return_exceptions=True)
            self._expiry = None
        await self.led.close()

    def check_ready(self, group_id: str) -> None:
        """Raise a KafkaError unless this broker coordinates the group and has loaded it."""
        self._shard_of(group_id)

    # ---- Members

    async def join(self, group_id: str, joining: Joining) -> JoinAnswer:
        """Handle JoinGroup; returns when the rebalance is complete. Raises KafkaError."""
        shard = self._shard_of(group_id, may_be_empty=False)
        if not self.config.min_session_timeout_ms <= joining.session_timeout_ms <= self.config.max_session_timeout_ms:
            raise InvalidSessionTimeout
        runtime = shard.find_or_create(group_id)
        shard.downgrade_empty(runtime)
        prefix = joining.instance_id if joining.instance_id is not None else joining.client_id
        new_id = self._new_id()
        if isinstance(runtime.machine, ClassicMachine):  # in other groups ids have no prefix, as members choose them
            new_id = f"{prefix[:MEMBER_PREFIX_CHARS_MAX]}-{new_id}"
        event = Join(new_member_id=new_id, **joining._asdict())
        answer = await self._ask(runtime, event, JoinAnswer)
        shard.remove_if_unused(runtime)
        return answer

    async def sync(self, group_id: str, sync: Sync) -> SyncAnswer:
        """Handle SyncGroup; returns when the leader's assignment is durable. Raises KafkaError."""
        runtime = self._shard_of(group_id, may_be_empty=False).find(group_id)
        if runtime is None:
            return SyncAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID)
        return await self._ask(runtime, sync, SyncAnswer)

    async def heartbeat(self, group_id: str, beat: Heartbeat) -> ErrorCode:
        """Handle Heartbeat. Raises KafkaError."""
        runtime = self._shard_of(group_id, may_be_empty=False).find(group_id)
        return ErrorCode.UNKNOWN_MEMBER_ID if runtime is None else (await self._ask(runtime, beat, PlainAnswer)).error

    async def leave(self, group_id: str, leave: Leave) -> LeaveAnswer:
        """Handle LeaveGroup. Raises KafkaError."""
        shard = self._shard_of(group_id, may_be_empty=False)
        runtime = shard.find(group_id)
        if runtime is None:
            return LeaveAnswer((ErrorCode.UNKNOWN_MEMBER_ID,) * len(leave.leavers))
        answer = await self._ask(runtime, leave, LeaveAnswer)
        shard.remove_if_unused(runtime)
        return answer

    async def member_heartbeat(self, group_id: str, beat: MemberHeartbeat) -> HeartbeatAnswer:
        """Handle ConsumerGroupHeartbeat. Raises KafkaError."""
        shard = self._shard_of(group_id, may_be_empty=False)
        joins = beat.member_epoch == JOIN_EPOCH
        if beat.assignor is not None and beat.assignor not in self.config.consumer_assignors:
            supported = ", ".join(self.config.consumer_assignors)
            message = f"ServerAssignor {beat.assignor} is not supported. Supported assignors: {supported}."
            return HeartbeatAnswer(ErrorCode.UNSUPPORTED_ASSIGNOR, message)
        if joins and beat.regex and (reason := why_invalid_regex(beat.regex)) is not None:
            return HeartbeatAnswer(ErrorCode.INVALID_REGULAR_EXPRESSION, invalid_regex_message(beat.regex, reason))
        runtime = shard.find_or_create_consumer(group_id, may_create=joins)
        answer = await self._ask(runtime, replace(beat, new_member_id=self._new_id()), HeartbeatAnswer)
        shard.remove_if_unused(runtime)
        return answer

    # ---- Offsets

    async def commit(
        self,
        group_id: str,
        commit: Commit,
        offsets: Mapping[TopicPartition, CommittedOffset],
        producer: ProducerIdentity | None = None,
    ) -> dict[TopicPartition, ErrorCode]:
        """Handle OffsetCommit, or TxnOffsetCommit of a producer; returns an error per partition once it is durable.

        Raises KafkaError; GroupIdNotFound: see the handlers.
        """
        limit = self.config.offset_metadata_max_bytes
        fitting = {tp: one for tp, one in offsets.items() if len(one.metadata) <= limit}
        if len(fitting) > OFFSETS_ON_LOOP_MAX:  # before the member is checked: a rebalance may happen meanwhile
            pairs = await asyncio.to_thread(offset_pairs, group_id, fitting)
        else:
            pairs = offset_pairs(group_id, fitting)
        shard = self._shard_of(group_id)
        runtime = shard.find(group_id)
        if runtime is None and commit.generation >= 0:
            is_new = commit.is_transactional or commit.api_version >= MEMBER_EPOCH_SINCE
            raise GroupIdNotFound if is_new else IllegalGeneration
        runtime = runtime or shard.find_or_create(group_id)
        try:
            answer = await runtime.ask(commit)
            if answer.error is not ErrorCode.NONE:
                raise error_for(answer.error)
            refused: dict[TopicPartition, ErrorCode] = {}
            if isinstance(answer, CommitAnswer) and answer.accepted is not None:
                refused = {
                    tp: answer.refusal
                    for tp, one in fitting.items()
                    if (one.topic_id, tp.partition) not in answer.accepted
                }
                fitting = {tp: one for tp, one in fitting.items() if tp not in refused}
                pairs = offset_pairs(group_id, fitting)
            if fitting:
                await shard.write_offsets(runtime, fitting, pairs, producer)
        finally:
            shard.remove_if_unused(runtime)
        if len(fitting) == len(offsets):
            return dict.fromkeys(offsets, ErrorCode.NONE)
        return {tp: ErrorCode.NONE if tp in fitting else refused.get(tp, OffsetMetadataTooLarge.code) for tp in offsets}

    def marker_appended(self, partition: int, offset: int) -> None:
        """Note that a transaction marker was appended to a partition of the groups' topic at an offset."""
        shard = self.led.shard(partition)
        if shard is not None:
            shard.marker_appended(offset)

    async def complete_transaction(self, partition: int, producer_id: int, *, commit: bool) -> None:
        """Make a producer's offsets in a partition visible, or drop them, once its marker is in the log.

        Raises NotCoordinator if this broker does not lead the partition: its next leader reads the marker.
        """
        shard = self.led.shard(partition)
        if shard is None:
            raise NotCoordinator(f"another broker coordinates the groups of {OFFSETS_TOPIC}-{partition}")
        await shard.complete_transaction(producer_id, commit=commit)

    def fetch(self, group_id: str, *, member_id: str | None = None, member_epoch: int = -1) -> GroupOffsets:
        """Return the durable offsets of a group, to be read only; none for an unknown one. Raises KafkaError."""
        runtime = self._shard_of(group_id).find(group_id)
        if runtime is None or runtime.is_being_deleted:
            return GroupOffsets()
        refusal = runtime.group.validate_offset_fetch(member_id, member_epoch)
        if refusal is ErrorCode.GROUP_ID_NOT_FOUND:  # a group of a type without offsets: as one that is unknown
            return GroupOffsets()
        if refusal is not ErrorCode.NONE:
            raise error_for(refusal)
        return runtime.offsets

    async def wait_until_written(self, group_id: str) -> None:
        """Wait until no commit of now is being written, for a reader of stable offsets (KIP-447). Raises KafkaError."""
        shard = self._shard_of(group_id)
        runtime = shard.find(group_id)
        if runtime is not None and runtime.offsets.in_flight:
            await shard.flush()

    async def delete_offsets(
        self, group_id: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Handle OffsetDelete; returns an error per partition. Raises KafkaError."""
        shard = self._shard_of(group_id)
        runtime = self._existing(shard, group_id)
        group = runtime.group
        refusal = group.validate_offset_deletion()
        if refusal is not ErrorCode.NONE:
            raise error_for(refusal)
        subscribed = {partition for partition in partitions if group.is_subscribed_to(partition.topic)}
        gone = runtime.offsets.all_partitions().intersection(partitions) - subscribed
        to_delete: dict[TopicPartition, None] = dict.fromkeys(gone)
        if to_delete:
            await shard.write_offsets(runtime, to_delete, offset_pairs(group_id, to_delete))
            shard.remove_if_unused(runtime)
        return {p: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if p in subscribed else ErrorCode.NONE for p in partitions}

    async def topics_deleted(self, topics: frozenset[str]) -> None:
        """Delete the offsets of all groups for these topics."""
        for shard in self.led.ready_shards():
            await self._warn_if_refused(shard, shard.topics_deleted(topics))

    @staticmethod
    async def _warn_if_refused(shard: GroupShard, deleting: Awaitable[None]) -> None:
        try:
            await deleting
        except KafkaError as error:
            log.warning(
                "offsets of deleted topics could not be removed from offsets partition %d: %s",
                shard.partition,
                error.message,
            )

    # ---- Groups

    def list_groups(self) -> list[GroupRuntime]:
        """List all groups. Raises CoordinatorLoadInProgress: a partial list would look like deletions."""
        self.led.check_all_loaded()
        for shard in self.led.shards():
            shard.check_ready()
        return [runtime for shard in self.led.shards() for runtime in shard.groups() if not runtime.is_being_deleted]

    def describe_consumer(self, group_id: str) -> ConsumerGroup:
        """Return the consumer group for reading. Raises GroupIdNotFound and other KafkaErrors."""
        shard = self._shard_of(group_id, may_be_empty=False)
        runtime = shard.find(group_id)
        if runtime is None or runtime.is_being_deleted:
            raise GroupIdNotFound(f"Group {group_id} not found.")
        group = runtime.group
        if not isinstance(group, ConsumerGroup):
            raise GroupIdNotFound(f"Group {group_id} is not a consumer group.")
        return group

    def describe(self, group_id: str) -> ClassicGroup:
        """Return the group for reading. Raises GroupIdNotFound and other KafkaErrors."""
        group = self._existing(self._shard_of(group_id), group_id).group
        if not isinstance(group, ClassicGroup):
            raise GroupIdNotFound(f"Group {group_id} is not a classic group.")
        return group

    async def delete(self, group_id: str) -> None:
        """Delete one group. Raises KafkaError."""
        shard = self._shard_of(group_id)
        await shard.delete(self._existing(shard, group_id))

    async def expire(self) -> None:
        """Delete expired offsets and groups once. Runs periodically; tests and tools call it too."""
        for shard in self.led.ready_shards():
            try:
                await shard.expire(self._clock.wall_ms())
            except KafkaError as error:
                log.warning(
                    "expired offsets could not be removed from offsets partition %d: %s", shard.partition, error.message
                )

    # ---- Internals

    def _shard_of(self, group_id: str, *, may_be_empty: bool = True) -> GroupShard:
        """Find the shard of a group. Offsets may have the empty group id, as in Kafka; members may not."""
        if not group_id and not may_be_empty:
            raise InvalidGroupId
        return self.led.shard_of(group_id)

    def _existing(self, shard: GroupShard, group_id: str) -> GroupRuntime:
        runtime = shard.find(group_id)
        if runtime is None or runtime.is_being_deleted:
            raise GroupIdNotFound(f"Group {group_id} not found.")
        return runtime

    async def _ask(self, runtime: GroupRuntime, event: Any, kind: type[A]) -> A:
        answer = await runtime.ask(event)
        assert isinstance(answer, kind), f"{answer} answers {event}"
        return answer

    async def _expire_periodically(self) -> None:
        while True:
            await asyncio.sleep(self.config.offsets_retention_check_interval_ms / 1000)
            try:
                await self.expire()
            except Exception:
                log.exception("deleting expired offsets failed; retrying at the next check")
