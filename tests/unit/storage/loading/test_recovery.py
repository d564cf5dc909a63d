"""Tests recovery after a stop at any moment: the longest valid prefix, and never less than was acknowledged."""

from __future__ import annotations

import errno
import random
import uuid
from collections.abc import Generator, Iterator

import pytest

from ottla.core.errors import KafkaError, StorageError
from ottla.core.files import read_file
from ottla.core.ids import TopicPartition
from ottla.core.slices import WorkSlice
from ottla.storage.config import LogConfig
from ottla.storage.directories.checkpoint_job import CheckpointJob
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.log.partition_log import PartitionLog
from ottla.storage.state.producer_state_manager import ProducerInfo
from ottla.testing.sim_disk import POWER_CUTS, PowerCut, SimDisk, Survival
from tests.support.storage import NOW_MS, ROOT, TP, StillClock, batch, everything, open_directory, open_log, values

CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100)
FIRST_LOG = ROOT / "web-0" / "00000000000000000000.log"


def fill(log: PartitionLog, count: int, *, start: int = 0, leader_epoch: int = 0) -> None:
    for at in range(start, start + count):
        log.append(
            batch(b"value-%d" % at, producer_id=3, epoch=0, sequence=at), leader_epoch=leader_epoch, now_ms=NOW_MS
        )


def finished(beginning: Generator[None, None, CheckpointJob]) -> CheckpointJob:
    """Run all slices."""
    while True:
        try:
            next(beginning)
        except StopIteration as end:
            job: CheckpointJob = end.value
            return job


def reopened(disk: SimDisk, config: LogConfig = CONFIG) -> PartitionLog:
    disk.power_cut(random.Random(0), Survival.KEPT)
    return open_directory(disk, config).logs[TP]


@pytest.mark.parametrize("corruption", ["cut", "zeros", "noise"])
def test_a_tail_corrupt_at_any_byte_of_the_last_batches_costs_only_the_batches_it_touches(corruption: str) -> None:
    config = LogConfig()
    disk = SimDisk()
    log = open_log(disk, config)
    fill(log, 4)
    log.flush()
    whole = read_file(disk, FIRST_LOG)
    size = len(whole) // 4
    rng = random.Random(5)
    for at in range(len(whole) - 3 * size, len(whole)):
        tail = {"cut": b"", "zeros": bytes(len(whole) - at), "noise": rng.randbytes(len(whole) - at)}[corruption]
        spoilt = next((n for n in range(at, len(whole)) if not tail or tail[n - at] != whole[n]), len(whole)) // size
        file = disk.open(FIRST_LOG)
        file.truncate(at)
        file.append(tail or b"")
        after = reopened(disk, config)
        assert after.end_offset == spoilt, f"corruption from byte {at} on"
        assert values(everything(after)) == [b"value-%d" % n for n in range(spoilt)]
        known = after.producers.entry(3)
        assert (known.last_sequence + 1 if known else 0) == spoilt
        file = disk.open(FIRST_LOG)
        file.truncate(0)
        file.append(whole)


def test_one_flipped_bit_anywhere_ends_the_log_at_its_batch() -> None:
    disk = SimDisk()
    log = open_log(disk, LogConfig())
    fill(log, 3)
    log.flush()
    whole = read_file(disk, FIRST_LOG)
    size = len(whole) // 3
    for byte in range(size, 2 * size):
        if size + 12 <= byte < size + 16:
            continue  # the leader epoch is the one field outside the checksum
        disk.flip_bit(FIRST_LOG, byte * 8 + byte % 8)
        assert reopened(disk, LogConfig()).end_offset == 1, f"bit flipped in byte {byte}"
        file = disk.open(FIRST_LOG)
        file.truncate(0)
        file.append(whole)


def test_recovery_done_twice_changes_nothing_the_second_time() -> None:
    disk = SimDisk()
    log = open_log(disk, CONFIG)
    fill(log, 20)
    disk.power_cut(random.Random(3), Survival.TORN)
    open_directory(disk, CONFIG)
    first = snapshot_of(disk)
    disk.power_cut(random.Random(4), Survival.LOST)
    open_directory(disk, CONFIG)
    assert snapshot_of(disk) == first


