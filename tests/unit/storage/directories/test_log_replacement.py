"""Tests the replacement of a log by its copy in another directory: a crash at any moment leaves one good log."""

from __future__ import annotations

import errno
import random
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from ottla.broker.maintenance.replica_reports import report_at_start
from ottla.core.errors import StorageError
from ottla.core.files import read_file
from ottla.core.ids import TopicPartition
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.directories.log_replacement import replace_log
from ottla.storage.log.future_log import truncate_to_common_prefix
from ottla.storage.log.partition_log import PartitionLog
from ottla.storage.small_files import CLEANER_OFFSETS, parse_offsets
from ottla.testing.sim_disk import PowerCut, SimDisk
from tests.support.storage import NOW_MS, StillClock, batch, everything

A, B = PurePosixPath("/a"), PurePosixPath("/b")
WEB, TOPIC_ID = TopicPartition("web", 0), uuid.UUID(int=7)
CONFIG = replace(LogConfig(), segment_bytes=400, index_interval_bytes=0, file_delete_delay_ms=0)
RECORDS = [b"value %d" % number for number in range(6)]
EPOCHS = (0, 3, 7)


def opened(disk: SimDisk, *paths: PurePosixPath, seed: int = 1) -> LogManager:
    numbers = random.Random(seed)
    return LogManager.open(
        disk,
        paths or (A, B),
        StillClock(),
        CONFIG,
        node_id=1,
        cluster_id="cluster",
        new_id=lambda: uuid.UUID(int=numbers.getrandbits(128)),
    )


def copy(log: PartitionLog, future: PartitionLog) -> None:
    """Copy what is missing, and sync it."""
    truncate_to_common_prefix(future, log)
    while future.end_offset < log.end_offset:
        region = log.read(future.end_offset, max_bytes=300, end_offset=log.end_offset)
        assert region is not None
        future.append_as_follower(memoryview(region.read()), now_ms=NOW_MS)
    future.update_high_watermark(min(log.high_watermark, future.end_offset))
    future.delete_records(min(log.log_start_offset, future.high_watermark))
    future.flush()


