"""Declares the state of one transactional id, as its coordinator keeps it in memory and in `__transaction_state`.

Values only; the transitions between them are in `machine.py`. Names and numbers are Kafka's (TransactionMetadata,
TransactionState, TransactionVersion).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from ottla.core.ids import NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition

EPOCH_MAX = (1 << 15) - 1


class TransactionState(IntEnum):
    """Lists the states of a transaction, with their numbers in the log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def kafka_name(self) -> str:
        """Return the name in the responses of ListTransactions and DescribeTransactions."""
        return _KAFKA_NAMES[self]


_KAFKA_NAMES = {state: "".join(word.capitalize() for word in state.name.split("_")) for state in TransactionState}
STATES_BY_NAME = {name: state for state, name in _KAFKA_NAMES.items()}

PREPARED = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
"""The outcome is decided and durable; markers are being written."""

BETWEEN_TRANSACTIONS = frozenset(
    {TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}
)


class TransactionVersion(IntEnum):
    """Lists the levels of the feature `transaction.version`."""

    TV_0 = 0
    TV_1 = 1  # flexible records in the log
    TV_2 = 2  # the epoch grows with each transaction; partitions are added when records are produced (KIP-890)


SERVER_VERSION = TransactionVersion.TV_2
"""The level of this broker: a transaction that the coordinator ends itself, it ends by the rules of this level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionMetadata:
    """Holds the state of one transactional id, all of which is in the log. Each change makes a new one."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    updated_wall_ms: int
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID  # after the transaction, since the epochs of the present one are used up
    partitions: frozenset[TopicPartition] = frozenset()
    started_wall_ms: int = NO_TIMESTAMP
    client_version: TransactionVersion = TransactionVersion.TV_0

    @property
    def is_epoch_exhausted(self) -> bool:
        """Return whether the next epoch would be the last, which is reserved for fencing."""
        return is_epoch_exhausted(self.producer_epoch)

    def check(self) -> None:
        """Assert what holds for every durable state."""
        assert self.producer_id >= 0, self
        assert 0 <= self.producer_epoch <= EPOCH_MAX, self
        assert not self.partitions or self.state not in BETWEEN_TRANSACTIONS, self
        assert self.state is not TransactionState.EMPTY or self.started_wall_ms == NO_TIMESTAMP, self
        assert self.next_producer_id == NO_PRODUCER_ID or self.state in PREPARED, self


def is_epoch_exhausted(epoch: int) -> bool:
    """Return whether a producer id has no epoch left for clients.

    >>> is_epoch_exhausted(32765), is_epoch_exhausted(32766)
    (False, True)
    """
    return epoch >= EPOCH_MAX - 1