def snapshot_of(disk: SimDisk) -> dict[str, bytes]:
    if not disk.exists(ROOT / "web-0"):
        return {}
    return {name: read_file(disk, ROOT / "web-0" / name) for name in disk.names_in(ROOT / "web-0")}


def workload(disk: SimDisk) -> Iterator[tuple[int, int]]:
    """Appends, rolls, flushes, checkpoints, a cut, a deletion and a clean stop; yields (guaranteed, written) as it goes."""
    clock = StillClock()
    directory = open_directory(disk, CONFIG, clock)
    log = directory.create_log(TP, uuid.UUID(int=7))
    fill(log, 6)
    yield 0, 6
    log.flush()
    yield 6, 6
    directory.checkpoint()
    fill(log, 5, start=6, leader_epoch=1)
    yield 6, 11
    log.flush()
    log.update_high_watermark(11)
    yield 11, 11
    directory.checkpoint()
    log.delete_records(4)
    log.delete_old_segments(clock.now_ms)
    yield 11, 11
    clock.now_ms += 60_000
    directory.purge_deleted(clock.now_ms)
    fill(log, 3, start=11, leader_epoch=1)
    log.flush()
    yield 14, 14
    directory.close()
    yield 14, 14
    directory = open_directory(disk, CONFIG, clock)
    log = directory.logs[TP]
    fill(log, 4, start=14, leader_epoch=2)
    yield 14, 18
    log.flush()
    yield 18, 18
    directory.checkpoint()


@pytest.mark.parametrize("survival", POWER_CUTS)
def test_a_stop_after_any_change_of_the_disk_keeps_what_is_guaranteed(survival: Survival) -> None:
    dry = SimDisk()
    for _ in workload(dry):
        pass
    stops = 0
    for nth in range(1, dry.changes + 1):
        for seed in range(3 if survival is Survival.TORN else 1):
            stops += 1
            disk = SimDisk()
            disk.stop_at(nth)
            guaranteed = written = 0
            try:
                for state in workload(disk):
                    guaranteed, written = state
            except PowerCut:
                pass
            disk.power_cut(random.Random(nth * 100 + seed), survival)
            directory = open_directory(disk, CONFIG)
            log = directory.logs.get(TP)
            end = log.end_offset if log else 0
            note = f"stopped before change {nth} ({disk.history[nth - 1]}), seed {seed}"
            assert guaranteed <= end, note
            assert end <= written + 6, note
            if log is not None:
                rows = everything(log)
                assert rows == [(at, b"value-%d" % at) for at in range(log.log_start_offset, end)], note
                known = log.producers.entry(3)
                assert (known.last_sequence + 1 if known else 0) == end, note
                assert [log.epochs.epoch_of(at) for at, _ in rows] == [
                    0 if at < 6 else 1 if at < 14 else 2 for at, _ in rows
                ], note
            disk.power_cut(random.Random(1), Survival.LOST)  # what recovery found is on the disk
            again = open_directory(disk, CONFIG).logs.get(TP)
            assert (again.end_offset if again else 0) == end, note
    assert stops > 100


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_failure_of_any_change_of_the_disk_is_one_error_and_keeps_what_is_guaranteed(error: int) -> None:
    dry = SimDisk()
    for _ in workload(dry):
        pass
    for nth in range(1, dry.changes + 1):
        disk = SimDisk()
        disk.fail_at(nth, error)
        guaranteed = 0
        try:
            for state in workload(disk):
                guaranteed = state[0]
        except (KafkaError, OSError):
            pass
        disk.power_cut(random.Random(nth), Survival.LOST)
        log = open_directory(disk, CONFIG).logs.get(TP)
        end = log.end_offset if log else 0
        note = f"change {nth} failed: {disk.history[nth - 1]}"
        assert guaranteed <= end, note
        if log is not None:
            assert everything(log) == [(at, b"value-%d" % at) for at in range(log.log_start_offset, end)], note


