"""With durability=page-cache: what goes to the disk after so many records, and what after so much time."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace

from ottla.coordination.view import PartitionView
from ottla.replication.commit import GroupCommit
from ottla.replication.partition import Partition
from ottla.storage.config import LogConfig
from ottla.testing.sim_disk import SimDisk
from tests.support.storage import NOW_MS, TP, StillClock, batch, open_directory
from tests.support.waiting import thread_executor

PAGE_CACHE = LogConfig(durability="page-cache")
LONG_MS = 3_600_000


def run(config: LogConfig, scenario: Callable[[Partition, GroupCommit], Awaitable[None]]) -> None:
    """A partition that this broker leads, on a disk of its own."""

    async def main() -> None:
        directory = open_directory(SimDisk(), config)
        log = directory.create_log(TP, uuid.UUID(int=7), config)
        commit = GroupCommit(directory.health, executor=thread_executor(), clock=StillClock())
        view = PartitionView(0, leader=1, leader_epoch=0, replicas=(1,), isr=(1,), partition_epoch=0)
        try:
            await asyncio.wait_for(scenario(Partition(log, view, node_id=1, commit=commit), commit), 20)
        finally:
            await asyncio.wait_for(commit.close(), 20)

    asyncio.run(main())


def write(partition: Partition, count: int = 1) -> None:
    for _ in range(count):
        partition.append_as_leader(batch(b"value"), acks=1, now_ms=NOW_MS)
    assert partition.high_watermark == partition.log.end_offset, "it counts without the disk"


async def flushed(partition: Partition, offset: int) -> None:
    """Wait until so much is on the disk."""
    while partition.log.flushed_offset < offset:  # noqa: ASYNC110 - a flush without waiters has no event
        await asyncio.sleep(0)


def test_without_a_rule_nothing_is_flushed() -> None:
    async def scenario(partition: Partition, commit: GroupCommit) -> None:
        write(partition, 100)
        await commit.drain()
        first = partition.log.flushed_offset  # that of the segment before, which was empty
        write(partition, 100)
        await commit.drain()
        assert partition.log.flushed_offset == first < 200

    run(PAGE_CACHE, scenario)


def test_after_flush_messages_records_all_of_them_are_flushed() -> None:
    async def scenario(partition: Partition, commit: GroupCommit) -> None:
        write(partition)
        await commit.drain()
        begin = partition.log.flushed_offset
        write(partition, 9 - (1 - begin))
        await commit.drain()
        assert partition.log.flushed_offset == begin
        write(partition)
        await commit.drain()
        assert partition.log.flushed_offset == partition.log.end_offset == begin + 10

    run(replace(PAGE_CACHE, flush_messages=10), scenario)


def test_after_flush_ms_all_that_was_written_is_flushed() -> None:
    async def scenario(partition: Partition, commit: GroupCommit) -> None:
        for count in (5, 10):
            write(partition, 5)
            await flushed(partition, count)

    run(replace(PAGE_CACHE, flush_ms=1), scenario)


def test_rules_that_are_changed_count_for_what_was_written_before() -> None:
    async def scenario(partition: Partition, commit: GroupCommit) -> None:
        for rule in (
            replace(PAGE_CACHE, flush_ms=1),
            replace(PAGE_CACHE, flush_messages=1),
            LogConfig(durability="fsync"),
        ):
            for before in (PAGE_CACHE, replace(PAGE_CACHE, flush_ms=LONG_MS)):
                partition.reconfigure(before)
                write(partition, 3)
                await commit.drain()
                write(partition, 3)
                await commit.drain()
                assert partition.log.flushed_offset < partition.log.end_offset
                partition.reconfigure(rule)
                await flushed(partition, partition.log.end_offset)

    run(PAGE_CACHE, scenario)


def test_a_partition_that_is_gone_is_flushed_no_more() -> None:
    async def scenario(partition: Partition, commit: GroupCommit) -> None:
        write(partition, 2)
        await commit.drain()
        write(partition, 2)
        partition.remove()
        assert not commit._timers
        partition.reconfigure(PAGE_CACHE)

    run(replace(PAGE_CACHE, flush_ms=LONG_MS), scenario)
