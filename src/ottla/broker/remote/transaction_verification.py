"""Verifies with the transaction coordinator that a partition is part of a transaction, before its first append.

Without it (KIP-890) a batch that the network has delayed beyond the end of its transaction would begin another one,
which nothing ends: readers of committed records would wait for ever. From Produce 12 and TxnOffsetCommit 5 on the
coordinator adds the partition where it is missing; older clients have added it themselves (AddPartitionsToTxn).

A verification has two halves. `begin` takes a guard from each partition whose transaction is not open yet; most
batches need none and go on at once. `verify` asks the coordinator. The append then checks the guard again, because a
marker may have been written while the coordinator was asked.

In the second version of transactions the next transaction may begin before the markers of the last one are written on
all brokers: the coordinator lets the request wait until they are, and one of them takes the guard away. Then the
verification is done again, with a new guard. The epoch of the batch shows that it belongs to the new transaction. In
the first version it does not: there the batch is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple, Protocol

from ottla.core.clock import Clock
from ottla.core.errors import ErrorCode, InvalidProducerEpoch, InvalidTxnState, KafkaError, NotEnoughReplicas, error_for
from ottla.core.ids import TopicPartition
from ottla.replication.partition import Partition
from ottla.storage.state.producer_state_manager import VerificationGuard
from ottla.transactions.metadata import TransactionVersion

log = logging.getLogger(__name__)

AGAIN_MAX = 2
"""Maximum repetitions of a verification whose guard was taken away by a marker of the previous transaction."""


class TransactionSupportedOperation(Enum):
    """The transaction protocol that a client's version of Produce or TxnOffsetCommit supports."""

    DEFAULT_ERROR = 0
    GENERIC_ERROR = 1  # the error TRANSACTION_ABORTABLE
    ADD_PARTITION = 2  # partitions are added with their first batch: the second version of transactions

    @property
    def supports_epoch_bump(self) -> bool:
        """Whether the producer's epoch grows with each transaction."""
        return self is TransactionSupportedOperation.ADD_PARTITION


class PartitionAdder(Protocol):
    """Port: the transaction coordinator."""

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: frozenset[TopicPartition],
        *,
        client_version: TransactionVersion,
        verify_only: bool,
    ) -> ErrorCode:
        """Add partitions to a transaction, or verify that they were added; returns one error for all. Never raises."""
        ...


class NewBatch(NamedTuple):
    """A transactional batch that is to be appended."""

    partition: Partition
    base_sequence: int


class TransactionVerification:
    """The verification of one producer's batches of one request, each for another partition."""

    __slots__ = ("_batches", "epoch", "error", "fenced", "guards", "operation", "producer_id", "transactional_id")

    def __init__(
        self, transactional_id: str, producer_id: int, epoch: int, operation: TransactionSupportedOperation
    ) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.epoch = epoch
        self.operation = operation
        self.guards: dict[TopicPartition, VerificationGuard] = {}  # of the partitions to be verified
        self.error = ErrorCode.NONE  # of all these
        self.fenced: dict[TopicPartition, InvalidProducerEpoch] = {}  # partitions that know a later epoch
        self._batches: list[NewBatch] = []  # for these partitions

    @property
    def is_required(self) -> bool:
        """Whether the coordinator must be asked."""
        return bool(self.guards)

    def begin(self, partition: Partition, base_sequence: int, now_ms: int) -> None:
        """Take a partition's guard, unless the transaction is open there already. Never raises.

        A partition that this broker does not serve has no guard; the append will be refused for the same reason.
        """
        if not partition.is_serving:
            return
        try:
            guard = partition.log.producers.begin_verification(
                self.producer_id,
                base_sequence,
                self.epoch,
                supports_epoch_bump=self.operation.supports_epoch_bump,
                now_ms=now_ms,
            )
        except InvalidProducerEpoch as error:
            self.fenced[partition.topic_partition] = error
            return
        if guard is not None:
            self.guards[partition.topic_partition] = guard
            self._batches.append(NewBatch(partition, base_sequence))

    def begin_again(self, now_ms: int) -> bool:
        """Take new guards where a marker took them away. Returns False if all hold, or were taken by other events."""
        lost = [
            batch
            for batch in self._batches
            if batch.partition.is_serving
            and not batch.partition.log.producers.is_verifying(
                self.producer_id, self.guards[batch.partition.topic_partition]
            )
            and not batch.partition.log.producers.has_ongoing_transaction(self.producer_id, self.epoch)
        ]
        self._batches = [batch for batch in self._batches if batch not in lost]
        for partition, base_sequence in lost:
            self.begin(partition, base_sequence, now_ms)
        return bool(lost)

    def check(self, topic_partition: TopicPartition) -> None:
        """Refuse a batch for a partition that could not be verified. Raises the KafkaError to respond with."""
        if topic_partition in self.fenced:
            raise self.fenced[topic_partition]
        if self.error is not ErrorCode.NONE and topic_partition in self.guards:
            raise produce_error(self.error, self.operation)


