"""Coordinates the transactional ids of one partition of `__transaction_state`: loads them and holds them.

A shard exists while this broker leads the partition, in one leader epoch or in several without a gap.
"""

from __future__ import annotations

import logging

from ottla.core.clock import Clock
from ottla.core.ids import TRANSACTIONS_TOPIC
from ottla.internal_topics.coordinator_partition import CoordinatorPartition, Term
from ottla.internal_topics.shard import CoordinatorShard
from ottla.internal_topics.topic_log import LoadedRecords, TopicLog
from ottla.transactions import records
from ottla.transactions.markers import MarkerSender
from ottla.transactions.metadata import TransactionMetadata
from ottla.transactions.transaction_runtime import Environment, ProducerIds, TransactionRuntime

log = logging.getLogger(__name__)


class TransactionShard(CoordinatorShard):
    """Coordinates the transactional ids of one partition that this broker leads."""

    def __init__(
        self, term: Term, topic_log: TopicLog, clock: Clock, markers: MarkerSender, producer_ids: ProducerIds
    ) -> None:
        self._clock = clock
        self._markers, self._producer_ids = markers, producer_ids
        self._ids: dict[str, TransactionRuntime] = {}
        self._environment: Environment | None = None
        # Each transactional id times its writes itself, with the timeout of its transactions.
        super().__init__(
            CoordinatorPartition(
                TRANSACTIONS_TOPIC, term, topic_log, lambda: _TransactionLoader(self), write_timeout_ms=0
            ),
            term,
        )
        self._partition.start()

    def stop(self, *, refuse_writes: bool) -> None:
        """Stop coordinating: timers end and waiting requests fail. The next load completes decided transactions."""
        super().stop(refuse_writes=refuse_writes)
        for runtime in self._ids.values():
            runtime.close()

    async def close(self) -> None:
        """Wait until the tasks have ended and the queued writes are written or have failed."""
        for runtime in self._ids.values():
            await runtime.wait_closed()
        await super().close()
        self._ids.clear()

    def use_loaded(self, loaded: dict[str, TransactionMetadata]) -> int:
        """Take loaded transactional ids into use, complete what was decided; returns how many there are.

        One that fails is left out.
        """
        self._environment = Environment(
            writer=self._partition.writer,
            clock=self._clock,
            markers=self._markers,
            producer_ids=self._producer_ids,
            remove=self._remove,
            on_failed=self._step_failed,
        )
        for runtime in self.all():
            runtime.close()  # of a load that failed before its end
        self._ids.clear()
        for transactional_id, metadata in loaded.items():
            self.create(transactional_id, metadata)
        for runtime in self.all():
            runtime.loaded()
        self._ids = {name: runtime for name, runtime in self._ids.items() if runtime.is_open}
        return len(self._ids)

    def find(self, transactional_id: str) -> TransactionRuntime | None:
        """Return the transactional id, or None."""
        return self._ids.get(transactional_id)

    def create(self, transactional_id: str, metadata: TransactionMetadata) -> TransactionRuntime:
        """Add a transactional id. A new one is written with its first producer epoch."""
        assert self._environment is not None, "created before the partition is loaded"
        assert transactional_id not in self._ids, f"{transactional_id!r} exists"
        runtime = self._ids[transactional_id] = TransactionRuntime(transactional_id, metadata, self._environment)
        return runtime

    def all(self) -> list[TransactionRuntime]:
        """Return all transactional ids."""
        return list(self._ids.values())

    def _remove(self, transactional_id: str) -> None:
        del self._ids[transactional_id]


class _TransactionLoader:
    """Builds the transactional ids of a partition; the last record of each key wins."""

    def __init__(self, shard: TransactionShard) -> None:
        self._shard = shard
        self._found: dict[str, TransactionMetadata] = {}

    def apply(self, loaded: LoadedRecords) -> None:
        """Apply records; malformed ones are skipped."""
        for key, value in loaded.records:
            try:
                record = records.decode(key, value)
            except records.MalformedTransactionRecord as error:
                log.warning("skipped a malformed record of transaction partition %d: %s", self._shard.partition, error)
                continue
            if record is None:
                continue
            if record.metadata is None:
                self._found.pop(record.transactional_id, None)
            else:
                self._found[record.transactional_id] = record.metadata

    def complete(self) -> str:
        """Take the transactional ids into use."""
        return f"{self._shard.use_loaded(self._found)} transactional ids"
