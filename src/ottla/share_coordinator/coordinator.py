"""Coordinates the states of the share partitions whose partition of `__share_group_state` this broker leads.

Share partitions read and write their state through `ShareCoordinator` (KIP-932); the group coordinator begins, resets
and deletes it.
"""

from __future__ import annotations

import asyncio
import logging

from ottla.core.clock import Clock
from ottla.core.errors import ErrorCode, KafkaError
from ottla.core.ids import SHARE_STATE_TOPIC
from ottla.internal_topics.coordinator_partition import Term
from ottla.internal_topics.led_partitions import LedPartitions
from ottla.internal_topics.topic_log import TopicLog
from ottla.share_coordinator.config import ShareCoordinatorConfig
from ottla.share_coordinator.machine import StateResult, StateWrite
from ottla.share_coordinator.records import SharePartitionKey
from ottla.share_coordinator.shard import Exists, ShareCoordinatorShard

log = logging.getLogger(__name__)


class ShareCoordinator:
    """Keeps the states of share partitions; one per broker. Its `led` follows the cluster."""

    def __init__(
        self, config: ShareCoordinatorConfig, *, clock: Clock, log: TopicLog, node_id: int, exists: Exists
    ) -> None:
        self.config = config
        self._clock = clock

        def new_shard(term: Term) -> ShareCoordinatorShard:
            return ShareCoordinatorShard(term, config, log, exists)

        self.led = LedPartitions[ShareCoordinatorShard](SHARE_STATE_TOPIC, log, node_id, new_shard)
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
        now_wall_ms = self._clock.wall_ms()
        return await self.led.shard_of(key.text).perform(
            key.text,
            ("initialize", state_epoch, start_offset),
            lambda machine: machine.initialize(key, state_epoch, start_offset, now_wall_ms=now_wall_ms),
        )

    async def write(self, key: SharePartitionKey, write: StateWrite) -> StateResult:
        """Change the state of a share partition. Raises KafkaError unless this broker coordinates it."""
        now_wall_ms = self._clock.wall_ms()
        return await self.led.shard_of(key.text).perform(
            key.text, write, lambda machine: machine.write(key, write, now_wall_ms=now_wall_ms)
        )

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> StateResult:
        """Read the state for a new leader of the partition. Raises KafkaError unless this broker coordinates it."""
        now_wall_ms = self._clock.wall_ms()
        return await self.led.shard_of(key.text).perform(
            key.text, ("read", leader_epoch), lambda machine: machine.read(key, leader_epoch, now_wall_ms=now_wall_ms)
        )

    def summary(self, key: SharePartitionKey) -> StateResult:
        """Read the state without its batches. Raises KafkaError unless this broker coordinates it."""
        return self.led.shard_of(key.text).machine.summary(key)

    async def delete(self, key: SharePartitionKey) -> StateResult:
        """Delete the state of a share partition. Raises KafkaError unless this broker coordinates it."""
        return await self.led.shard_of(key.text).perform(key.text, "delete", lambda machine: machine.delete(key))

    # ---- Maintenance

    async def _maintain(self) -> None:
        while True:
            await asyncio.sleep(self.config.prune_interval_ms / 1000)
            try:
                await self.maintain()
            except Exception:
                log.exception("deleting redundant records of %s failed; retrying at the next check", SHARE_STATE_TOPIC)

    async def maintain(self) -> None:
        """Delete the states of deleted topics, write old snapshots again, and delete redundant records."""
        now_wall_ms = self._clock.wall_ms()
        not_since_wall_ms = now_wall_ms - self.config.cold_snapshot_interval_ms
        for shard in self.led.ready_shards():
            try:
                await shard.perform(
                    "",
                    "deletion of the states of deleted topics, and snapshots of old ones",
                    lambda machine: machine.maintain(not_since_wall_ms=not_since_wall_ms, now_wall_ms=now_wall_ms),
                )
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
