"""A follower that appends what it fetches in large pieces has the log of one that appends batch by batch."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ottla.core.errors import CorruptMessage
from ottla.core.settings import LONG_MAX
from ottla.records.batch import CRC_AT, BatchHeader, split, stamp
from ottla.storage.config import LogConfig
from ottla.storage.log.partition_log import PartitionLog
from ottla.storage.state.producer_snapshots import encode_snapshot
from ottla.testing.sim_disk import SimDisk
from tests.properties.test_batch_scan_twins import BASE, log_of
from tests.support.storage import NOW_MS, content, everything, open_log

CONFIG = LogConfig(index_interval_bytes=300, timestamp_after_max_ms=LONG_MAX, retention_ms=-1)
SMALL_SEGMENTS = replace(CONFIG, segment_bytes=900, segment_index_bytes=96)
NEWEST_EPOCH = 100


def empty_log(config: LogConfig) -> PartitionLog:
    log = open_log(SimDisk(), config)
    log.truncate_fully_and_start_at(BASE)
    return log


def append(log: PartitionLog, data: bytes) -> None:
    log.append_as_follower(memoryview(bytearray(data)), now_ms=NOW_MS, leader_epoch=NEWEST_EPOCH)


def pieces(source: random.Random, data: bytes) -> list[bytes]:
    """Several batches each, the last one often incomplete: it is then whole in the next piece."""
    ends = [0, *(at + header.size_bytes for at, header in split(data))]
    found, at = [], 0
    while at < len(ends) - 1:
        end = min(at + source.randrange(1, 7), len(ends) - 1)
        torn = source.randrange(80) if end < len(ends) - 1 else 0
        found.append(data[ends[at] : ends[end] + torn])
        at = end
        if torn and ends[end] + torn >= ends[min(end + 1, len(ends) - 1)]:
            at += 1  # the next one was whole
    return found


def noted(log: PartitionLog) -> tuple[object, ...]:
    """What a log notes of its batches."""
    segment = log.active
    return (
        log.end_offset,
        log.epochs.entries,
        log.cleaner_line.is_written,
        encode_snapshot(log.producers),
        segment.offset_index.entries(),
        segment.time_index.entries(),
        (segment.max_timestamp, segment.max_timestamp_offset, segment.roll_timestamp, segment.bytes_since_index),
        content(log.read(BASE, max_bytes=1 << 20, end_offset=log.end_offset)),
    )


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_batches_that_come_together_are_noted_as_those_that_come_one_by_one(seed: int, gaps: bool) -> None:
    source = random.Random(seed)
    data = log_of(source, 40, gaps=gaps)
    together, one_by_one = empty_log(CONFIG), empty_log(CONFIG)
    for piece in pieces(source, data):
        append(together, piece)
    for at, header in split(data):
        append(one_by_one, data[at : at + header.size_bytes])
    assert noted(together) == noted(one_by_one)


@pytest.mark.parametrize("seed", range(20))
def test_pieces_that_roll_segments_are_found_at_every_offset(seed: int) -> None:
    source = random.Random(seed)
    data = log_of(source, 40, gaps=seed % 2 == 1)
    log, one_by_one = empty_log(SMALL_SEGMENTS), empty_log(SMALL_SEGMENTS)
    for piece in pieces(source, data):
        append(log, piece)
    for at, header in split(data):
        append(one_by_one, data[at : at + header.size_bytes])
    assert len(log.segments) > 2
    rows = everything(one_by_one)
    assert everything(log) == rows
    assert (log.end_offset, log.epochs.entries) == (one_by_one.end_offset, one_by_one.epochs.entries)
    for offset, _ in rows:
        assert everything(log, start=offset) == [row for row in rows if row[0] >= offset]
    for segment in log.segments:
        ends = {batch.position: batch.header.last_offset for batch in segment.batches()}
        assert all(ends[entry.position] == entry.offset for entry in segment.offset_index.entries())


@pytest.mark.parametrize("fault", ["checksum", "offset", "epoch", "newer epoch", "no offset after it"])
def test_a_fault_after_valid_batches_appends_none_of_them(fault: str) -> None:
    log = empty_log(CONFIG)
    data = bytearray(log_of(random.Random(7), 6))
    *_, (at, header) = split(bytes(data))
    offset, epoch = header.base_offset, header.partition_leader_epoch
    if fault == "checksum":
        data[at + CRC_AT] ^= 1
    elif fault == "offset":
        stamp(data, at, base_offset=BASE, leader_epoch=epoch)
    elif fault == "no offset after it":
        stamp(data, at, base_offset=LONG_MAX - BatchHeader(data, at).last_offset_delta, leader_epoch=epoch)
    else:
        stamp(data, at, base_offset=offset, leader_epoch=-2 if fault == "epoch" else NEWEST_EPOCH + 1)
    before = noted(log)
    with pytest.raises(CorruptMessage):
        append(log, bytes(data))
    assert noted(log) == before
    assert not log.cleaner_line.is_written