def test_without_fsync_the_sweep_finds_losses() -> None:
    """The test of the test: offsets that count although their fsync never ran must be lost by the same disk."""
    disk = SimDisk()
    log = open_log(disk, CONFIG)
    log.flush()
    fill(log, 5)
    job = log.begin_flush()
    job.is_done = True  # as if it had run
    log.complete_flush(job)
    assert log.flushed_offset == 5
    disk.power_cut(random.Random(0), Survival.LOST)
    assert open_directory(disk, CONFIG).logs[TP].end_offset < 5


def test_a_write_that_fails_half_way_leaves_the_log_as_it_was() -> None:
    disk = SimDisk()
    log = open_log(disk, LogConfig())
    fill(log, 2)
    disk.fail_at(1, errno.ENOSPC)
    with pytest.raises(StorageError):
        fill(log, 1, start=2)
    assert (log.end_offset, log.active.size_bytes) == (2, disk.size_of(FIRST_LOG))
    fill(log, 1, start=2)  # there is free space again
    assert values(everything(log)) == [b"value-0", b"value-1", b"value-2"]


def test_after_a_failed_fsync_nothing_more_is_acknowledged_and_nothing_is_retried() -> None:
    disk = SimDisk()
    directory = open_directory(disk, CONFIG)
    log = directory.create_log(TP, uuid.UUID(int=7))
    log.flush()
    fill(log, 2)
    disk.fail_at(1, errno.EIO)
    with pytest.raises(StorageError):
        log.flush()
    assert log.flushed_offset == 0
    changes = disk.changes
    for attempt in (log.flush, lambda: fill(log, 1, start=2), directory.checkpoint, log.roll):
        with pytest.raises(StorageError):
            attempt()
    directory.close()
    assert disk.changes == changes, "the disk was touched after a failed fsync"
    assert not disk.exists(ROOT / ".kafka_cleanshutdown")
    disk.power_cut(random.Random(0), Survival.LOST)
    assert open_directory(disk, CONFIG).logs[TP].end_offset == 0


def test_a_full_disk_refuses_writes_and_still_serves_reads() -> None:
    disk = SimDisk(capacity_bytes=3_000)
    log = open_log(disk, LogConfig())
    written = 0
    while True:
        try:
            fill(log, 1, start=written)
        except StorageError:
            break
        written += 1
    assert written > 3
    assert values(everything(log)) == [b"value-%d" % at for at in range(written)]
    disk.capacity_bytes *= 2
    fill(log, 1, start=written)
    assert log.end_offset == written + 1


def test_segments_below_the_recovery_point_are_not_read_after_an_unclean_stop() -> None:
    disk = SimDisk()
    directory = open_directory(disk, CONFIG)
    log = directory.create_log(TP, uuid.UUID(int=7))
    fill(log, 12)
    log.flush()
    directory.checkpoint()
    assert len(log.segments) > 2
    disk.flip_bit(FIRST_LOG, 8 * 70)  # would be found, were it read
    assert reopened(disk).end_offset == 12


def test_records_that_a_killed_process_left_to_the_system_are_synced_before_they_count() -> None:
    disk = SimDisk()
    log = open_log(disk, CONFIG)
    fill(log, 12)
    disk.process_died()
    again = open_directory(disk, CONFIG).logs[TP]
    assert again.flushed_offset == again.end_offset == 12
    disk.power_cut(random.Random(0), Survival.LOST)
    assert open_directory(disk, CONFIG).logs[TP].end_offset == 12


def test_a_recovery_point_above_what_was_left_does_not_outlive_the_start() -> None:
    disk = SimDisk()
    directory = open_directory(disk, CONFIG)
    log = directory.create_log(TP, uuid.UUID(int=7))
    fill(log, 12)
    log.flush()
    directory.checkpoint()
    last = log.active
    assert last.base_offset == 10
    disk.open(last.path(".log")).truncate(0)  # the disk lost synced data, and no copy has the recovery point
    disk.remove(ROOT / "ottla-copies")
    log = reopened(disk)
    assert log.end_offset == 10
    for at in (10, 11):
        fill(log, 1, start=at)
        log.roll()
    disk.flip_bit(last.path(".log"), 8 * 70)  # and now the new tail is torn
    assert reopened(disk).end_offset == 10


