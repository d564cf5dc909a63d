"""Coordinates the states in one partition of `__share_group_state`: loads them, holds them and prunes the partition."""

from __future__ import annotations

import logging
from collections.abc import Callable
from uuid import UUID

from ottla.core.ids import SHARE_STATE_TOPIC
from ottla.internal_topics.coordinator_partition import CoordinatorPartition, Term
from ottla.internal_topics.shard import CoordinatorShard
from ottla.internal_topics.topic_log import LoadedRecords, TopicLog
from ottla.share_coordinator.config import ShareCoordinatorConfig
from ottla.share_coordinator.machine import ShareCoordinatorMachine, StateResult
from ottla.share_coordinator.records import MalformedStateRecord, decode, encode

log = logging.getLogger(__name__)

Exists = Callable[[UUID, int], bool]
"""Whether a topic with this id has a partition with this number."""


class ShareCoordinatorShard(CoordinatorShard):
    """Coordinates the states of share partitions in one partition that this broker leads."""

    def __init__(self, term: Term, config: ShareCoordinatorConfig, topic_log: TopicLog, exists: Exists) -> None:
        self._interval, self._exists = config.snapshot_update_records, exists
        self._topic_log, self._load_again = topic_log, term.load_again
        self._deleted_before = 0
        self.clear()
        super().__init__(
            CoordinatorPartition(
                SHARE_STATE_TOPIC, term, topic_log, lambda: _Replay(self), write_timeout_ms=config.write_timeout_ms
            ),
            term,
        )
        self._partition.start()

    def clear(self) -> None:
        """Forget all states, before the log is replayed from its start."""
        self.machine = ShareCoordinatorMachine(self._interval, self._exists)

    async def perform(
        self, key: str, event: object, decide: Callable[[ShareCoordinatorMachine], StateResult]
    ) -> StateResult:
        """Make a decision about a key, apply its records and write them. Raises KafkaError.

        While too many writes wait nothing is decided: a write that fails has everything loaded again.
        """
        self._partition.check_can_write()
        with self.step_of(key, event):
            result = decide(self.machine)
            if result.records:
                end_offset = self._topic_log.end_offset(self.partition)
                for record in result.records:
                    self.machine.apply(record, end_offset)
        await self._partition.write([encode(record) for record in result.records], self._written, lambda error: error)
        return result

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


class _Replay:
    """Applies the records of the log to an empty shard."""

    def __init__(self, shard: ShareCoordinatorShard) -> None:
        shard.clear()
        self._shard = shard

    def apply(self, loaded: LoadedRecords) -> None:
        """Apply records; malformed ones are skipped."""
        for key, value in loaded.records:
            try:
                record = decode(key, value)
            except MalformedStateRecord as error:
                log.warning("skipped a malformed record of %s-%d: %s", SHARE_STATE_TOPIC, self._shard.partition, error)
            else:
                self._shard.machine.apply(record, loaded.base_offset)

    def complete(self) -> str:
        """Say what was loaded; it is in use already."""
        return f"the states of {len(self._shard.machine)} share partitions"