def filled(directory: LogDirectory) -> PartitionLog:
    """Create a log with several segments, epochs, producers and a log start; all of it is synced."""
    log = directory.create_log(WEB, TOPIC_ID, CONFIG)
    for number, value in enumerate(RECORDS):
        epoch = EPOCHS[number * len(EPOCHS) // len(RECORDS)]
        log.append(batch(value, producer_id=9, epoch=0, sequence=number), leader_epoch=epoch, now_ms=NOW_MS)
    log.begin_epoch(8)
    log.flush()
    log.update_high_watermark(log.end_offset)
    log.delete_records(1)
    directory.checkpoint()
    return log


class Replacement:
    """A log in A and a copy in B with all its records."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        directories = opened(self.disk, seed=2)
        self.a, self.b = directories.opened
        self.log = filled(self.a)
        self.future = self.b.create_future_log(self.log)
        copy(self.log, self.future)
        self.b.checkpoint()

    def run(self) -> PartitionLog:
        return replace_log(self.a, self.b, WEB)


def the_log(directories: LogManager) -> tuple[PurePosixPath, PartitionLog]:
    """Return the only log, and check that nothing else is left but what will be deleted, or a copy of it."""
    (directory,) = directories.holding(WEB)
    assert not directory.future_logs
    for each in directories.opened:
        assert not each.lost_logs
        names = [name for name in each.files.names_in(each.path) if name.startswith("web-0.")]
        assert not [name for name in names if name.endswith("-replaced")]
        assert [name for name in names if name.endswith("-future")] == [
            log.directory.name for log in each.future_logs.values()
        ]
    return PurePosixPath(directory.path), directory.logs[WEB]


def assert_whole(log: PartitionLog) -> None:
    assert [value for _, value in everything(log)] == RECORDS[1:]
    assert log.log_start_offset == 1
    assert log.topic_id == TOPIC_ID
    assert [entry.epoch for entry in log.epochs.entries][: len(EPOCHS)] == list(EPOCHS)
    entry = log.producers.entry(9)
    assert entry is not None
    assert entry.batches[-1].last_sequence == len(RECORDS) - 1


def test_the_copy_has_what_the_log_had() -> None:
    replacement = Replacement()
    log, producers = replacement.run(), replacement.log.producers
    assert log is replacement.future
    assert (PurePosixPath(log.directory), log.high_watermark) == (B / "web-0", len(RECORDS))
    assert_whole(log)
    assert log.epochs.latest == 8  # no record has it
    assert log.producers is producers
    assert log.config is CONFIG
    log.append(batch(b"next", producer_id=9, epoch=0, sequence=len(RECORDS)), leader_epoch=8, now_ms=NOW_MS)
    log.flush()
    replacement.a.purge_deleted(NOW_MS)
    assert [name for name in replacement.disk.names_in(A) if name.startswith("web")] == []
    for directory in (replacement.a, replacement.b):
        directory.close()
    where, log = the_log(opened(replacement.disk))
    assert where == B
    assert [value for _, value in everything(log)] == [*RECORDS[1:], b"next"]


def crashes() -> Iterator[SimDisk]:
    """Yield each disk that a crash at any step of a replacement could leave."""
    nth, seen = 0, set[object]()
    while True:
        nth += 1
        replacement = Replacement()
        replacement.disk.stop_at(nth)
        try:
            replacement.run()
        except PowerCut:
            left = replacement.disk.killed() + [
                replacement.disk.state(number) for number in range(replacement.disk.states())
            ]
            for disk in left:
                if (image := disk.image()) not in seen:
                    seen.add(image)
                    yield disk
        else:
            assert nth > 10
            return


def test_a_crash_at_any_step_leaves_one_good_log() -> None:
    places = []
    for number, disk in enumerate(crashes()):
        directories = opened(disk)
        where, log = the_log(directories)
        places.append(where)
        assert_whole(log)
        if where == A:
            future = directories.opened[1].future_logs[WEB]
            copy(log, future)
            directories.opened[1].checkpoint()
            log = replace_log(directories.opened[0], directories.opened[1], WEB)
            assert_whole(log)
        if number % 4:
            continue
        for directory in directories.opened:
            directory.close()
        where, log = the_log(opened(disk))
        assert where == B
        assert_whole(log)
    assert set(places) == {A, B}


def test_a_log_that_was_moved_before_a_crash_is_not_reported_as_lost() -> None:
    """Else the last in-sync replica could not lead, for as long as the checkpoint files are kept as they are."""
    replacement = Replacement()
    replacement.run()
    replacement.a.purge_deleted(NOW_MS)
    disk = replacement.disk.killed()[0]  # the checkpoint files of A still name the log
    directories = opened(disk)
    assert the_log(directories)[0] == B
    assert not report_at_start(directories).suspects


def test_a_log_that_was_created_again_elsewhere_is_lost_until_it_has_what_was_committed() -> None:
    replacement = Replacement()
    replacement.disk.remove_tree(A / "web-0")
    replacement.b.delete_future_log(WEB)
    disk = replacement.disk.killed()[0]
    directories = opened(disk)
    assert report_at_start(directories).suspects == {WEB}
    log = directories.opened[1].create_log(WEB, TOPIC_ID, CONFIG)
    for number, value in enumerate(RECORDS):
        assert report_at_start(opened(disk.killed()[0])).suspects == {WEB}
        log.append(batch(value, producer_id=9, epoch=0, sequence=number), leader_epoch=1, now_ms=NOW_MS)
        log.flush()

    assert not report_at_start(opened(disk.killed()[0])).suspects


def test_a_copy_that_lacks_records_does_not_replace_the_log() -> None:
    replacement = Replacement()
    replacement.log.append(batch(b"more"), leader_epoch=8, now_ms=NOW_MS)
    with pytest.raises(StorageError, match="does not have all"):
        replacement.run()
    assert replacement.a.logs[WEB] is replacement.log
    region = replacement.log.read(len(RECORDS), max_bytes=300, end_offset=replacement.log.end_offset)
    assert region is not None
    replacement.future.append_as_follower(memoryview(region.read()), now_ms=NOW_MS)
    with pytest.raises(StorageError, match="does not have all"):
        replacement.run()  # it is not on the disk
    replacement.future.flush()
    assert [value for _, value in everything(replacement.run())] == [*RECORDS[1:], b"more"]


def test_a_disk_that_does_not_take_the_copy_leaves_the_log_where_it_is() -> None:
    replacement = Replacement()
    original = replacement.future.directory
    replacement.disk.refuse(errno.EIO, "rename", under=B)
    with pytest.raises(StorageError):
        replacement.run()
    replacement.disk.stop_refusing()
    assert replacement.a.health.failure is None
    assert replacement.a.logs[WEB] is replacement.log
    assert replacement.future.directory == original
    assert_whole(replacement.log)
    replacement.a.close()
    where, log = the_log(opened(replacement.disk, A))
    assert where == A
    assert_whole(log)


def test_a_log_whose_copy_is_not_there_is_kept() -> None:
    """The directory with the copy is away when the broker starts after a crash, and then it is there again."""
    disk = next(each for each in crashes() if any(name.endswith("-replaced") for name in each.names_in(A)))
    alone = opened(disk, A)
    assert not alone.holding(WEB)
    alone.close()
    where, log = the_log(opened(disk))
    assert where == B
    assert_whole(log)


def test_a_log_that_was_replaced_is_deleted_although_a_power_cut_took_its_topic_id() -> None:
    count = 0
    for disk in crashes():
        for aside in [name for name in disk.names_in(A) if name.endswith("-replaced")]:
            disk.open(A / aside / "partition.metadata", create=True).truncate(0)
            where, log = the_log(opened(disk))
            assert where == B
            assert_whole(log)
            count += 1
    assert count > 3


def test_of_two_copies_the_longer_one_is_kept() -> None:
    disk, paths = SimDisk(), (A, B, PurePosixPath("/c"))
    directories = opened(disk, *paths)
    a, b, c = directories.opened
    log = filled(a)
    b.create_future_log(log).flush()
    copy(log, c.create_future_log(log))
    directories.close()
    again = opened(disk, *paths)
    assert [WEB in each.future_logs for each in again.opened] == [False, False, True]
    assert the_log(again)[0] == A


def test_a_truncation_of_the_log_truncates_the_copy() -> None:
    replacement = Replacement()
    replacement.log.truncate_to(5)  # two leaders later
    replacement.log.begin_epoch(9)
    replacement.log.append(batch(b"other"), leader_epoch=9, now_ms=NOW_MS)
    truncate_to_common_prefix(replacement.future, replacement.log)
    assert replacement.future.end_offset == 5
    copy(replacement.log, replacement.future)
    replacement.log.flush()
    assert [value for _, value in everything(replacement.run())] == [*RECORDS[1:5], b"other"]


def test_a_copy_of_another_history_is_truncated_to_what_both_have() -> None:
    replacement = Replacement()
    replacement.log.truncate_to(4)
    for epoch in (9, 10):
        replacement.log.append(batch(b"of %d" % epoch), leader_epoch=epoch, now_ms=NOW_MS)
    truncate_to_common_prefix(replacement.future, replacement.log)
    assert replacement.future.end_offset == 4
    replacement.log.truncate_fully_and_start_at(40)
    truncate_to_common_prefix(replacement.future, replacement.log)
    assert (replacement.future.log_start_offset, replacement.future.end_offset) == (40, 40)


@pytest.mark.parametrize("is_uncertain", [False, True])
def test_a_copy_that_is_corrupt_where_it_is_to_be_truncated_is_made_again(*, is_uncertain: bool) -> None:
    replacement = Replacement()
    replacement.future.close_files()
    last = replacement.future.segments[-1]
    replacement.disk.flip_bit(last.log_path, 8 * 140)  # in its second batch
    at = last.base_offset + 1
    if is_uncertain:
        replacement.b.uncertain_from[WEB] = at
        replacement.b.truncate_to_certain(WEB)
    else:
        replacement.log.truncate_to(at)
        replacement.log.begin_epoch(9)
        truncate_to_common_prefix(replacement.future, replacement.log)
    assert replacement.future.end_offset == replacement.future.log_start_offset
    assert not replacement.future.is_truncating
    copy(replacement.log, replacement.future)
    replacement.log.flush()
    assert [value for _, value in everything(replacement.run())] == [value for _, value in everything(replacement.log)]


def test_a_copy_that_is_half_truncated_does_not_replace_the_log() -> None:
    replacement = Replacement()
    next(replacement.future.truncation(replacement.future.end_offset - 1))
    assert replacement.future.is_truncating
    with pytest.raises(StorageError):
        replacement.run()


def test_a_log_whose_copy_is_corrupt_after_a_crash_is_kept() -> None:
    disk = next(
        each
        for each in crashes()
        if any(name.endswith("-replaced") for name in each.names_in(A))
        and any(name.endswith("-future") for name in each.names_in(B))
    )
    (copied,) = (name for name in disk.names_in(B) if name.endswith("-future"))
    segment = min(name for name in disk.names_in(B / copied) if name.endswith(".log"))
    disk.flip_bit(B / copied / segment, 8 * 30)
    directories = opened(disk)
    assert not directories.holding(WEB)
    assert directories.opened[0].lost_logs.keys() == {WEB}
    directories.close()
    (replaced,) = (name for name in disk.names_in(A) if name.endswith("-replaced"))
    disk.rename(A / replaced, A / "web-0")  # as the error message says
    (held,) = opened(disk).holding(WEB)
    assert PurePosixPath(held.path) == A
    assert_whole(held.logs[WEB])


def cleaner_lines(replacement: Replacement) -> dict[TopicPartition, int] | None:
    """The cleaner's checkpoint of the directory of the copy."""
    return parse_offsets(read_file(replacement.disk, B / CLEANER_OFFSETS).decode())


def test_the_deletion_of_a_copy_leaves_the_cleaner_checkpoint_of_a_log_of_its_name() -> None:
    """The topic was created again before the disk let the copy of its log be deleted."""
    replacement = Replacement()
    log = replacement.b.create_log(WEB, uuid.UUID(int=9), CONFIG)
    log.note_gaps()
    replacement.b.delete(replacement.future)
    replacement.b.checkpoint()
    assert cleaner_lines(replacement) == {WEB: 0}
    replacement.b.delete_log(WEB)
    replacement.b.checkpoint()
    assert not cleaner_lines(replacement)


def test_a_copy_with_gaps_counts_after_a_crash_only_as_far_as_it_was_synced() -> None:
    """A power cut has taken one of its segments, as if compaction had removed the batches."""
    disk = SimDisk()
    a, b = opened(disk).opened
    log = filled(a)
    log.note_gaps()
    future = b.create_future_log(log)
    future.reconfigure(replace(future.config, segment_bytes=200))
    truncate_to_common_prefix(future, log)
    while future.end_offset < log.end_offset:
        region = log.read(max(future.end_offset, 1), max_bytes=100, end_offset=log.end_offset)
        assert region is not None
        future.append_as_follower(memoryview(region.read()), now_ms=NOW_MS)
    lost = future.segments[1].log_path
    disk.process_died()
    disk.open(lost).truncate(0)
    directories = opened(disk)
    a, b = directories.opened
    assert b.future_logs[WEB].end_offset == len(RECORDS), "recovery cannot know better"
    b.truncate_to_certain(WEB)
    copy(a.logs[WEB], b.future_logs[WEB])
    b.checkpoint()
    assert_whole(replace_log(a, b, WEB))


def test_a_copy_has_the_topic_id_on_the_disk_before_it_is_the_log() -> None:
    """A power cut had left its partition.metadata empty, and the copy of that file has the name of the directory."""
    replacement = Replacement()
    replacement.disk.open(replacement.future.directory / "partition.metadata").truncate(0)
    replacement.run()
    replacement.disk.process_died()
    where, log = the_log(opened(replacement.disk))
    assert (where, log.topic_id) == (B, TOPIC_ID)
