"""How much is asked of the disk by a start and a stop where nothing happens, in calls of the port."""

from __future__ import annotations

import random
import uuid
from collections import Counter

from ottla.core.ids import TopicPartition
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.integrity.metadata_backup import BackedUpFile, MetadataBackup
from ottla.testing.sim_disk import SimDisk, Survival
from tests.support.counting_files import counting
from tests.support.storage import NOW_MS, ROOT, StillClock, batch, everything, open_directory

SEGMENTS, BATCHES = 5, 900


def filled() -> SimDisk:
    """A log of several segments, cleanly stopped."""
    disk = SimDisk()
    directory = open_directory(disk)
    log = directory.create_log(TopicPartition("web", 0), uuid.UUID(int=7))
    for at in range(SEGMENTS * BATCHES):
        log.append(batch(b"x" * 100), leader_epoch=0, now_ms=NOW_MS)
        if at % BATCHES == BATCHES - 1 and at < SEGMENTS * BATCHES - 1:
            log.roll()
    directory.close()
    return disk


def opened(disk: SimDisk) -> tuple[LogDirectory, Counter[str]]:
    files, calls = counting(disk)
    numbers = random.Random(1)
    new_id = lambda: uuid.UUID(int=numbers.getrandbits(128))  # noqa: E731
    found = LogDirectory.open(files, ROOT, StillClock(), LogConfig(), node_id=1, cluster_id="cluster", new_id=new_id)
    return found, calls


def test_a_clean_start_reads_ends_and_no_log() -> None:
    directory, calls = opened(filled())
    assert len(directory.logs[TopicPartition("web", 0)].segments) == SEGMENTS
    # Per log: its names, a length for each segment, and of the last one the ends of its indexes and a few headers.
    assert calls["list"] <= 2
    assert calls["read"] <= 30  # all of the last segment would be some fifty more
    assert calls["write"] == 0


def test_a_stop_writes_nothing_for_an_unused_log() -> None:
    directory, calls = opened(filled())
    log = directory.logs[TopicPartition("web", 0)]
    log.begin_epoch(9)  # as each start gives it one
    calls.clear()
    assert log.begin_clean_shutdown() is None
    assert calls["write"] == calls["sync"] == calls["rename"] == 0


def test_a_stop_after_one_record_writes_what_the_next_start_needs() -> None:
    disk = filled()
    directory, _ = opened(disk)
    log = directory.logs[TopicPartition("web", 0)]
    log.begin_epoch(9)
    log.append(batch(b"one more"), leader_epoch=9, now_ms=NOW_MS)
    directory.close()
    again = open_directory(disk).logs[TopicPartition("web", 0)]
    assert again.end_offset == SEGMENTS * BATCHES + 1
    assert [entry.epoch for entry in again.epochs.entries] == [0, 9]


def test_an_epoch_gets_into_the_file_with_its_first_record_and_the_next_one_does_not_hide_it() -> None:
    disk = filled()
    log = open_directory(disk).logs[TopicPartition("web", 0)]
    log.begin_epoch(7)
    log.begin_epoch(8)
    log.append(batch(b"of 8"), leader_epoch=8, now_ms=NOW_MS)
    log.begin_epoch(9)
    log.flush()
    text = disk.open(ROOT / "web-0" / "leader-epoch-checkpoint")
    assert text.read_at(0, text.size()).decode().split("\n")[2:4] == ["0 0", f"8 {SEGMENTS * BATCHES}"]


LOGS = 50


def directory_of_many(disk: SimDisk, *, records: bool, flushed: bool = False) -> LogDirectory:
    """Open a directory and create many logs in it, with one record in each or with none."""
    directory = open_directory(disk)
    for number in range(LOGS):
        log = directory.create_log(TopicPartition("web", number), uuid.UUID(int=7))
        log.begin_epoch(1)
        if records:
            log.append(batch(b"x"), leader_epoch=1, now_ms=NOW_MS)
        if flushed:
            log.flush()
    return directory


