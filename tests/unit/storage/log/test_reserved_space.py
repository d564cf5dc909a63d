"""Zeros that a log with fsync writes after its last batch, for small appends to overwrite (docs/design/durability.md)."""

from __future__ import annotations

import errno
import logging
import random
import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest

from ottla.cli.log_dump import dump
from ottla.core.files import read_file
from ottla.storage.config import LogConfig
from ottla.storage.log.partition_log import PartitionLog
from ottla.storage.scrubbing.directory_verifier import verify_directory
from ottla.testing.sim_disk import SimDisk, Survival
from tests.support.storage import NOW_MS, ROOT, TP, batch, everything, open_directory, open_log

FIRST_LOG = ROOT / "web-0" / "00000000000000000000.log"
PAGE_CACHE = replace(LogConfig(), durability="page-cache")
LARGE, SMALL = bytes(16_000), bytes(100)


def put(log: PartitionLog, *values: bytes) -> None:
    for value in values:
        log.append(batch(value), leader_epoch=0, now_ms=NOW_MS)


def reserving(disk: SimDisk) -> PartitionLog:
    """A log with 16 KiB and space for more."""
    log = open_log(disk)
    put(log, LARGE, SMALL, SMALL, SMALL)
    log.flush()
    assert disk.size_of(FIRST_LOG) > log.size_bytes > 16 << 10
    return log


def test_small_appends_do_not_change_the_length_of_the_file_until_the_space_is_used() -> None:
    disk = SimDisk()
    log = reserving(disk)
    lengths = set()
    for _ in range(200):
        put(log, SMALL)
        lengths.add(disk.size_of(FIRST_LOG))
        assert disk.size_of(FIRST_LOG) >= log.size_bytes
    assert len(lengths) < 12
    assert len(everything(log)) == 204


@pytest.mark.parametrize(
    ("config", "values"),
    [
        pytest.param(LogConfig(), [SMALL] * 80, id="a short segment"),
        pytest.param(LogConfig(), [LARGE, LARGE, bytes(17 << 10)], id="large appends"),
        pytest.param(PAGE_CACHE, [LARGE, LARGE, SMALL], id="without fsync"),
    ],
)
def test_nothing_is_reserved_for_short_segments_large_appends_and_page_cache(
    config: LogConfig, values: list[bytes]
) -> None:
    disk = SimDisk()
    log = open_log(disk, config)
    sizes = []
    for value in values:
        put(log, value)
        sizes.append(disk.size_of(FIRST_LOG) - log.size_bytes)
    assert sizes[-1] == 0


def test_at_most_a_quarter_of_what_a_segment_has_is_reserved_and_nothing_beyond_its_greatest_size() -> None:
    disk = SimDisk()
    log = open_log(disk, replace(LogConfig(), segment_bytes=40_000))
    while len(log.segments) == 1:
        put(log, bytes(1000))
        length = disk.size_of(FIRST_LOG)
        assert length <= 40_000
        assert length - log.segments[0].size_bytes <= log.segments[0].size_bytes // 4


@pytest.mark.parametrize(
    "end",
    [pytest.param(PartitionLog.roll, id="a roll"), pytest.param(lambda log: log.truncate_to(3), id="a truncation")],
)
def test_the_file_ends_with_its_last_batch_again_after(end: Callable[[PartitionLog], None]) -> None:
    disk = SimDisk()
    log = reserving(disk)
    end(log)
    assert disk.size_of(FIRST_LOG) == log.segments[0].size_bytes
    log.flush()
    disk.power_cut(random.Random(1), Survival.LOST)
    assert disk.size_of(FIRST_LOG) == log.segments[0].size_bytes


def test_after_a_clean_stop_the_file_ends_with_its_last_batch() -> None:
    disk = SimDisk()
    directory = open_directory(disk)
    log = directory.create_log(TP, uuid.UUID(int=7))
    put(log, LARGE, SMALL, SMALL)
    directory.close(broker_epoch=1)
    disk.power_cut(random.Random(1), Survival.LOST)
    assert disk.size_of(FIRST_LOG) == log.size_bytes
    assert len(everything(open_directory(disk).logs[TP])) == 3


def test_after_a_kill_the_space_is_given_back_and_is_no_torn_batch(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk()
    before = everything(reserving(disk))
    disk.process_died()
    with caplog.at_level(logging.WARNING):
        log = open_directory(disk).logs[TP]
    assert not caplog.records
    assert everything(log) == before
    assert disk.size_of(FIRST_LOG) == log.size_bytes
    put(log, SMALL)
    assert [offset for offset, _ in everything(log)] == [0, 1, 2, 3, 4]


def test_zeros_in_place_of_synced_batches_are_corruption(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk()
    directory = open_directory(disk)
    log = directory.create_log(TP, uuid.UUID(int=7))
    put(log, LARGE, SMALL, SMALL, SMALL)
    position = log.size_bytes - len(batch(SMALL))
    log.flush()
    directory.checkpoint()
    disk.process_died()
    disk.open(FIRST_LOG).write_at(position, bytes(len(batch(SMALL))))
    log = open_directory(disk).logs[TP]
    assert log.end_offset == 4, "the offset was acknowledged: it is not given to another record"
    assert any("00000000000000000000.log" in record.getMessage() for record in caplog.records)


def test_an_append_after_the_file_was_closed_follows_the_last_batch() -> None:
    disk = SimDisk()
    log = reserving(disk)
    before = everything(log)
    log.close_files()
    put(log, SMALL)
    assert everything(log) == [*before, (4, SMALL)]


def test_a_full_disk_refuses_no_append_for_want_of_space_to_reserve() -> None:
    disk = SimDisk()
    log = open_log(disk)
    put(log, LARGE)
    disk.capacity_bytes = disk.capacity_bytes - disk.free_bytes(ROOT) + 1200
    put(log, *[SMALL] * 4)
    assert disk.size_of(FIRST_LOG) == log.size_bytes
    assert len(everything(log)) == 5


def test_an_append_that_fails_within_the_reserved_space_leaves_no_part_of_itself() -> None:
    disk = SimDisk()
    log = reserving(disk)
    before = everything(log)
    disk.fail_at(1, errno.ENOSPC)
    with pytest.raises(Exception, match="No space left"):
        put(log, SMALL)
    assert disk.size_of(FIRST_LOG) == log.size_bytes
    put(log, SMALL)
    disk.process_died()
    assert everything(open_directory(disk).logs[TP]) == [*before, (4, SMALL)]


def test_dump_and_verify_name_the_space_and_no_problem() -> None:
    disk = SimDisk()
    log = reserving(disk)
    *batches, last = dump(disk, FIRST_LOG, records=False, first_offset=0, end_offset=1 << 62)
    assert [each["last_offset"] for each in batches] == [0, 1, 2, 3]
    assert (last["position"], last["position"] + last["size_bytes"]) == (
        log.size_bytes,
        len(read_file(disk, FIRST_LOG)),
    )
    assert "problem" not in last
    report = verify_directory(disk, ROOT)
    assert (report.findings, report.notes) == ([], [])
