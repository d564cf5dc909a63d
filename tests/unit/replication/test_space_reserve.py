"""Tests a disk without any free space: what works, and how it is freed through the broker."""

from __future__ import annotations

import errno
import sqlite3
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from ottla.core.errors import ErrorCode, StorageError
from ottla.core.ids import TopicPartition
from ottla.metadata_store.embedded_store import EmbeddedMetadataStore
from ottla.metadata_store.store import Create
from ottla.storage.directories.space_reserve import FILE_NAME, SIZE_BYTES_MAX, SpaceReserve
from ottla.testing.sim_disk import SimDisk
from tests.unit.replication.disks import SMALL, BrokerReplicas, ReplicaHarness, no_patience, topic

__all__ = ["no_patience"]
DATA = PurePosixPath("/a")
OK, STORAGE = ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR
CAPACITY = 1 << 20
WEB = TopicPartition("web", 0)


def used_bytes(disk: SimDisk) -> int:
    return disk.capacity_bytes - disk.free_bytes(DATA)


FILLER = PurePosixPath("/filler")


def fill_disk(disk: SimDisk) -> None:
    disk.open(FILLER, create=True).append(bytes(disk.free_bytes(DATA)))


def reserve_of(broker: BrokerReplicas) -> SpaceReserve:
    directory = broker.directory(DATA)
    return SpaceReserve(broker.disk, DATA, directory.health)


async def start_with_records(broker: BrokerReplicas) -> SpaceReserve:
    """Twenty records in segments of their own, the reserve, and no free space."""
    broker.disk.capacity_bytes = CAPACITY
    reserve = reserve_of(broker)
    assert reserve.fill()
    broker.add(topic("web", 1))
    for number in range(20):
        assert await broker.send("web", b"%d" % number * 100) is OK
    fill_disk(broker.disk)
    return reserve


async def test_records_do_not_use_the_reserve_and_are_read_from_a_full_disk() -> None:
    harness = ReplicaHarness(DATA)
    async with harness.running() as broker:
        await start_with_records(broker)
        assert await broker.send("web", b"x" * 100) is STORAGE
        assert broker.disk.exists(DATA / FILE_NAME)
        assert len(broker.read("web")) == 20
    await harness.assert_all_acked_is_there()


async def test_a_full_disk_is_freed_by_delete_records_and_accepts_records_again() -> None:
    harness = ReplicaHarness(DATA)
    async with harness.running() as broker:
        reserve = await start_with_records(broker)
        directory, partition = broker.directory(DATA), broker.replicas.partition(WEB)
        partition.delete_records(20)
        assert await broker.replicas.note_log_starts([WEB]) == {}
        assert reserve.is_used
        assert await broker.send("web", b"x") is STORAGE, "the space is kept for what frees some"
        assert directory.run_retention(harness.clock.wall_ms())
        directory.purge_deleted(harness.clock.wall_ms())
        broker.disk.remove(FILLER)
        assert reserve.fill()
        await broker.until_sent("web", b"x")
        assert broker.read("web") == [(20, b"x")]


async def test_a_full_disk_is_freed_by_a_smaller_retention() -> None:
    harness = ReplicaHarness(DATA, config=replace(SMALL, retention_bytes=-1))
    async with harness.running() as broker:
        await start_with_records(broker)
        directory, partition = broker.directory(DATA), broker.replicas.partition(WEB)
        partition.reconfigure(replace(SMALL, retention_bytes=300))
        before = used_bytes(broker.disk)
        assert directory.run_retention(harness.clock.wall_ms())
        directory.purge_deleted(harness.clock.wall_ms())
        assert used_bytes(broker.disk) < before


async def test_a_full_disk_is_freed_by_deleting_a_topic() -> None:
    harness = ReplicaHarness(DATA)
    async with harness.running() as broker:
        await start_with_records(broker)
        broker.follow({})
        assert broker.directory(DATA).purge_deleted(harness.clock.wall_ms())
        assert not broker.disk.exists(DATA / "web-0")