def tear_what_follows(disk: SimDisk, log: PartitionLog, first: int) -> None:
    """Write two segments that nothing syncs, from offset `first` on, and spoil the first of them."""
    log.roll()
    path = log.active.path(".log")
    for at in (first, first + 1):
        fill(log, 1, start=at)
        log.roll()
    disk.flip_bit(path, 8 * 70)


def test_a_truncation_lowers_the_recovery_point_at_once() -> None:
    disk = SimDisk()
    directory = open_directory(disk, CONFIG)
    log = directory.create_log(TP, uuid.UUID(int=7))
    fill(log, 12)
    log.flush()
    directory.checkpoint()
    log.truncate_to(3)
    tear_what_follows(disk, log, 3)
    assert reopened(disk).end_offset == 3


def test_a_new_log_does_not_inherit_the_recovery_point_of_one_of_its_name() -> None:
    disk = SimDisk()
    directory = open_directory(disk, CONFIG)
    fill(directory.create_log(TP, uuid.UUID(int=7)), 12)
    directory.logs[TP].flush()
    directory.checkpoint()
    directory.delete_log(TP)
    log = directory.create_log(TP, uuid.UUID(int=8))
    tear_what_follows(disk, log, 0)
    assert reopened(disk).end_offset == 0


def test_an_older_checkpoint_job_does_not_overtake_a_newer_one() -> None:
    disk = SimDisk()
    directory = open_directory(disk, CONFIG)
    log = directory.create_log(TP, uuid.UUID(int=7))
    fill(log, 12)
    log.flush()
    slow = directory.begin_checkpoint()
    log.truncate_to(3)
    slow.run()
    tear_what_follows(disk, log, 3)
    assert reopened(disk).end_offset == 3


def test_a_checkpoint_that_is_begun_in_slices_does_not_overtake_one_of_a_truncation_between_two_of_them() -> None:
    disk = SimDisk()
    directory = open_directory(disk, CONFIG)
    log = directory.create_log(TP, uuid.UUID(int=7))
    directory.create_log(TopicPartition("web", 1), uuid.UUID(int=7))
    fill(log, 12)
    log.flush()
    slices = WorkSlice()
    slices.left = 1
    beginning = directory.begin_checkpoint_slices(slices)
    next(beginning)
    log.truncate_to(3)
    assert not finished(beginning).run()
    tear_what_follows(disk, log, 3)
    assert reopened(disk).end_offset == 3


def test_a_checkpoint_that_is_begun_in_slices_is_the_same() -> None:
    disk = SimDisk()
    directory = open_directory(disk, CONFIG)
    logs = [directory.create_log(TopicPartition("web", index), uuid.UUID(int=7)) for index in range(3)]
    for log in logs[:2]:
        fill(log, 12)
        log.flush()
        log.update_high_watermark(5)
    logs[0].delete_records(3)
    directory.checkpoint()
    names = sorted(name for name in disk.names_in(ROOT) if name.endswith("-checkpoint"))
    assert len(names) == 4

    def written() -> list[bytes]:
        return [read_file(disk, ROOT / name) for name in names]

    at_once = written()
    for name in names:
        disk.remove(ROOT / name)
    assert finished(directory.begin_checkpoint_slices(WorkSlice())).run()
    assert written() == at_once


def test_truncated_records_never_come_back() -> None:
    disk = SimDisk()
    log = open_log(disk, CONFIG)
    fill(log, 12)
    log.flush()
    log.truncate_to(3)
    disk.power_cut(random.Random(0), Survival.LOST)
    log = open_directory(disk, CONFIG).logs[TP]
    assert values(everything(log)) == [b"value-0", b"value-1", b"value-2"]


def test_a_segment_sealed_in_an_earlier_run_is_written_again_after_a_truncation() -> None:
    disk = SimDisk()
    directory = open_directory(disk, CONFIG)
    fill(directory.create_log(TP, uuid.UUID(int=7)), 12)
    directory.close()
    log = open_directory(disk, CONFIG).logs[TP]
    log.truncate_to(5)
    assert log.active.base_offset == 0
    found = log.offset_for_timestamp(NOW_MS, end_offset=5)
    assert found is not None and found.offset == 0
    fill(log, 6, start=5)
    assert len(log.segments) == 3
    assert values(everything(log)) == [b"value-%d" % at for at in range(11)]


