"""An index may be missing, torn or garbled: answers get slower, never wrong."""

from __future__ import annotations

import random
import uuid

import pytest

from ottla.core.files import read_file
from ottla.records.batch import split
from ottla.storage.config import LogConfig
from ottla.testing.sim_disk import SimDisk
from tests.support.storage import NOW_MS, ROOT, TP, batch, content, open_directory

CONFIG = LogConfig(segment_bytes=2_000, index_interval_bytes=200)
WHERE = ROOT / "web-0"


def closed_log() -> SimDisk:
    """Three segments of batches with times that go up and down, cleanly closed."""
    disk = SimDisk()
    directory = open_directory(disk, CONFIG)
    log = directory.create_log(TP, uuid.UUID(int=7))
    rng = random.Random(2)
    for at in range(60):
        log.append(
            batch(b"v%d" % at, b"w", timestamp_ms=NOW_MS + at * 10 - rng.randint(0, 40)), leader_epoch=0, now_ms=NOW_MS
        )
    directory.close()
    return disk


def check_against_a_scan(disk: SimDisk) -> None:
    log = open_directory(disk, CONFIG).logs[TP]
    assert log.end_offset == 120
    times = [
        header.max_timestamp for segment in log.segments for _, header in split(read_file(disk, segment.path(".log")))
    ]
    for offset in range(0, 120, 7):
        log.segment_list.forget_positions()
        _, header = next(iter(split(content(log.read(offset, max_bytes=1, end_offset=120)))))
        assert header.base_offset <= offset <= header.last_offset
    for time_ms in times[::5]:
        found = log.offset_for_timestamp(time_ms, end_offset=120)
        assert found is not None
        assert found.offset == 2 * next(at for at, greatest in enumerate(times) if greatest >= time_ms)
    assert log.offset_for_timestamp(max(times) + 1, end_offset=120) is None
    newest = log.offset_of_max_timestamp(120)
    assert newest is not None and newest.offset == 2 * times.index(max(times))


INDEXES = [name for name in closed_log().names_in(WHERE) if name.endswith("index")]


@pytest.mark.parametrize("name", INDEXES)
def test_a_missing_index_is_rebuilt(name: str) -> None:
    disk = closed_log()
    before = read_file(disk, WHERE / name)
    disk.remove(WHERE / name)
    check_against_a_scan(disk)
    assert before == b"" or disk.exists(WHERE / name) or name.startswith("0" * 19)


@pytest.mark.parametrize("name", INDEXES)
def test_an_index_cut_anywhere_gives_no_wrong_answer(name: str) -> None:
    for size in range(len(read_file(closed_log(), WHERE / name))):
        disk = closed_log()
        disk.open(WHERE / name).truncate(size)
        check_against_a_scan(disk)


@pytest.mark.parametrize("name", INDEXES)
def test_an_index_with_any_bit_flipped_gives_no_wrong_answer(name: str) -> None:
    whole = read_file(closed_log(), WHERE / name)
    for byte in range(len(whole)):
        disk = closed_log()
        disk.flip_bit(WHERE / name, byte * 8 + byte % 8)
        check_against_a_scan(disk)


@pytest.mark.parametrize("name", INDEXES)
def test_an_index_of_noise_gives_no_wrong_answer(name: str) -> None:
    for seed in range(5):
        disk = closed_log()
        file = disk.open(WHERE / name)
        size = file.size()
        file.truncate(0)
        file.append(random.Random(seed).randbytes(size))
        check_against_a_scan(disk)


def test_an_index_beyond_the_log_is_not_believed() -> None:
    disk = closed_log()
    entry = (110).to_bytes(4, "big") + (1 << 20).to_bytes(4, "big")
    disk.open(WHERE / INDEXES[0]).append(entry)
    check_against_a_scan(disk)


def test_only_few_entries_are_needed_for_many_batches() -> None:
    disk = closed_log()
    log = open_directory(disk, CONFIG).logs[TP]
    entries = sum(len(segment.offset_index.entries()) for segment in log.segments)
    assert 5 < entries < 60
    reads: list[int] = []
    segment = log.segments[0]
    segment.find(0)
    original = segment.file.read_at
    segment.file.read_at = lambda position, size: reads.append(position) or original(position, size)  # type: ignore[method-assign,func-returns-value]
    segment.find(24)
    assert reads and min(reads) > 0, "the index was not used"
