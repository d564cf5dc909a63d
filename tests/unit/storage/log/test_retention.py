"""When a segment is closed, and how old its records are where their own times do not say."""

from __future__ import annotations

import uuid
from dataclasses import replace

from ottla.core.settings import DAY_MS, HOUR_MS
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.log.partition_log import AppendOrigin, PartitionLog
from ottla.testing.sim_disk import SimDisk
from tests.support.storage import NOW_MS, TP, StillClock, batch, everything, open_directory

NO_TIME = -1
WEEK = LogConfig(segment_bytes=200, retention_ms=7 * DAY_MS)


def opened(config: LogConfig, clock: StillClock, disk: SimDisk) -> tuple[LogDirectory, PartitionLog]:
    directory = open_directory(disk, config, clock)
    return directory, directory.create_log(TP, uuid.UUID(int=7))


def write(log: PartitionLog, timestamp_ms: int, *, count: int = 1, now_ms: int = NOW_MS) -> None:
    """Append batches of the broker itself, whose timestamps have no bounds."""
    for _ in range(count):
        log.append(
            batch(b"v" * 20, timestamp_ms=timestamp_ms), leader_epoch=0, now_ms=now_ms, origin=AppendOrigin.COORDINATOR
        )
    log.update_high_watermark(log.end_offset)


def test_records_without_a_time_age_from_when_they_were_written_and_no_restart_makes_them_younger() -> None:
    disk, clock = SimDisk(), StillClock()
    disk.set_clock(NOW_MS)
    directory, log = opened(WEEK, clock, disk)
    write(log, NO_TIME, count=6)
    for day in range(1, 9):
        clock.now_ms = NOW_MS + day * DAY_MS
        directory.close()
        directory = open_directory(disk, WEEK, clock)
        log = directory.logs[TP]
        log.update_high_watermark(log.end_offset)
        gone = directory.run_retention(clock.now_ms)
        assert bool(gone) == (day == 8), f"day {day}"
    assert log.log_start_offset == 6


def test_a_record_from_the_future_keeps_its_segment_no_longer_than_one_of_today() -> None:
    disk, clock = SimDisk(), StillClock()
    disk.set_clock(NOW_MS)
    _, log = opened(WEEK, clock, disk)
    write(log, NOW_MS + 1000 * DAY_MS)
    write(log, NOW_MS, count=5)
    assert log.delete_old_segments(NOW_MS + 7 * DAY_MS) == 0
    assert log.delete_old_segments(NOW_MS + 7 * DAY_MS + 1) == 3
    assert log.log_start_offset == 6


def test_a_clock_that_was_wrong_when_records_were_written_deletes_none_of_them() -> None:
    """A machine that starts in 1970 writes files of 1970; their records' own times count."""
    disk, clock = SimDisk(), StillClock()
    _, log = opened(WEEK, clock, disk)
    write(log, NOW_MS, count=6)
    assert log.delete_old_segments(NOW_MS + HOUR_MS) == 0
    assert log.delete_old_segments(NOW_MS + 8 * DAY_MS) == 3


def test_a_topic_with_both_policies_loses_old_segments_and_one_with_neither_keeps_all() -> None:
    for policy, gone in ((("compact", "delete"), 3), (("delete",), 3), (("compact",), 0), ((), 0)):
        _, log = opened(replace(WEEK, cleanup_policy=policy), StillClock(), SimDisk())
        write(log, NOW_MS - 8 * DAY_MS, count=6)
        assert log.delete_old_segments(NOW_MS) == gone, policy


def test_retention_that_is_changed_counts_from_the_next_look() -> None:
    _, log = opened(WEEK, StillClock(), SimDisk())
    write(log, NOW_MS - DAY_MS, count=6)
    for config, gone in (
        (WEEK, 0),
        (replace(WEEK, cleanup_policy=("compact",), retention_ms=1), 0),
        (replace(WEEK, retention_bytes=2 * log.segments[0].size_bytes), 1),
        (replace(WEEK, retention_ms=HOUR_MS), 2),
    ):
        log.reconfigure(config)
        assert log.delete_old_segments(NOW_MS) == gone


def test_a_segment_that_was_deleted_is_read_on_until_its_files_go() -> None:
    disk, clock = SimDisk(), StillClock()
    directory, log = opened(replace(WEEK, file_delete_delay_ms=5000), clock, disk)
    write(log, NOW_MS - 8 * DAY_MS, count=6)
    region = log.read(0, max_bytes=1 << 20, end_offset=6)
    assert region is not None
    before = region.read()
    directory.run_retention(NOW_MS)
    for wait_ms, there in ((0, True), (4999, True), (5000, False)):
        directory.purge_deleted(NOW_MS + wait_ms)
        assert any(name.endswith(".deleted") for name in disk.names_in(log.directory)) == there
        if there:
            assert region.read() == before


def test_a_segment_closes_when_its_records_span_segment_ms_of_their_own_time() -> None:
    _, log = opened(LogConfig(segment_ms=1000), StillClock(), SimDisk())
    for delta_ms in (0, 1000, 500, 1001, 1500, 2002):
        write(log, NOW_MS + delta_ms)
    assert [segment.base_offset for segment in log.segments] == [0, 3, 5]


def test_without_times_it_closes_when_it_has_been_there_that_long_and_never_while_nothing_comes() -> None:
    disk, clock = SimDisk(), StillClock()
    disk.set_clock(NOW_MS)
    _, log = opened(LogConfig(segment_ms=1000), clock, disk)
    for wait_ms, segments in ((0, 1), (1000, 1), (1001, 2), (1900, 2), (2003, 3)):
        clock.now_ms = NOW_MS + wait_ms
        log.delete_old_segments(clock.now_ms)  # an idle log is not rolled, as in Kafka
        write(log, NO_TIME)
        assert len(log.segments) == segments, wait_ms


def test_a_segment_that_must_be_compacted_soon_is_closed_soon() -> None:
    """The cleaner leaves the segment alone that is written."""
    for policy, closed in ((("compact",), 3), (("delete",), 1)):
        config = LogConfig(segment_ms=DAY_MS, max_compaction_lag_ms=1000, cleanup_policy=policy)
        _, log = opened(config, StillClock(), SimDisk())
        for delta_ms in (0, 1001, 2002):
            write(log, NOW_MS + delta_ms)
        assert len(log.segments) == closed


def test_sizes_that_are_changed_count_from_the_next_batch() -> None:
    _, log = opened(LogConfig(), StillClock(), SimDisk())
    write(log, NOW_MS, count=4)
    assert len(log.segments) == 1
    log.reconfigure(LogConfig(segment_bytes=200))
    write(log, NOW_MS)
    write(log, NOW_MS)
    log.reconfigure(LogConfig(segment_index_bytes=36, index_interval_bytes=0))
    write(log, NOW_MS, count=6)
    assert [segment.base_offset for segment in log.segments] == [0, 4, 10]
    assert len(everything(log)) == 12


def test_the_index_has_an_entry_for_about_each_interval_of_bytes() -> None:
    counts = []
    for interval in (0, 200, 1 << 20):
        _, log = opened(LogConfig(index_interval_bytes=interval), StillClock(), SimDisk())
        write(log, NOW_MS, count=20)
        counts.append(len(log.active.offset_index.entries()))
    assert counts[0] == 19 and 0 < counts[1] < 10 and counts[2] == 0
