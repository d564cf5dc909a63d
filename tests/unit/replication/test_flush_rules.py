"""With durability=page-cache: what goes to the disk after so many records, and what after so much time."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import NamedTuple

import pytest

from ottla.metadata_store.cluster_view import PartitionView
from ottla.replication.group_commit import GroupCommit
from ottla.replication.partition import Partition
from ottla.storage.config import LogConfig
from ottla.testing.sim_disk import SimDisk
from tests.support.async_tests import setup_of
from tests.support.storage import NOW_MS, TP, StillClock, batch, open_directory
from tests.support.waiting import thread_executor

PAGE_CACHE = LogConfig(durability="page-cache")
SMALL_SEGMENTS = replace(PAGE_CACHE, segment_bytes=1024)
LONG_MS = 3_600_000


Scenario = Callable[[Partition, GroupCommit], Awaitable[None]]


class OnePartition(NamedTuple):
    """A partition of broker 1, which leads it or follows, on a disk of its own."""

    partition: Partition
    commit: GroupCommit


@asynccontextmanager
async def one_partition(
    config: LogConfig, *, leader: int = 1, disk: SimDisk | None = None
) -> AsyncIterator[OnePartition]:
    directory = open_directory(disk or SimDisk(), config)
    log = directory.create_log(TP, uuid.UUID(int=7), config)
    commit = GroupCommit(directory.health, executor=thread_executor(), clock=StillClock())
    replicas = tuple({1, leader})
    view = PartitionView(0, leader=leader, leader_epoch=0, replicas=replicas, isr=replicas, partition_epoch=0)
    try:
        yield OnePartition(Partition(log, view, node_id=1, commit=commit), commit)
    finally:
        await commit.close()


@pytest.fixture
async def made(request: pytest.FixtureRequest) -> AsyncIterator[OnePartition]:
    async with one_partition(**setup_of(request)) as made:
        yield made


@pytest.fixture
def partition(made: OnePartition) -> Partition:
    return made.partition


@pytest.fixture
def commit(made: OnePartition) -> GroupCommit:
    return made.commit


def write(partition: Partition, count: int = 1) -> None:
    for _ in range(count):
        partition.append_as_leader(batch(b"value"), acks=1, now_ms=NOW_MS)
    assert partition.high_watermark == partition.log.end_offset, "it counts without the disk"


def fetch(partition: Partition, *counts: int) -> None:
    """Append to a follower what one fetch brought: a batch of so many records for each of the counts."""
    position = partition.next_fetch()
    assert position is not None, "it is fetched further without a flush"
    records, offset = b"", position.fetch_offset
    for count in counts:
        records += batch(*[b"value"] * count, base_offset=offset, leader_epoch=0)
        offset += count
    partition.append_as_follower(memoryview(records), high_watermark=offset, log_start=0, now_ms=NOW_MS)
    assert partition.high_watermark == partition.log.end_offset == offset, "it counts without the disk"


async def flushed(partition: Partition, offset: int) -> None:
    """Wait until so much is on the disk."""
    while partition.log.flushed_offset < offset:  # noqa: ASYNC110 - a flush without waiters has no event
        await asyncio.sleep(0)


@pytest.mark.setup(config=PAGE_CACHE)
async def test_without_a_rule_nothing_is_flushed(partition: Partition, commit: GroupCommit) -> None:
    write(partition, 100)
    await commit.drain()
    first = partition.log.flushed_offset  # that of the segment before, which was empty
    write(partition, 100)
    await commit.drain()
    assert partition.log.flushed_offset == first < 200


@pytest.mark.setup(config=replace(PAGE_CACHE, flush_messages=10))
async def test_after_flush_messages_records_all_of_them_are_flushed(partition: Partition, commit: GroupCommit) -> None:
    write(partition)
    await commit.drain()
    begin = partition.log.flushed_offset
    write(partition, 9 - (1 - begin))
    await commit.drain()
    assert partition.log.flushed_offset == begin
    write(partition)
    await commit.drain()
    assert partition.log.flushed_offset == partition.log.end_offset == begin + 10


@pytest.mark.setup(config=replace(PAGE_CACHE, flush_ms=1))
async def test_after_flush_ms_all_that_was_written_is_flushed(partition: Partition) -> None:
    for count in (5, 10):
        write(partition, 5)
        await flushed(partition, count)


@pytest.mark.setup(config=PAGE_CACHE)
async def test_rules_that_are_changed_count_for_what_was_written_before(
    partition: Partition, commit: GroupCommit
) -> None:
    for rule in (replace(PAGE_CACHE, flush_ms=1), replace(PAGE_CACHE, flush_messages=1), LogConfig(durability="fsync")):
        for before in (PAGE_CACHE, replace(PAGE_CACHE, flush_ms=LONG_MS)):
            partition.reconfigure(before)
            write(partition, 3)
            await commit.drain()
            write(partition, 3)
            await commit.drain()
            assert partition.log.flushed_offset < partition.log.end_offset
            partition.reconfigure(rule)
            await flushed(partition, partition.log.end_offset)


@pytest.mark.setup(config=replace(PAGE_CACHE, flush_ms=LONG_MS))
async def test_a_partition_that_is_gone_is_flushed_no_more(partition: Partition, commit: GroupCommit) -> None:
    write(partition, 2)
    await commit.drain()
    write(partition, 2)
    partition.remove()
    assert not commit._timers
    partition.reconfigure(PAGE_CACHE)


@pytest.mark.setup(config=SMALL_SEGMENTS, leader=2)
async def test_a_follower_flushes_the_segment_that_an_append_has_sealed(
    partition: Partition, commit: GroupCommit
) -> None:
    log = partition.log
    for _ in range(3):
        sealed = len(log.segments)
        while len(log.segments) == sealed:
            fetch(partition, 1, 1)
        await commit.drain()
        assert log.flushed_offset == log.end_offset, "a crash would have all of the log scanned"
        assert not log.pending_flush
        fetch(partition, 1)
        await commit.drain()
        assert log.flushed_offset == log.end_offset - 1, "without a rule only the begin of a segment is flushed"


@pytest.mark.setup(config=SMALL_SEGMENTS, leader=2)
async def test_a_follower_flushes_an_append_whose_first_batch_leaves_a_gap_in_the_new_segment(
    partition: Partition, commit: GroupCommit
) -> None:
    log = partition.log
    fetch(partition, 10)
    await commit.drain()
    while len(log.segments) == 1:  # compaction has removed what was between these batches
        end = log.end_offset + 2
        records = batch(b"value", base_offset=end - 1, leader_epoch=0)
        partition.append_as_follower(records, high_watermark=end, log_start=0, now_ms=NOW_MS)
    assert log.active.base_offset < log.end_offset - 1
    await commit.drain()
    assert log.flushed_offset == log.end_offset


@pytest.mark.setup(config=PAGE_CACHE, leader=2)
async def test_a_fetch_without_records_flushes_nothing(partition: Partition, commit: GroupCommit) -> None:
    partition.append_as_follower(memoryview(b""), high_watermark=0, log_start=0, now_ms=NOW_MS)
    assert not commit._waiting


@pytest.mark.setup(config=replace(PAGE_CACHE, flush_messages=10), leader=2)
async def test_a_follower_flushes_by_rule(partition: Partition, commit: GroupCommit) -> None:
    fetch(partition, 1)
    await commit.drain()
    fetch(partition, 4, 5)
    await commit.drain()
    assert partition.log.flushed_offset == 1
    fetch(partition, 1)
    await commit.drain()
    assert partition.log.flushed_offset == partition.log.end_offset == 11


async def test_a_follower_closes_dirty_files_beyond_the_limit_of_open_files() -> None:
    disk = SimDisk()
    disk.open_file_cache.limit = 2
    async with one_partition(SMALL_SEGMENTS, leader=2, disk=disk) as (partition, _):
        while len(partition.log.segments) < 5:
            fetch(partition, 1)
