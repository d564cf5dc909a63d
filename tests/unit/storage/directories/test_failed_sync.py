"""A start after an fsync has failed, on the same machine: what the page cache has may not be on the disk."""

from __future__ import annotations

import errno
import logging
import random
import uuid
from pathlib import PurePosixPath

import pytest

from ottla.core.errors import StorageError
from ottla.core.files import read_file
from ottla.core.ids import NO_TOPIC_ID, TopicPartition
from ottla.storage.config import LogConfig
from ottla.storage.directories.directory_identity import make_durably
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.loading.failed_sync import FILE_NAME, FailedSyncMark, Rewriter
from ottla.storage.log.partition_log import PartitionLog
from ottla.storage.small_files import parse_partition_metadata
from ottla.testing.sim_disk import SimDisk, Survival
from tests.support.replicas import TOPIC_ID
from tests.support.storage import NOW_MS, ROOT, TP, batch, everything, open_directories, open_directory

OTHER = PurePosixPath("/other")
SMALL = LogConfig(segment_bytes=250)
"""Segments of three records."""


def values(log: PartitionLog) -> list[bytes | None]:
    return [value for _, value in everything(log)]


def put(log: PartitionLog, *records: bytes) -> None:
    for value in records:
        log.append(batch(value), leader_epoch=0, now_ms=NOW_MS)


def fail_flush(disk: SimDisk, log: PartitionLog) -> None:
    """Flush, and let the first fsync of a file fail."""
    job = log.begin_flush()
    disk.fail_at(1)
    with pytest.raises(StorageError):
        job.run()
    with pytest.raises(StorageError):
        log.complete_flush(job)


def failed(disk: SimDisk, *synced: bytes, lost: tuple[bytes, ...], config: LogConfig = SMALL) -> LogDirectory:
    """Sync some records, and fail the fsync of others."""
    directory = open_directory(disk, config)
    log = directory.create_log(TP, config=config)
    put(log, *synced)
    log.flush()
    directory.checkpoint()
    put(log, *lost)
    fail_flush(disk, log)
    assert directory.health.failure is not None
    return directory


def marks(disk: SimDisk, root: PurePosixPath = ROOT) -> list[str]:
    return [name for name in disk.names_in(root) if name.startswith(FILE_NAME)]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("lost", [(b"c",), (b"c", b"d", b"e", b"f", b"g")], ids=["one", "several segments"])
def test_records_that_a_start_counts_as_durable_survive_a_power_cut(lost: tuple[bytes, ...], seed: int) -> None:
    disk = SimDisk()
    failed(disk, b"a", b"b", lost=lost)
    disk.process_died()  # the machine goes on, and the page cache with it
    directory = open_directory(disk, SMALL)
    log = directory.logs[TP]
    counted = values(log)
    assert log.flushed_offset == log.end_offset == len(counted)
    assert counted == [b"a", b"b", *lost], "the page cache has them"
    assert marks(disk) == []
    disk.power_cut(random.Random(seed), Survival.LOST if seed == 0 else Survival.TORN)
    assert values(open_directory(disk, SMALL).logs[TP]) == counted