def changes_since(disk: SimDisk, number: int) -> Counter[str]:
    """Count the changes by kind; syncs by what is synced."""
    counts: Counter[str] = Counter()
    for change in disk.history[number:]:
        kind, _, path = change.partition(" ")
        if path == f"directory {ROOT}":
            counts["sync of the root"] += 1
        counts[kind] += 1
    return counts


def test_a_stop_syncs_each_new_file_once_and_the_root_once_for_all_logs() -> None:
    disk = SimDisk()
    directory = directory_of_many(disk, records=True)
    before = len(disk.history)

    directory.close()

    counts = changes_since(disk, before)
    # Per log: its log, two indexes, snapshot, epochs, topic id, and its directory.
    assert counts["sync"] <= 7 * LOGS + 20
    assert counts["sync of the root"] <= 5


def test_a_stop_writes_no_snapshot_for_an_empty_log() -> None:
    disk = SimDisk()
    directory = directory_of_many(disk, records=False)
    before = len(disk.history)

    directory.close()

    counts = changes_since(disk, before)
    assert counts["write"] <= 20
    assert counts["sync"] <= 5 * LOGS + 20
    assert counts["sync of the root"] <= 5
    again = open_directory(disk)
    assert all(log.begin_clean_shutdown() is None for log in again.logs.values())


def test_a_start_after_a_kill_writes_nothing_for_logs_that_were_flushed() -> None:
    disk = SimDisk()
    directory_of_many(disk, records=True, flushed=True).checkpoint()
    disk.process_died()
    before = len(disk.history)

    directory, calls = opened(disk)

    counts = changes_since(disk, before)
    assert counts["sync"] <= 20
    assert counts["write"] + counts["create"] + counts["rename"] <= 30
    assert calls["open"] <= 8 * LOGS
    assert all(log.end_offset == 1 for log in directory.logs.values())


def test_a_start_after_a_kill_syncs_what_was_not_flushed_and_the_root_once() -> None:
    disk = SimDisk()
    directory_of_many(disk, records=True)
    disk.process_died()
    before = len(disk.history)

    opened(disk)

    counts = changes_since(disk, before)
    assert counts["sync"] <= 4 * LOGS + 20  # the log, its epochs, its topic id, its directory
    assert counts["sync of the root"] <= 5
    disk.power_cut(random.Random(1), Survival.LOST)
    assert all(log.end_offset == 1 for log in open_directory(disk).logs.values())


def test_syncs_in_several_threads_leave_the_same_files() -> None:
    images = []
    for threads in (1, 4):
        disk = SimDisk()
        directory_of_many(disk, records=True).close()
        for _ in range(2):
            directory = LogDirectory.open(
                disk, ROOT, StillClock(), LogConfig(), node_id=1, cluster_id="cluster", threads=threads
            )
            for log in directory.logs.values():
                log.append(batch(b"y"), leader_epoch=1, now_ms=NOW_MS)
            directory.close()
        disk.power_cut(random.Random(1), Survival.LOST)
        images.append([everything(log) for log in open_directory(disk).logs.values()])
    assert images[0] == images[1]
    assert len(images[0]) == LOGS


def test_a_stop_opens_no_file_of_logs_that_have_not_changed() -> None:
    disk = SimDisk()
    directory_of_many(disk, records=True).close()
    before = copies_of_indexes(opened_and_closed(disk))

    directory, calls = opened(disk)
    calls.clear()
    directory.close()

    assert calls["open"] <= 20
    assert copies_of_indexes(disk) == before
    assert len(before) >= 2 * LOGS


def opened_and_closed(disk: SimDisk) -> SimDisk:
    open_directory(disk).close()
    return disk


def copies_of_indexes(disk: SimDisk) -> dict[str, BackedUpFile]:
    """Read what the last clean stop noted of indexes."""
    return {name: copy for name, copy in MetadataBackup.read(disk, ROOT).entries.items() if name.endswith("index")}


def test_a_start_after_a_kill_opens_three_files_of_an_empty_log() -> None:
    disk = SimDisk()
    directory_of_many(disk, records=False).close()
    open_directory(disk)
    disk.process_died()

    _, calls = opened(disk)

    assert calls["open"] <= 3 * LOGS + 20  # its topic id, and the log twice: to scan it and to sync it
    assert calls["truncate"] <= 5
