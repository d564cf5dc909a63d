"""Coordinates the transactional ids of one partition of `__transaction_state`: loads them and holds them.

A shard exists while this broker leads the partition, in one leader epoch or in several without a gap. `apply` is the
only code that changes what a restart keeps: it takes each record that was written, and at load each record of the log.
"""

from __future__ import annotations

import logging

from ottla.core.clock import Clock
from ottla.core.ids import TRANSACTIONS_TOPIC
from ottla.internal_topics.coordinator_partition import CoordinatorPartition, Term
from ottla.internal_topics.shard import CoordinatorShard
from ottla.internal_topics.topic_log import LoadedRecords, TopicLog
from ottla.transactions.marker_port import MarkerSender
from ottla.transactions.metadata import TransactionMetadata
from ottla.transactions.records import MalformedTransactionRecord, TransactionRecord, decode
from ottla.transactions.transaction_runtime import Environment, ProducerIds, TransactionRuntime

log = logging.getLogger(__name__)


class TransactionShard(CoordinatorShard):
    """Coordinates the transactional ids of one partition that this broker leads."""

    def __init__(
        self, term: Term, topic_log: TopicLog, clock: Clock, markers: MarkerSender, producer_ids: ProducerIds
    ) -> None:
        self._ids: dict[str, TransactionRuntime] = {}
        # Each transactional id times its writes itself, with the timeout of its transactions.
        super().__init__(
            CoordinatorPartition(TRANSACTIONS_TOPIC, term, topic_log, lambda: _Replay(self), write_timeout_ms=0), term
        )
        self._environment = Environment(
            writer=self._partition.writer,
            clock=clock,
            markers=markers,
            producer_ids=producer_ids,
            apply=self.apply,
            on_failed=self._step_failed,
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

    def apply(self, record: TransactionRecord) -> None:
        """Change the state by a record in the log: one that was written just now, or that is being loaded."""
        transactional_id, metadata = record
        runtime = self._ids.get(transactional_id)
        if metadata is None:
            if runtime is not None:
                del self._ids[transactional_id]
                runtime.close()
        elif runtime is None:
            self.create(transactional_id, metadata)
        else:
            runtime.machine.apply(metadata)

    def clear(self) -> None:
        """Forget all transactional ids, before the log is replayed from its start."""
        for runtime in self._ids.values():
            runtime.close()
        self._ids.clear()

    def complete_load(self) -> int:
        """Complete what was decided before the load; returns how many ids there are. One that fails is left out."""
        for runtime in self.all():
            runtime.loaded()
        self._ids = {name: runtime for name, runtime in self._ids.items() if runtime.is_open}
        return len(self._ids)

    def find(self, transactional_id: str) -> TransactionRuntime | None:
        """Return the transactional id, or None."""
        return self._ids.get(transactional_id)

    def create(self, transactional_id: str, metadata: TransactionMetadata) -> TransactionRuntime:
        """Add a transactional id. A new one is not in the log before it is written with its first producer epoch."""
        assert transactional_id not in self._ids, f"{transactional_id!r} exists"
        runtime = self._ids[transactional_id] = TransactionRuntime(transactional_id, metadata, self._environment)
        return runtime

    def all(self) -> list[TransactionRuntime]:
        """Return all transactional ids."""
        return list(self._ids.values())


class _Replay:
    """Applies the records of the log to an empty shard."""

    def __init__(self, shard: TransactionShard) -> None:
        shard.clear()
        self._shard = shard

    def apply(self, loaded: LoadedRecords) -> None:
        """Apply records; malformed ones are skipped."""
        for key, value in loaded.records:
            try:
                record = decode(key, value)
            except MalformedTransactionRecord as error:
                log.warning("skipped a malformed record of transaction partition %d: %s", self._shard.partition, error)
                continue
            if record is not None:
                self._shard.apply(record)

    def complete(self) -> str:
        """Take the transactional ids into use."""
        return f"{self._shard.complete_load()} transactional ids"
