"""Reports transactions that are open for longer than any coordinator allows, so that readers wait for them.

A transaction is late if its producer has written nothing to the partition for longer than
`transaction.max.timeout.ms` and five minutes, as in Kafka's metric PartitionsWithLateTransactionsCount. With the
verification of transactions none becomes late here; one may come with a directory that was taken over from Kafka.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ottla.core.clock import Clock
from ottla.core.ids import TopicPartition
from ottla.replication.replicas import Replicas

log = logging.getLogger(__name__)

BUFFER_MS = 5 * 60_000
_PARTITIONS_AT_ONCE = 1000


class LateTransactions:
    """Finds late transactions on the partitions that this broker leads, and logs each once."""

    def __init__(self, replicas: Replicas, clock: Clock, max_timeout_ms: Callable[[], int]) -> None:
        self._replicas, self._clock, self._max_timeout_ms = replicas, clock, max_timeout_ms
        self._reported: set[tuple[TopicPartition, int, int]] = set()

    def __len__(self) -> int:
        """Return how many there were at the last check."""
        return len(self._reported)

    async def check(self) -> None:
        """Look at every partition."""
        now_ms, after_ms = self._clock.wall_ms(), self._max_timeout_ms() + BUFFER_MS
        found: set[tuple[TopicPartition, int, int]] = set()
        for number, partition in enumerate(tuple(self._replicas.partitions.values())):
            if number % _PARTITIONS_AT_ONCE == 0:
                await asyncio.sleep(0)
            producers = partition.log.producers
            if producers.is_stable or not partition.leads:
                continue
            for producer_id, first_offset in producers.late_transactions(now_ms, after_ms=after_ms):
                late = (partition.topic_partition, producer_id, first_offset)
                found.add(late)
                if late not in self._reported:
                    log.warning(
                        "readers of committed records of %s stop at offset %d: the transaction of producer %d is open "
                        "and has had no record for more than %d minutes. `ottla txn hanging` shows whether a "
                        "coordinator will end it.",
                        partition.topic_partition,
                        first_offset,
                        producer_id,
                        after_ms // 60_000,
                    )
        self._reported = found
