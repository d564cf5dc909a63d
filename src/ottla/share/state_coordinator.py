"""Coordinates the states of the share partitions whose partition of `__share_group_state` this broker leads.

Share partitions read and write their state through `ShareCoordinator` (KIP-932); the group coordinator begins, resets
and deletes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from uuid import UUID

from ottla.core.clock import Clock
from ottla.core.errors import ErrorCode, KafkaError
from ottla.core.ids import SHARE_STATE_TOPIC
from ottla.internal_topics.coordinator_partition import CoordinatorPartition, Term
from ottla.internal_topics.led_partitions import LedPartitions
from ottla.internal_topics.log import KeyValue, LoadedRecords, TopicLog
from ottla.internal_topics.shard import CoordinatorShard
from ottla.share.config import ShareConfig
from ottla.share.state_machine import StateMachine, StateResult, StateWrite
from ottla.share.state_records import MalformedStateRecord, SharePartitionKey, Snapshot, Update, decode

log = logging.getLogger(__name__)

Exists = Callable[[UUID, int], bool]
"""Whether a topic with this id has a partition with this number."""


class StateShard(CoordinatorShard):
    """Coordinates the states in one partition of `__share_group_state` that this broker leads."""

    def __init__(self, term: Term, config: ShareConfig, topic_log: TopicLog, exists: Exists) -> None:
        self.machine = StateMachine(config.snapshot_update_records, exists)
        self._interval, self._exists = config.snapshot_update_records, exists
        self._topic_log, self._load_again = topic_log, term.load_again
        self._deleted_before = 0
        super().__init__(
            CoordinatorPartition(
                SHARE_STATE_TOPIC, term, topic_log, self._loader, write_timeout_ms=config.write_timeout_ms
            )
        )
        self._partition.start()

    def _loader(self) -> _StateLoader:
        return _StateLoader(self, StateMachine(self._interval, self._exists))

    @property
    def end_offset(self) -> int:
        """Return an offset at or before that of the next record."""
        return self._topic_log.end_offset(self.partition)

    def check_can_write(self) -> None:
        """Raise CoordinatorNotAvailable while too many writes wait."""
        self._partition.check_can_write()

    async def write(self, records: tuple[KeyValue, ...]) -> None:
        """Write the records of a change that memory has already. Raises KafkaError."""
        await self._partition.write(records, self._written, lambda error: error)

    def _written(self, *, stored: bool) -> None:
        if not stored and self._partition.is_open:
            log.warning("a write to %s-%d failed; loading it again", SHARE_STATE_TOPIC, self.partition)
            self._load_again()

    def prune(self) -> None:
        """Delete the records that no state needs any more. Raises KafkaError."""
        needed = self.machine.first_needed_offset
        if needed is not None and needed > self._deleted_before:
            self._topic_log.delete_records(self.partition, needed, leader_epoch=self.leader_epoch)
            self._deleted_before = needed


class _StateLoader:
    """Builds the states of a partition."""

    def __init__(self, shard: StateShard, machine: StateMachine) -> None:
        self._shard, self._machine = shard, machine

    def apply(self, loaded: LoadedRecords) -> None:
        """Apply records; malformed ones are skipped."""
        for key, value in loaded.records:
            try:
                name, content = decode(key, value)
            except MalformedStateRecord as error:
                log.warning("skipped a malformed record of %s-%d: %s", SHARE_STATE_TOPIC, self._shard.partition, error)
            else:
                self._apply(name, content, loaded.base_offset)

    def _apply(self, name: SharePartitionKey, content: Snapshot | Update | None, offset: int) -> None:
        self._machine.apply(name, content, offset)

    def complete(self) -> str:
        """Take the states into use."""
        self._shard.machine = self._machine
        return f"the states of {len(self._machine)} share partitions"


class ShareCoordinator:
    """Keeps the states of share partitions; one per broker. Its `led` follows the cluster."""

    def __init__(self, config: ShareConfig, *, clock: Clock, log: TopicLog, node_id: int, exists: Exists) -> None:
        self.config = config
        self._clock = clock

        def new_shard(term: Term) -> StateShard:
            return StateShard(term, config, log, exists)

        self.led = LedPartitions[StateShard](SHARE_STATE_TOPIC, log, node_id, new_shard)
        self._maintenance: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to delete redundant records periodically."""
        self._maintenance = asyncio.get_running_loop().create_task(self._maintain(), name="prune share states")

    async def close(self) -> None:
        """Fail the waiting requests, complete the queued writes and stop."""
        if self._maintenance is not None:
            self._maintenance.cancel()
            await asyncio.gather(self._maintenance, return_exceptions=True)
        await self.led.close()

    # ---- Requests

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> StateResult:
        """Begin or reset the state of a share partition. Raises KafkaError unless this broker coordinates it."""
        shard = self._writable(key)
        result = shard.machine.initialize(
            key, state_epoch, start_offset, now_wall_ms=self._clock.wall_ms(), end_offset=shard.end_offset
        )
        return await self._written(shard, result)

    async def write(self, key: SharePartitionKey, write: StateWrite) -> StateResult:
        """Change the state of a share partition. Raises KafkaError unless this broker coordinates it."""
        shard = self._writable(key)
        result = shard.machine.write(key, write, now_wall_ms=self._clock.wall_ms(), end_offset=shard.end_offset)
        return await self._written(shard, result)

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> StateResult:
        """Read the state for a new leader of the partition. Raises KafkaError unless this broker coordinates it."""
        shard = self._writable(key)
        result = shard.machine.read(key, leader_epoch, now_wall_ms=self._clock.wall_ms(), end_offset=shard.end_offset)
        return await self._written(shard, result)

    def summary(self, key: SharePartitionKey) -> StateResult:
        """Read the state without its batches. Raises KafkaError unless this broker coordinates it."""
        return self.led.shard_of(key.text).machine.summary(key)

    async def delete(self, key: SharePartitionKey) -> StateResult:
        """Delete the state of a share partition. Raises KafkaError unless this broker coordinates it."""
        shard = self._writable(key)
        return await self._written(shard, shard.machine.delete(key))

    def _writable(self, key: SharePartitionKey) -> StateShard:
        """Return the shard of a request that changes memory before it writes: a failed write would reload all."""
        shard = self.led.shard_of(key.text)
        shard.check_can_write()
        return shard

    async def _written(self, shard: StateShard, result: StateResult) -> StateResult:
        await shard.write(result.records)
        return result

    # ---- Maintenance

    async def _maintain(self) -> None:
        while True:
            await asyncio.sleep(self.config.prune_interval_ms / 1000)
            try:
                await self.maintain()
            except Exception:
                log.exception("deleting redundant records of %s failed; retrying at the next check", SHARE_STATE_TOPIC)

    async def maintain(self) -> None:
        """Write old snapshots again, delete the states of deleted topics, and delete redundant records."""
        now_wall_ms = self._clock.wall_ms()
        for shard in self.led.ready_shards():
            try:
                shard.check_can_write()
                cold = shard.machine.snapshot_cold(
                    not_since_wall_ms=now_wall_ms - self.config.cold_snapshot_interval_ms,
                    now_wall_ms=now_wall_ms,
                    end_offset=shard.end_offset,
                )
                await shard.write(shard.machine.delete_absent() + cold)
                shard.prune()
            except KafkaError as error:
                log.warning("%s-%d was not pruned: %s", SHARE_STATE_TOPIC, shard.partition, error.message)


def state_error(error: ErrorCode) -> ErrorCode:
    """Return the error with which a share partition answers an error of its share coordinator."""
    match error:
        case ErrorCode.NOT_COORDINATOR | ErrorCode.COORDINATOR_NOT_AVAILABLE | ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        case ErrorCode.FENCED_LEADER_EPOCH | ErrorCode.FENCED_STATE_EPOCH:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        case ErrorCode.GROUP_ID_NOT_FOUND | ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return error
        case _:
            return ErrorCode.UNKNOWN_SERVER_ERROR
