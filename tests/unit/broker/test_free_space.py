"""Tests the scheduled tasks of a directory that is full: what commands make deletable is removed at once."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from ottla.broker.maintenance import scheduled_tasks
from ottla.broker.maintenance.scheduled_tasks import ScheduledTasks
from ottla.core.errors import ErrorCode
from ottla.core.ids import TopicPartition
from ottla.limits.loop_slices import LoopSlices
from ottla.storage.directories.space_reserve import SpaceReserve
from tests.unit.replication.disks import SMALL, BrokerReplicas, ReplicaHarness, no_patience, topic

__all__ = ["no_patience"]
DATA, FILLER = PurePosixPath("/a"), PurePosixPath("/filler")
WEB = TopicPartition("web", 0)
A_WEEK_MS = 7 * 24 * 3_600_000
SLOW = replace(
    SMALL,
    segment_bytes=30_000,
    file_delete_delay_ms=A_WEEK_MS,
    retention_check_interval_ms=A_WEEK_MS,
    retention_bytes=-1,
    retention_ms=-1,
)
CAPACITY = 1 << 20


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduled_tasks, "SPACE_SECONDS", 0.005)


async def nothing() -> None:
    """Do nothing."""


@contextlib.asynccontextmanager
async def tasks_of(broker: BrokerReplicas) -> AsyncIterator[None]:
    """Run the scheduled tasks of a broker with a week between two checks of retention, and until files are removed."""
    reserve = SpaceReserve(broker.disk, DATA, broker.directory(DATA).health)
    assert reserve.fill()
    tasks = ScheduledTasks(
        broker.replicas,
        config=SLOW,
        clock=broker.harness.clock,
        slices=LoopSlices(),
        complete_deletions=nothing,
        check_transactions=nothing,
        reserves=[reserve],
    )
    try:
        yield
    finally:
        await tasks.stop()


async def fill(broker: BrokerReplicas, *, leave_bytes: int = 0) -> None:
    """Write records of half of the disk, and a file of the rest."""
    broker.add(topic("web", 1))
    while broker.disk.free_bytes(DATA) > CAPACITY // 2:
        assert await broker.send("web", b"x" * 20_000) is ErrorCode.NONE
    broker.disk.open(FILLER, create=True).append(bytes(broker.disk.free_bytes(DATA) - leave_bytes))
    if not leave_bytes:
        assert await broker.send("web", b"x" * 20_000) is ErrorCode.KAFKA_STORAGE_ERROR


@pytest.fixture
async def broker() -> AsyncIterator[BrokerReplicas]:
    harness = ReplicaHarness(DATA, config=SLOW)
    harness.disk.capacity_bytes = CAPACITY
    async with harness.running() as broker:
        yield broker


def delete_records(broker: BrokerReplicas) -> None:
    broker.replicas.partition(WEB).delete_records(-1)


def lower_retention(broker: BrokerReplicas) -> None:
    broker.replicas.partition(WEB).reconfigure(replace(SLOW, retention_bytes=100))


def delete_topic(broker: BrokerReplicas) -> None:
    other = topic("other", 1)
    broker.follow({"other": other})


@pytest.mark.parametrize("command", [delete_records, lower_retention, delete_topic])
async def test_a_command_that_makes_records_deletable_frees_a_full_disk_at_once(
    broker: BrokerReplicas, command: Callable[[BrokerReplicas], None]
) -> None:
    async with tasks_of(broker):
        await fill(broker)
        command(broker)
        await broker.until(lambda: broker.disk.free_bytes(DATA) > CAPACITY // 3, "the space")
        await broker.until(lambda: not broker.directory(DATA).health.is_full, "that records are accepted")
        broker.add(topic("new", 1))
        await broker.until_sent("new", b"x")


async def test_a_nearly_full_disk_is_freed_at_once_too(broker: BrokerReplicas) -> None:
    async with tasks_of(broker):
        await fill(broker, leave_bytes=CAPACITY // 50)
        await broker.until(lambda: broker.directory(DATA).is_short_of_space, "that it is noticed")
        delete_records(broker)
        await broker.until(lambda: broker.disk.free_bytes(DATA) > CAPACITY // 3, "the space")


async def test_where_there_is_space_the_delay_of_deleted_files_counts(broker: BrokerReplicas) -> None:
    async with tasks_of(broker):
        broker.add(topic("web", 1))
        for _ in range(3):
            assert await broker.send("web", b"x" * 500) is ErrorCode.NONE
        directory = broker.directory(DATA)
        delete_records(broker)
        assert directory.run_retention(broker.harness.clock.wall_ms())
        directory.look_at_space()
        assert not directory.purge_deleted(broker.harness.clock.wall_ms())
        assert [name for name in broker.disk.names_in(DATA / "web-0") if name.endswith(".deleted")]


async def test_a_reader_of_a_segment_that_is_removed_without_the_delay_reads_on(broker: BrokerReplicas) -> None:
    async with tasks_of(broker):
        await fill(broker)
        read = broker.replicas.partition(WEB).read(0, max_bytes=1, committed_only=False, at_least_one=True)
        delete_records(broker)
        await broker.until(lambda: broker.disk.free_bytes(DATA) > CAPACITY // 3, "the space")
        assert read.region is not None
        assert len(read.region.read()) == read.region.size
