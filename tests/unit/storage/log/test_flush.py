"""What a flush guarantees, what it loses when it fails, and what it only puts off."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from ottla.core.errors import StorageError, SyncFailed
from ottla.core.files import read_file
from ottla.core.ids import TopicPartition
from ottla.records.batch import split
from ottla.storage.config import LogConfig
from ottla.storage.directory_health import DirectoryHealth
from ottla.storage.log.partition_log import AppendOrigin, PartitionLog
from ottla.storage.log.truncation_steps import run_truncation
from ottla.storage.small_files import RECOVERY_POINTS, parse_offsets
from ottla.storage.state.aborted_index import read_aborted
from ottla.testing.sim_disk import SimDisk, Survival
from tests.support.storage import NOW_MS, ROOT, TP, batch, everything, marker, open_directory, open_log, values

SMALL = replace(LogConfig(), segment_bytes=100)  # one batch each


def put(log: PartitionLog, *each: bytes) -> None:
    for value in each:
        log.append(batch(value), leader_epoch=0, now_ms=NOW_MS)


def held_after_a_power_cut(disk: SimDisk) -> list[bytes | None]:
    disk.power_cut(random.Random(1), Survival.LOST)
    log = open_directory(disk).logs.get(TP)
    return [] if log is None else values(everything(log))


def test_files_that_could_not_be_synced_without_a_handle_are_synced_by_the_next_flush() -> None:
    disk = SimDisk()
    log = open_log(disk, SMALL)
    put(log, b"a", b"b", b"c")  # three segments: files closed again, and names that are new
    job = log.begin_flush()
    disk.refuse(errno.EMFILE, "open")
    job.run()
    with pytest.raises(StorageError):
        log.complete_flush(job)
    assert log.flushed_offset == 0
    assert log.health.failure is None
    disk.stop_refusing()
    log.flush()
    assert log.flushed_offset == 3
    assert held_after_a_power_cut(disk) == [b"a", b"b", b"c"]


def test_a_segment_that_was_cut_off_meanwhile_does_not_come_back_with_a_flush_that_was_put_off() -> None:
    disk = SimDisk()
    log = open_log(disk, SMALL)
    put(log, b"a", b"b", b"c")
    job = log.begin_flush()
    disk.refuse(errno.ENFILE, "open")
    job.run()
    disk.stop_refusing()
    log.truncate_to(1)
    with pytest.raises(StorageError):
        log.complete_flush(job)
    log.flush()
    assert [name for name in disk.names_in(ROOT / str(TP)) if name.endswith((".log", ".index"))] == [
        "00000000000000000000.index",
        "00000000000000000000.log",
    ]
    assert held_after_a_power_cut(disk) == [b"a"]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE])
def test_a_failed_sync_is_final_whatever_number_it_has(error: int) -> None:
    disk = SimDisk()
    log = open_log(disk)
    put(log, b"a")
    disk.refuse(error, "sync")
    with pytest.raises(StorageError):
        log.flush()
    disk.stop_refusing()
    for _ in range(2):
        with pytest.raises(StorageError):
            log.flush()
        with pytest.raises(StorageError):
            put(log, b"b")
    assert log.flushed_offset == 0


@pytest.mark.parametrize(
    ("what", "refuse"),
    [
        pytest.param("epochs", lambda log: log.begin_epoch(9), id="the leader epochs"),
        pytest.param("indexes", lambda log: None, id="the indexes of a sealed segment"),
    ],
)
def test_a_flush_is_retried_with_everything_pending_after_a_small_file_could_not_be_written(
    what: str, refuse: Callable[[PartitionLog], None]
) -> None:
    disk = SimDisk()
    log = open_log(disk, replace(SMALL, index_interval_bytes=0))
    put(log, b"a", b"b")
    disk.refuse(errno.ENOSPC, "write", "create")
    refuse(log)
    with pytest.raises(StorageError, match="No space left"):
        log.begin_flush()
    assert log.health.failure is None, what
    disk.stop_refusing()
    log.flush()
    assert log.flushed_offset == 2
    assert held_after_a_power_cut(disk) == [b"a", b"b"]


def test_an_entry_of_the_transaction_index_that_could_not_be_written_is_written_by_the_next_flush() -> None:
    disk = SimDisk()
    log = open_log(disk)
    log.append(batch(b"x", producer_id=5, epoch=0, sequence=0, transactional=True), leader_epoch=0, now_ms=NOW_MS)
    log.flush()
    disk.refuse(errno.ENOSPC, "create")
    log.append(marker(5, 0, commit=False), leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    (known,) = log.aborted_transactions(0, 2)
    with pytest.raises(StorageError):
        log.begin_flush()
    disk.stop_refusing()
    log.flush()
    assert log.aborted_transactions(0, 2) == [known]
    assert read_aborted(disk, log.active.path(".txnindex")) == [known]
    disk.power_cut(random.Random(1), Survival.LOST)
    assert open_directory(disk).logs[TP].aborted_transactions(0, 2) == [known]


def test_a_log_on_a_full_disk_is_recovered_and_read_and_accepts_writes_when_space_is_free_again() -> None:
    disk = SimDisk()
    log = open_log(disk, replace(LogConfig(), segment_bytes=300, index_interval_bytes=0))
    for number in range(12):
        log.append(batch(b"%d" % number), leader_epoch=number // 4, now_ms=NOW_MS)
    log.flush()
    disk.power_cut(random.Random(1), Survival.LOST)
    disk.refuse(errno.ENOSPC, "write", "create")
    directory = open_directory(disk, SMALL)
    log = directory.logs[TP]
    assert len(everything(log)) == 12
    assert directory.health.failure is None
    with pytest.raises(StorageError):
        log.flush()
    disk.stop_refusing()
    log.truncate_to(9)
    log.append(batch(b"after"), leader_epoch=5, now_ms=NOW_MS)
    log.flush()
    assert held_after_a_power_cut(disk) == [*(b"%d" % number for number in range(9)), b"after"]


def test_a_recovery_point_that_could_not_be_noted_after_a_cut_is_noted_before_anything_new_counts() -> None:
    disk = SimDisk()
    directory = open_directory(disk, SMALL)
    log = directory.create_log(TP)
    put(log, *(b"%d" % number for number in range(12)))
    log.flush()
    directory.checkpoint()
    point = ROOT / RECOVERY_POINTS

    disk.refuse(errno.ENOSPC, "write", "create")
    with pytest.raises(StorageError):
        log.truncate_to(5)  # not even lowered before the cut: nothing is cut
    assert log.end_offset == 12
    disk.stop_refusing()
    disk.refuse(errno.ENOSPC, "write", "create")
    run_truncation(log.truncations.end(), log.checkpoint)  # now only the checkpoint after a truncation fails
    disk.stop_refusing()
    disk.remove(point)
    log.flush()
    assert parse_offsets(read_file(disk, point).decode()) == {TP: 12}


def test_a_batch_that_was_half_written_is_never_seen() -> None:
    disk = SimDisk()
    log = open_log(disk)
    put(log, b"a")
    for error in (errno.ENOSPC, errno.EDQUOT):
        disk.fail_at(1, error)  # half of it is in the file when the disk gives up
        with pytest.raises(StorageError):
            put(log, b"torn")
    file = disk.open(log.active.path(".log"))
    assert sum(header.size_bytes for _, header in split(file.read_at(0, file.size()))) == file.size()
    put(log, b"b")
    log.flush()
    assert values(everything(log)) == [b"a", b"b"]
    assert held_after_a_power_cut(disk) == [b"a", b"b"]


def test_a_transient_error_is_logged_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    now = [0.0]
    health = DirectoryHealth("/data", now=lambda: now[0])
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for _ in range(100):
        health.refused("append of web-0", full)
        health.accepted()
    assert [record.message for record in caplog.records] == [
        "log directory /data: No space left on device (append of web-0); writes are retried",
        "log directory /data accepts writes again",
    ]
    now[0] += 3600
    health.refused("append of web-0", full)
    assert len(caplog.records) == 3, "logged again an hour later"


def test_a_failure_of_a_directory_is_logged_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    health = DirectoryHealth("/data", now=lambda: 0.0)
    reported: list[str] = []
    health.on_failure = lambda error: reported.append(error.message)
    for _ in range(5):
        health.refused("append", OSError(errno.EROFS, os.strerror(errno.EROFS)))
        health.refused("checkpoint", SyncFailed(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert reported == ["append: Read-only file system"]
    assert [record.message for record in caplog.records] == [
        "log directory /data is offline until a restart: append: Read-only file system"
    ]


def test_a_segment_with_an_awaited_sync_keeps_its_file_open_and_others_are_closed() -> None:
    disk = SimDisk()
    disk.open_file_cache.limit = 2
    log = open_log(disk, SMALL)
    put(log, b"a", b"b")
    with pytest.raises(StorageError, match="Too many open files"):
        put(log, b"c")  # a and b may not go before a flush has begun with them
    log.flush()
    put(log, b"c", b"d")
    assert len(disk.open_file_cache) == 2
    with pytest.raises(StorageError):
        put(log, b"e")
    log.flush()
    assert values(everything(log)) == [b"a", b"b", b"c", b"d"]
    assert len(disk.open_file_cache) == 2
    assert held_after_a_power_cut(disk) == [b"a", b"b", b"c", b"d"]


def test_new_and_empty_segments_wait_for_no_sync_and_give_their_files_up() -> None:
    disk = SimDisk()
    disk.open_file_cache.limit = 2
    directory = open_directory(disk)
    for number in range(10):
        directory.create_log(TopicPartition("web", number))
    assert len(disk.open_file_cache) == 2


def test_a_file_given_up_is_not_taken_for_one_that_must_be_checked() -> None:
    disk = SimDisk()
    log = open_log(disk, SMALL)
    put(log, b"a", b"b")
    log.flush()
    for segment in log.segments:
        segment.close_if_idle()
        assert segment.close_if_idle()
    assert values(everything(log)) == [b"a", b"b"]
