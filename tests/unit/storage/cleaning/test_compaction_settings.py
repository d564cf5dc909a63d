"""What a topic says of when it is compacted, and which records are not yet."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from ottla.storage.cleaning.log_to_clean import dirtiest_log, log_to_clean
from ottla.storage.config import LogConfig
from ottla.storage.log.partition_log import PartitionLog
from ottla.testing.sim_disk import SimDisk
from tests.support.storage import NOW_MS, TP, batch, open_directory

COMPACT = LogConfig(segment_bytes=200, cleanup_policy=("compact",))


def filled(count: int = 10) -> PartitionLog:
    """One record a segment, a second apart; the last is written, the others can be cleaned."""
    log = open_directory(SimDisk(), COMPACT).create_log(TP, uuid.UUID(int=7))
    for number in range(count):
        log.append(batch(b"v" * 40, key=b"k", timestamp_ms=NOW_MS + number * 1000), leader_epoch=0, now_ms=NOW_MS)
    log.flush()
    log.update_high_watermark(log.end_offset)
    assert len(log.segments) == count
    return log


@pytest.mark.parametrize(("ratio", "chosen"), [(0.0, True), (0.2, True), (0.22, True), (0.23, False), (1.0, False)])
def test_a_log_is_compacted_once_that_share_of_it_is_new(ratio: float, chosen: bool) -> None:
    log = filled()
    log.reconfigure(replace(COMPACT, min_cleanable_dirty_ratio=ratio))
    log.cleaner_line.cleaned_to(7)
    found = log_to_clean(log, now_ms=NOW_MS + 60_000)  # 2 of the 9 segments that are closed are new
    assert found is not None
    assert (dirtiest_log([found]) is found) == chosen


@pytest.mark.parametrize(
    ("lag_ms", "end_offset"), [(0, 9), (51_000, 9), (54_001, 6), (59_000, 2), (59_001, 1), (61_000, None)]
)
def test_a_record_younger_than_the_lag_is_not_compacted(lag_ms: int, end_offset: int | None) -> None:
    log = filled()
    log.reconfigure(replace(COMPACT, min_compaction_lag_ms=lag_ms))
    found = log_to_clean(log, now_ms=NOW_MS + 60_000)
    assert (found.first_uncleanable_offset if found else None) == end_offset


@pytest.mark.parametrize(("lag_ms", "chosen"), [(60_000, False), (59_999, True), (1, True)])
def test_a_record_older_than_the_greatest_lag_makes_its_log_due_however_little_is_new(
    lag_ms: int, chosen: bool
) -> None:
    log = filled()
    log.reconfigure(replace(COMPACT, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=lag_ms))
    found = log_to_clean(log, now_ms=NOW_MS + 60_000)
    assert found is not None
    assert (dirtiest_log([found]) is found) == chosen
