"""Tests transactions on one partition: verification before the first append, and the markers that end them."""

import pytest

from ottla.core.errors import InvalidTxnState, NotLeaderOrFollower, TransactionCoordinatorFenced
from ottla.metadata_store.cluster_view import PartitionView
from ottla.records.batch import BatchHeader
from ottla.replication.end_txn_markers import append_end_txn_marker
from ottla.replication.partition import Partition
from ottla.storage.state.end_marker import MarkerType, read_marker
from tests.support.storage import NOW_MS, batch

PRODUCER = 9


def produce(partition: Partition, sequence: int, *, epoch: int = 0, verify: bool = False) -> int:
    guard = None
    if verify:
        guard = partition.log.producers.begin_verification(
            PRODUCER, sequence, epoch, supports_epoch_bump=False, now_ms=NOW_MS
        )
    records = batch(b"v", producer_id=PRODUCER, epoch=epoch, sequence=sequence, transactional=True)
    return partition.append_as_leader(records, acks=-1, now_ms=NOW_MS, guard=guard).first_offset


def end(partition: Partition, *, epoch: int = 0, commit: bool = True, coordinator_epoch: int = 0) -> int:
    return append_end_txn_marker(
        partition, PRODUCER, epoch, commit=commit, coordinator_epoch=coordinator_epoch, now_ms=NOW_MS
    ).first_offset


async def test_a_batch_outside_a_verified_transaction_is_refused(partition: Partition) -> None:
    with pytest.raises(InvalidTxnState):
        produce(partition, 0)
    assert partition.log.end_offset == 0
    assert produce(partition, 0, verify=True) == 0
    assert produce(partition, 1) == 1
    end(partition)
    with pytest.raises(InvalidTxnState):
        produce(partition, 2)


async def test_the_last_stable_offset_waits_for_the_marker(partition: Partition) -> None:
    produce(partition, 0, verify=True)
    assert (partition.high_watermark, partition.last_stable_offset) == (1, 0)
    assert end(partition, commit=False) == 1
    assert (partition.high_watermark, partition.last_stable_offset) == (2, 2)
    found = partition.read(0, max_bytes=1 << 20, committed_only=True, at_least_one=True)
    assert [(each.producer_id, each.first_offset) for each in found.aborted or ()] == [(PRODUCER, 0)]


@pytest.mark.parametrize("commit", [True, False])
async def test_a_marker_is_a_control_batch_as_kafka_writes_it(partition: Partition, *, commit: bool) -> None:
    end(partition, epoch=3, commit=commit, coordinator_epoch=5)
    region = partition.log.read(0, max_bytes=1 << 20, end_offset=1)
    assert region is not None
    data = memoryview(bytearray(region.read()))
    header = BatchHeader(data)
    assert header.is_control and header.is_transactional and header.record_count == 1
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (PRODUCER, 3, -1)
    marker = read_marker(data)
    assert marker == (MarkerType.COMMIT if commit else MarkerType.ABORT, 5)


async def test_a_marker_of_an_earlier_coordinator_is_fenced(partition: Partition) -> None:
    end(partition, coordinator_epoch=2)
    produce(partition, 0, verify=True)
    with pytest.raises(TransactionCoordinatorFenced):
        end(partition, coordinator_epoch=1)
    assert partition.last_stable_offset == 1, "the transaction is still open"


async def test_only_the_leader_verifies_and_writes_markers(partition: Partition) -> None:
    partition.apply(PartitionView(0, leader=2, leader_epoch=1, replicas=(1, 2), isr=(1, 2), partition_epoch=1))
    with pytest.raises(NotLeaderOrFollower):
        produce(partition, 0, verify=True)
    with pytest.raises(NotLeaderOrFollower):
        end(partition)