def test_the_start_reports_what_it_found(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk()
    failed(disk, b"a", b"b", lost=(b"c", b"d"))
    disk.process_died()
    with caplog.at_level(logging.WARNING):
        open_directory(disk, SMALL)
    (found,) = [each.getMessage() for each in caplog.records if "written again" in each.getMessage()]
    assert f"fsync of {TP}: Input/output error" in found
    assert "1 logs" in found
    assert f"{TP} from offset 2 to 4" in found
    caplog.clear()
    open_directory_again(disk)
    assert not [each for each in caplog.records if "written again" in each.getMessage()]


def open_directory_again(disk: SimDisk) -> LogDirectory:
    disk.process_died()
    return open_directory(disk, SMALL)


def test_nothing_is_written_again_below_the_recovery_point_or_without_a_failed_fsync() -> None:
    sizes = []
    for is_failed in (False, True):
        disk = SimDisk()
        config = LogConfig()
        directory = open_directory(disk, config)
        log = directory.create_log(TP, config=config)
        put(log, *(b"%d" % number for number in range(200)))
        log.flush()
        directory.checkpoint()
        put(log, b"last")
        if is_failed:
            fail_flush(disk, log)
        disk.process_died()
        before = len(disk.history)
        open_directory(disk, config)
        sizes.append(sum(each.startswith("write ") and each.endswith(".log") for each in disk.history[before:]))
    assert sizes == [0, 1]
    assert len(disk.names_in(ROOT / str(TP))) > 0


def test_a_machine_that_was_restarted_keeps_what_was_synced() -> None:
    disk = SimDisk()
    failed(disk, b"a", b"b", lost=(b"c",))
    disk.power_cut(random.Random(1), Survival.LOST)
    assert values(open_directory(disk, SMALL).logs[TP]) == [b"a", b"b"]


def test_pages_that_the_system_has_dropped_are_gone_at_the_start_and_not_after_it() -> None:
    disk = SimDisk(drops_failed_pages=True)
    failed(disk, b"a", b"b", lost=(b"c",))
    disk.process_died()
    directory = open_directory(disk, SMALL)
    assert values(directory.logs[TP]) == [b"a", b"b"]
    put(directory.logs[TP], b"new")
    directory.logs[TP].flush()
    disk.power_cut(random.Random(1), Survival.LOST)
    assert values(open_directory(disk, SMALL).logs[TP]) == [b"a", b"b", b"new"]


def test_a_replica_that_lost_committed_records_by_dropped_pages_is_suspect() -> None:
    """With `durability=page-cache` the high watermark may be above what was synced."""
    disk = SimDisk(drops_failed_pages=True)
    config = LogConfig(durability="page-cache")
    directory = open_directory(disk, config)
    log = directory.create_log(TP, config=config)
    put(log, b"a")
    log.flush()
    put(log, b"b")
    log.update_high_watermark(2)
    directory.checkpoint()
    fail_flush(disk, log)
    disk.process_died()
    assert open_directory(disk, config).shortened == {TP}


def test_an_fsync_that_fails_again_at_the_start_leaves_the_mark() -> None:
    disk = SimDisk()
    failed(disk, b"a", b"b", lost=(b"c",))
    for _ in range(2):
        disk.process_died()
        disk.refuse(errno.EIO, "sync")
        with pytest.raises((OSError, StorageError)):
            open_directory(disk, SMALL)
        assert len(marks(disk)) == 1
        disk.stop_refusing()
    open_directory_again(disk)
    assert marks(disk) == []
    disk.power_cut(random.Random(1), Survival.LOST)
    assert values(open_directory(disk, SMALL).logs[TP]) == [b"a", b"b", b"c"]


def test_an_fsync_that_fails_for_the_first_time_at_a_start_leaves_a_mark() -> None:
    disk = SimDisk()
    directory = open_directory(disk, SMALL)
    log = directory.create_log(TP, config=SMALL)
    put(log, b"a")
    log.flush()
    directory.checkpoint()
    put(log, b"b")
    disk.process_died()  # a kill: nothing has failed yet
    disk.refuse(errno.EIO, "sync", under=ROOT / str(TP))
    with pytest.raises((OSError, StorageError)):
        open_directory(disk, SMALL)
    disk.stop_refusing()
    assert len(marks(disk)) == 1
    open_directory_again(disk)
    disk.power_cut(random.Random(1), Survival.LOST)
    assert values(open_directory(disk, SMALL).logs[TP]) == [b"a", b"b"]


def test_a_directory_that_takes_no_file_is_marked_in_another_one() -> None:
    disk = SimDisk()
    directories = open_directories(disk, ROOT, OTHER, config=SMALL)
    log = directories.opened[0].create_log(TP, config=SMALL)
    put(log, b"a")
    log.flush()
    directories.opened[0].checkpoint()
    put(log, b"b")
    disk.refuse(errno.EIO, "create", under=ROOT)
    fail_flush(disk, log)
    disk.stop_refusing()
    assert (len(marks(disk)), len(marks(disk, OTHER))) == (0, 1)
    disk.process_died()
    again = open_directories(disk, ROOT, OTHER, config=SMALL)
    assert values(again.opened[0].logs[TP]) == [b"a", b"b"]
    assert (len(marks(disk)), len(marks(disk, OTHER))) == (0, 0)
    disk.power_cut(random.Random(1), Survival.LOST)
    assert values(open_directories(disk, ROOT, OTHER, config=SMALL).opened[0].logs[TP]) == [b"a", b"b"]


def test_without_a_place_for_the_mark_the_operator_is_asked_to_restart_the_machine(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = SimDisk()
    directory = open_directory(disk, SMALL)
    log = directory.create_log(TopicPartition("t", 1), config=SMALL)
    put(log, b"a")
    log.flush()
    put(log, b"b")
    disk.refuse(errno.EIO, "create")
    fail_flush(disk, log)
    assert "Restart the machine" in caplog.text


def test_the_copy_of_a_move_is_written_again_too() -> None:
    disk = SimDisk()
    a, b = open_directories(disk, ROOT, OTHER, config=SMALL).opened
    log = a.create_log(TP, TOPIC_ID, SMALL)
    put(log, *(b"%d" % number for number in range(9)))
    log.flush()
    a.checkpoint()
    future = b.create_future_log(log)
    for records in (3, 9):
        while future.end_offset < records:
            region = log.read(future.end_offset, max_bytes=1, end_offset=records)
            assert region is not None
            future.append_as_follower(memoryview(region.read()), now_ms=NOW_MS)
        if records == 3:
            future.flush()
            b.checkpoint()
    fail_flush(disk, future)
    disk.process_died()
    a, b = open_directories(disk, ROOT, OTHER, config=SMALL).opened
    future = b.future_logs[TP]
    assert future.flushed_offset == future.end_offset == 9
    assert (len(marks(disk)), len(marks(disk, OTHER))) == (0, 0)
    disk.power_cut(random.Random(1), Survival.LOST)
    a, b = open_directories(disk, ROOT, OTHER, config=SMALL).opened
    assert len(values(b.future_logs[TP])) == len(values(a.logs[TP])) == 9


def test_the_mark_stays_while_a_log_is_missing_that_may_be_put_back() -> None:
    """It was set aside for its copy, which is in a directory that is missing: an operator restores one of the two."""
    disk = SimDisk()
    failed(disk, b"a", b"b", lost=(b"c",))
    aside = ROOT / f"{TP}.{uuid.UUID(int=5).hex}-replaced"
    disk.rename(ROOT / str(TP), aside)
    for _ in range(2):
        directory = open_directory_again(disk)
        assert directory.lost_logs.keys() == {TP}
        assert len(marks(disk)) == 1
    disk.rename(aside, ROOT / str(TP))
    assert values(open_directory_again(disk).logs[TP]) == [b"a", b"b", b"c"]
    assert marks(disk) == []
    disk.power_cut(random.Random(1), Survival.LOST)
    assert values(open_directory(disk, SMALL).logs[TP]) == [b"a", b"b", b"c"]


def test_a_corrupt_topic_id_is_not_believed_after_the_start_that_writes_again() -> None:
    disk = SimDisk()
    directory = open_directory(disk, SMALL)
    log = directory.create_log(TP, TOPIC_ID, SMALL)
    put(log, b"a")
    log.flush()
    directory.checkpoint()
    put(log, b"b")
    fail_flush(disk, log)
    path = ROOT / str(TP) / "partition.metadata"
    disk.flip_bit(path, 8 * 30 + 1)
    changed = parse_partition_metadata(read_file(disk, path).decode())
    assert changed not in (TOPIC_ID, NO_TOPIC_ID), "it can be parsed"
    for _ in range(3):
        assert open_directory_again(disk).logs[TP].topic_id == TOPIC_ID


def test_a_topic_id_that_becomes_corrupt_after_the_start_that_writes_again_is_noticed() -> None:
    disk = SimDisk()
    directory = open_directory(disk, SMALL)
    log = directory.create_log(TP, TOPIC_ID, SMALL)
    put(log, b"a")
    fail_flush(disk, log)
    open_directory_again(disk)
    disk.flip_bit(ROOT / str(TP) / "partition.metadata", 8 * 30 + 1)
    assert open_directory_again(disk).logs[TP].topic_id == TOPIC_ID


def test_pages_that_are_dropped_between_the_recovery_and_the_writing_are_noticed() -> None:
    disk = SimDisk()
    failed(disk, b"a", b"b", lost=(b"c", b"d", b"e"), config=LogConfig())
    disk.process_died()
    log = open_directory(disk).logs[TP]
    disk.open(log.active.log_path).write_at(log.active.size_bytes - 5, bytes(5))
    with pytest.raises(OSError, match="not what recovery has read"):
        Rewriter("").rewrite(log, 2)


def test_a_mark_that_cannot_be_read_is_one() -> None:
    disk = SimDisk()
    make_durably(disk, ROOT)
    mark = FailedSyncMark(disk, ROOT, (), TOPIC_ID)
    assert mark.rewriter() is None
    disk.make_directory(ROOT / f"{FILE_NAME}.{TOPIC_ID.hex}")
    assert mark.rewriter() is not None
