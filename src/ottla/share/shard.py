"""Coordinates the states in one partition of `__share_group_state`: loads them, holds them and prunes the partition."""

from __future__ import annotations

import logging
from collections.abc import Callable
from uuid import UUID

from ottla.core.ids import SHARE_STATE_TOPIC
from ottla.internal_topics.coordinator_partition import CoordinatorPartition, Term
from ottla.internal_topics.shard import CoordinatorShard
from ottla.internal_topics.topic_log import KeyValue, LoadedRecords, TopicLog
from ottla.share.config import ShareConfig
from ottla.share.coordinator_machine import ShareCoordinatorMachine
from ottla.share.state_records import MalformedStateRecord, SharePartitionKey, Snapshot, Update, decode

log = logging.getLogger(__name__)

Exists = Callable[[UUID, int], bool]
"""Whether a topic with this id has a partition with this number."""


class ShareCoordinatorShard(CoordinatorShard):
    """Coordinates the states of share partitions in one partition that this broker leads."""

    def __init__(self, term: Term, config: ShareConfig, topic_log: TopicLog, exists: Exists) -> None:
        self.machine = ShareCoordinatorMachine(config.snapshot_update_records, exists)
        self._interval, self._exists = config.snapshot_update_records, exists
        self._topic_log, self._load_again = topic_log, term.load_again
        self._deleted_before = 0
        super().__init__(
            CoordinatorPartition(
                SHARE_STATE_TOPIC, term, topic_log, self._loader, write_timeout_ms=config.write_timeout_ms
            ),
            term,
        )
        self._partition.start()

    def _loader(self) -> _StateLoader:
        return _StateLoader(self, ShareCoordinatorMachine(self._interval, self._exists))

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

    def __init__(self, shard: ShareCoordinatorShard, machine: ShareCoordinatorMachine) -> None:
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
