"""How much is asked of the disk by a start and a stop where nothing happens, in calls of the port."""

from __future__ import annotations

import random
import uuid
from collections import Counter

from ottla.core.ids import TopicPartition
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_directory import LogDirectory
from ottla.testing.sim_disk import SimDisk
from tests.support.counting_files import counting
from tests.support.storage import NOW_MS, ROOT, StillClock, batch, open_directory

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
    log.prepare_clean_shutdown()
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