def test_a_flush_begun_before_a_truncation_covers_nothing_that_came_after() -> None:
    log = open_log(SimDisk(), CONFIG)
    fill(log, 6)
    job = log.begin_flush()
    job.run()
    log.truncate_to(3)
    fill(log, 4, start=3)
    log.complete_flush(job)
    assert log.flushed_offset <= 3


def test_a_valid_batch_of_an_older_epoch_after_a_newer_one_is_truncated() -> None:
    disk = SimDisk()
    log = open_log(disk, LogConfig())
    fill(log, 1, leader_epoch=5)
    log.flush()
    stale = batch(b"stale", base_offset=1, leader_epoch=3)
    disk.open(FIRST_LOG).append(stale)
    assert reopened(disk, LogConfig()).end_offset == 1


def test_a_lost_epoch_file_is_made_again_from_the_batches() -> None:
    disk = SimDisk()
    directory = open_directory(disk, CONFIG)
    log = directory.create_log(TP, uuid.UUID(int=7))
    fill(log, 5, leader_epoch=2)
    fill(log, 5, start=5, leader_epoch=4)
    epochs = log.epochs.entries
    for clean in (True, False):
        if clean:
            directory.close()
        disk.remove(ROOT / "web-0" / "leader-epoch-checkpoint")
        directory = open_directory(disk, CONFIG)
        assert directory.logs[TP].epochs.entries == epochs
        disk.power_cut(random.Random(0), Survival.KEPT)


@pytest.mark.parametrize("content", [b"", b"0\n1\nweb 0", b"0\n2\nweb 0 9\n", b"1\n1\nweb 0 9\n", b"\xff\xfe"])
def test_a_corrupt_checkpoint_costs_time_and_nothing_else(content: bytes) -> None:
    disk = SimDisk()
    directory = open_directory(disk, CONFIG)
    fill(directory.create_log(TP, uuid.UUID(int=7)), 9)
    directory.logs[TP].flush()
    directory.checkpoint()
    for name in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "replication-offset-checkpoint"):
        file = disk.open(ROOT / name, create=True)
        file.truncate(0)
        file.append(content)
    assert reopened(disk).end_offset == 9


def test_a_clean_marker_is_believed_once() -> None:
    disk = SimDisk()
    directory = open_directory(disk, CONFIG)
    fill(directory.create_log(TP, uuid.UUID(int=7)), 3)
    directory.close(broker_epoch=11)
    assert read_file(disk, ROOT / ".kafka_cleanshutdown") == b'{"version":0,"brokerEpoch":11}'
    assert open_directory(disk, CONFIG).clean_broker_epoch == 11
    disk.power_cut(random.Random(0), Survival.LOST)
    assert open_directory(disk, CONFIG).clean_broker_epoch is None


def test_a_log_that_contradicts_the_clean_marker_is_scanned() -> None:
    disk = SimDisk()
    directory = open_directory(disk, LogConfig())
    fill(directory.create_log(TP, uuid.UUID(int=7)), 3)
    directory.close()
    disk.open(FIRST_LOG).append(b"\0" * 100)
    again: LogDirectory = open_directory(disk, LogConfig())
    assert again.logs[TP].end_offset == 3
    assert disk.size_of(FIRST_LOG) == again.logs[TP].size_bytes


def test_a_snapshot_with_any_bit_flipped_or_cut_short_is_passed_over_and_the_log_replayed() -> None:
    def stopped() -> tuple[SimDisk, list[ProducerInfo]]:
        disk = SimDisk()
        directory = open_directory(disk, CONFIG)
        fill(directory.create_log(TP, uuid.UUID(int=7)), 12)
        known = directory.logs[TP].producers.describe()
        directory.close()
        return disk, known

    name = ROOT / "web-0" / "00000000000000000012.snapshot"
    size = stopped()[0].size_of(name)
    for byte in range(size):
        for cut in (False, True):
            disk, known = stopped()
            if cut:
                disk.open(name).truncate(byte)
            else:
                disk.flip_bit(name, byte * 8 + byte % 8)
            log = open_directory(disk, CONFIG).logs[TP]
            assert log.producers.describe() == known, f"byte {byte}"
            fill(log, 1, start=12)
