"""Appends the markers that end transactions in a partition (KIP-98)."""

from __future__ import annotations

from typing import Final

from ottla.replication.partition import Partition
from ottla.storage.log.partition_log import AppendInfo, AppendOrigin
from ottla.storage.state.end_marker import Marker, MarkerType, build_marker

FIRST_VERSION_WITH_EPOCH_BUMP: Final = 2  # of transactions (KIP-890)


def append_end_txn_marker(
    partition: Partition,
    producer_id: int,
    epoch: int,
    *,
    commit: bool,
    coordinator_epoch: int,
    now_ms: int,
    transaction_version: int = 0,
) -> AppendInfo:
    """Append the marker that ends a producer's transaction. It is replicated later: see `Partition.waiters`.

    `epoch` is the producer's; from transaction version 2 on it is one above that of the records. Raises
    InvalidProducerEpoch, TransactionCoordinatorFenced, or another KafkaError; then nothing has been written.
    """
    if not partition.is_serving:
        partition.check_serving()
    if transaction_version >= FIRST_VERSION_WITH_EPOCH_BUMP:
        partition.log.producers.check_epoch_bump(producer_id, epoch)
    marker = Marker(MarkerType.COMMIT if commit else MarkerType.ABORT, coordinator_epoch)
    batch = build_marker(marker, producer_id=producer_id, epoch=epoch, now_ms=now_ms)
    return partition.append_as_leader(memoryview(batch), acks=-1, now_ms=now_ms, origin=AppendOrigin.COORDINATOR)