async def test_the_stop_on_a_full_disk_is_clean() -> None:
    harness = ReplicaHarness(DATA)
    async with harness.running() as broker:
        await start_with_records(broker)
    async with harness.running() as broker:
        assert broker.directory(DATA).clean_broker_epoch is not None


async def test_after_a_start_on_a_full_disk_without_its_reserve_records_are_refused_until_there_is_space() -> None:
    harness = ReplicaHarness(DATA)
    async with harness.running(stop=False) as broker:
        reserve = await start_with_records(broker)
        assert reserve.release()
        assert not reserve.release()
    async with harness.running() as broker:
        reserve = reserve_of(broker)
        assert reserve.is_used
        assert await broker.send("web", b"x") is STORAGE
        assert not reserve.fill()
        broker.disk.remove(FILLER)
        assert reserve.fill()
        assert await broker.send("web", b"x") is OK
    await harness.assert_all_acked_is_there()


async def test_from_the_first_refused_write_on_records_are_refused_until_there_is_space_and_both_are_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness = ReplicaHarness(DATA)
    with caplog.at_level("INFO"):
        async with harness.running() as broker:
            reserve = await start_with_records(broker)
            health = broker.directory(DATA).health
            for _ in range(3):
                assert await broker.send("web", b"x" * 100) is STORAGE
            assert health.is_full
            broker.disk.remove(FILLER)
            broker.disk.open(FILLER, create=True).append(bytes(broker.disk.free_bytes(DATA) - 300))
            assert not reserve.fill()
            assert await broker.send("web", b"x") is STORAGE, "there is space for this one, but not for the next ones"
            broker.disk.remove(FILLER)
            assert reserve.fill()
            assert await broker.send("web", b"x" * 100) is OK
    full = "log directory /a is full: No space left on device (new segment of web-0). "
    lines = [each.getMessage() for each in caplog.records if "/a " in each.getMessage()]
    assert lines == [
        f"{full}Records are refused until there is free space: delete topics or records, or lower retention.bytes",
        "log directory /a has free space and accepts records again",
    ]
    await harness.assert_all_acked_is_there()


async def test_a_directory_with_free_space_and_a_used_up_quota_accepts_no_records() -> None:
    harness = ReplicaHarness(DATA)
    async with harness.running() as broker:
        reserve = await start_with_records(broker)
        broker.disk.remove(FILLER)
        broker.disk.refuse(errno.EDQUOT, "write", "create")
        assert await broker.send("web", b"x") is STORAGE
        assert not reserve.fill()
        assert await broker.send("web", b"x") is STORAGE
        broker.disk.stop_refusing()
        assert reserve.fill()
        assert await broker.send("web", b"x") is OK
        assert [name for name in broker.disk.names_in(DATA) if name.startswith(FILE_NAME)] == [FILE_NAME]


def test_the_reserve_is_small_and_smaller_on_a_small_disk() -> None:
    disk = SimDisk(capacity_bytes=16 << 20)
    disk.make_directory(DATA)
    assert SpaceReserve(disk, DATA).fill()
    assert disk.size_of(DATA / FILE_NAME) == 1 << 20
    large = SimDisk()
    large.make_directory(DATA)
    assert SpaceReserve(large, DATA).fill()
    assert large.size_of(DATA / FILE_NAME) == SIZE_BYTES_MAX


async def test_a_commit_of_the_metadata_store_that_finds_no_space_is_repeated_after_some_was_made(
    tmp_path: Path,
) -> None:
    released: list[bool] = []

    def make_space() -> bool:
        released.append(True)
        if len(released) > 1:
            return False
        connection.execute("PRAGMA max_page_count = 20")
        return True

    store = EmbeddedMetadataStore.open(tmp_path / "store", make_space)
    assert store._file is not None
    connection: sqlite3.Connection = store._file._connection
    session = store.session()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    await session.commit([Create("/large", bytes(10_000))])
    assert released == [True]
    with pytest.raises(StorageError):
        await session.commit([Create("/larger", bytes(1_000_000))])
    assert await session.get("/larger") is None
    await session.commit([Create("/small", b"")])
    await session.close()
