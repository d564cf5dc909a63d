"""Tests which aborted transactions a read_committed consumer gets."""

import asyncio
import uuid
from collections.abc import Callable

from ottla.metadata_store.cluster_view import PartitionView
from ottla.replication.fetch_data_info import FetchDataInfo
from ottla.replication.group_commit import GroupCommit
from ottla.replication.partition import Partition
from ottla.storage.log.partition_log import AppendOrigin, PartitionLog
from ottla.testing.sim_disk import SimDisk
from tests.support.storage import NOW_MS, TP, StillClock, batch, marker, open_directory
from tests.support.waiting import thread_executor

VIEW = PartitionView(0, leader=1, leader_epoch=0, replicas=(1,), isr=(1,), partition_epoch=0)


def transactions(log: PartitionLog, *, of: int, commit: Callable[[int], bool]) -> None:
    """Transactions of two records each, one after another: the first record of number n has offset 3 * n."""
    for at in range(of):
        one = batch(b"a", b"b", producer_id=9, epoch=0, sequence=2 * at, transactional=True)
        log.append(one, leader_epoch=0, now_ms=NOW_MS)
        log.append(marker(9, 0, commit=commit(at)), leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
        if at % 2:
            log.roll()


def read(log: PartitionLog, offset: int, *, committed_only: bool = True, max_bytes: int = 1 << 20) -> FetchDataInfo:
    async def reading() -> FetchDataInfo:
        partition = Partition(
            log, VIEW, node_id=1, commit=GroupCommit(log.health, executor=thread_executor(), clock=StillClock())
        )
        log.high_watermark = log.end_offset
        log.update_high_watermark(log.end_offset)
        return partition.read(offset, max_bytes=max_bytes, committed_only=committed_only, at_least_one=True)

    return asyncio.run(reading())


def first_offsets(found: FetchDataInfo) -> list[int]:
    assert found.aborted is not None
    return [each.first_offset for each in found.aborted]


def test_a_read_returns_the_aborted_transactions_of_its_region() -> None:
    log = open_directory(SimDisk()).create_log(TP, uuid.UUID(int=7))
    transactions(log, of=12, commit=lambda at: at % 3 == 0)
    assert first_offsets(read(log, 0)) == [3], "of the segment read, offsets 0 to 5"
    assert first_offsets(read(log, 3 * 10)) == [30, 33]
    assert read(log, 0, committed_only=False).aborted is None


def test_the_aborted_transactions_of_a_small_read_are_few() -> None:
    log = open_directory(SimDisk()).create_log(TP, uuid.UUID(int=7))
    long = batch(b"a", producer_id=8, epoch=0, sequence=0, transactional=True)
    log.append(long, leader_epoch=0, now_ms=NOW_MS)  # offset 0, aborted at the end
    for at in range(100):
        one = batch(b"a", b"b", producer_id=9, epoch=0, sequence=2 * at, transactional=True)
        log.append(one, leader_epoch=0, now_ms=NOW_MS)
        log.append(marker(9, 0, commit=False), leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    log.append(marker(8, 0, commit=False), leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    found = read(log, 31, max_bytes=160)
    assert found.region is not None and found.region.size <= 160
    assert first_offsets(found) == [0, 31], "a batch and its marker, and the transaction around them"


def test_aborted_transactions_are_returned_after_a_restart() -> None:
    disk = SimDisk()
    directory = open_directory(disk)
    transactions(directory.create_log(TP, uuid.UUID(int=7)), of=4, commit=lambda at: False)
    directory.close()
    assert first_offsets(read(open_directory(disk).logs[TP], 0))[:1] == [0]


def test_a_read_of_a_log_without_aborted_transactions_returns_none() -> None:
    log = open_directory(SimDisk()).create_log(TP, uuid.UUID(int=7))
    transactions(log, of=2, commit=lambda at: True)
    assert first_offsets(read(log, 0)) == []
    transactions_of_another = batch(b"a", producer_id=10, epoch=0, sequence=0, transactional=True)
    log.append(transactions_of_another, leader_epoch=0, now_ms=NOW_MS)
    log.append(marker(10, 0, commit=False), leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    assert first_offsets(read(log, 6)) == [6], "the first one may come at any time"
