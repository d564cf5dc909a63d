"""Lists transactions for a test's assertions, as their coordinators keep them."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.core.ids import TRANSACTIONS_TOPIC, TopicPartition
from ottla.testing.cluster import TestCluster
from ottla.testing.kit.assertions.lookups import shards_of
from ottla.transactions.metadata import BETWEEN_TRANSACTIONS, TransactionState


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id with the state of its last transaction."""

    transactional_id: str
    state: str  # by Kafka's names: Empty, Ongoing, PrepareCommit, CompleteCommit, and so on
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    age_s: float | None  # since its begin, by the brokers' clock; None if it has ended
    timeout_ms: int

    @property
    def is_open(self) -> bool:
        """Return whether the transaction has not ended: consumers of committed records wait for it."""
        return self.age_s is not None


async def list_transactions(cluster: TestCluster) -> tuple[Transaction, ...]:
    """List all transactional ids. Raises NoLeader."""
    shards = await shards_of(cluster, TRANSACTIONS_TOPIC, lambda services: services.coordinators.transactions.led)
    transactions = []
    for services, shard in shards:
        for runtime in shard.all():
            metadata = runtime.metadata
            if metadata.state is TransactionState.DEAD:
                continue
            is_open = metadata.state not in BETWEEN_TRANSACTIONS
            age_s = max(0, services.clock.wall_ms() - metadata.started_wall_ms) / 1000
            transactions.append(
                Transaction(
                    transactional_id=runtime.transactional_id,
                    state=metadata.state.kafka_name,
                    producer_id=metadata.producer_id,
                    producer_epoch=metadata.producer_epoch,
                    partitions=tuple(sorted(metadata.partitions)),
                    age_s=age_s if is_open else None,
                    timeout_ms=metadata.timeout_ms,
                )
            )
    return tuple(sorted(transactions, key=lambda each: each.transactional_id))