class TransactionVerifier:
    """Verifies the transactional batches of all producers."""

    def __init__(self, coordinator: PartitionAdder, clock: Clock) -> None:
        self._coordinator = coordinator
        self._clock = clock

    def begin(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        batches: Iterable[NewBatch],
        operation: TransactionSupportedOperation,
    ) -> TransactionVerification:
        """Take the guards of the partitions on which the transaction is not open yet. Never raises."""
        verification = TransactionVerification(transactional_id, producer_id, epoch, operation)
        now_ms = self._clock.wall_ms()
        for partition, base_sequence in batches:
            verification.begin(partition, base_sequence, now_ms)
        return verification

    async def verify(self, verification: TransactionVerification) -> None:
        """Ask the coordinator; sets the verification's error. Never raises."""
        if not verification.is_required:
            return
        await self._verify_once(verification)
        for _ in range(AGAIN_MAX):
            is_verified = verification.error is ErrorCode.NONE and verification.operation.supports_epoch_bump
            if not is_verified or not verification.begin_again(self._clock.wall_ms()):
                return
            await self._verify_once(verification)

    async def _verify_once(self, verification: TransactionVerification) -> None:
        of, operation = verification, verification.operation
        adds = operation.supports_epoch_bump
        error = await self._coordinator.add_partitions(
            of.transactional_id,
            of.producer_id,
            of.epoch,
            frozenset(of.guards),
            client_version=TransactionVersion.TV_2 if adds else TransactionVersion.TV_0,
            verify_only=not adds,
        )
        if error is ErrorCode.PRODUCER_FENCED:
            error = ErrorCode.INVALID_PRODUCER_EPOCH
        elif error is ErrorCode.TRANSACTION_ABORTABLE and operation is TransactionSupportedOperation.DEFAULT_ERROR:
            error = ErrorCode.INVALID_TXN_STATE
        of.error = error
        if error is not ErrorCode.NONE:
            log.debug(
                "verification of transactional id %r, producer %d, epoch %d failed for %d partitions: %s",
                of.transactional_id,
                of.producer_id,
                of.epoch,
                len(of.guards),
                error.name,
            )


_RETRIABLE = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


def produce_error(error: ErrorCode, operation: TransactionSupportedOperation) -> KafkaError:
    """Return the error of a Produce response for an error of the verification.

    Older clients do not retry every error of a coordinator as they should. They do retry NOT_ENOUGH_REPLICAS, without
    looking for another leader. CONCURRENT_TRANSACTIONS is usual in the second version, whose clients know it.
    """
    if error is ErrorCode.INVALID_TXN_STATE:
        return InvalidTxnState("Partition was not added to the transaction")
    if error in _RETRIABLE or (error is ErrorCode.CONCURRENT_TRANSACTIONS and not operation.supports_epoch_bump):
        return NotEnoughReplicas(
            f"Unable to verify the partition has been added to the transaction. Underlying error: {error.name}"
        )
    return error_for(error)
