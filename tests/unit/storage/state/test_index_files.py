"""The files of indexes: entries that wait in memory, and entries that a recovery replaces."""

from __future__ import annotations

from pathlib import PurePath

import pytest

from ottla.storage.state.index import OffsetEntry, OffsetIndex, TimeEntry, TimeIndex
from ottla.testing.sim_disk import SimDisk

ROOT = PurePath("/data")
FILE = ROOT / "00000000000000000000.index"


def disk_with(entries: list[OffsetEntry]) -> SimDisk:
    disk = SimDisk()
    disk.make_directory(ROOT)
    OffsetIndex(disk, ROOT, 0).replace(entries)
    return disk


def index_of(disk: SimDisk) -> OffsetIndex:
    return OffsetIndex(disk, ROOT, 0)


OLD = [OffsetEntry(number * 10, number * 100) for number in range(1, 4)]


def test_a_cleared_index_has_no_entries_while_its_file_keeps_them() -> None:
    disk = disk_with(OLD)
    index, before = index_of(disk), disk.changes
    index.clear()
    assert (index.entries(), index.last(), index.at_or_below(1000), index.count) == ([], None, None, 0)
    assert index.file.entries_on_disk() == 0
    assert index.sane(log_bytes=1000)
    assert disk.changes == before
    assert not index.file.is_written, "a stop has to write it"


@pytest.mark.parametrize("count", [0, 1, 3, 5])
def test_what_was_added_since_takes_the_place_of_all_old_entries(count: int) -> None:
    disk = disk_with(OLD)
    index = index_of(disk)
    index.clear()
    new = [OffsetEntry(number * 7, number * 50) for number in range(1, count + 1)]
    for entry in new:
        index.append(*entry)
    assert index.entries() == new
    index.file.write_out()
    assert index.file.is_written
    assert index_of(disk).entries() == index.entries() == new


def test_entries_that_are_written_in_pieces_follow_each_other() -> None:
    disk = disk_with(OLD)
    index = index_of(disk)
    index.clear()
    new = [OffsetEntry(number, number * 50) for number in range(1, 2000)]  # more than two pieces
    for entry in new:
        index.append(*entry)
    index.file.write_out()
    assert index_of(disk).entries() == new


def test_a_missing_file_is_made_by_a_recovery() -> None:
    disk = disk_with([])
    disk.remove(FILE)
    index_of(disk).clear()
    assert disk.size_of(FILE) == 0


def test_a_torn_file_that_a_recovery_replaces_is_whole_again() -> None:
    disk = disk_with(OLD)
    disk.open(FILE).append(b"torn")
    index = index_of(disk)
    index.clear()
    assert index.file.whole_on_disk()
    index.append(10, 0)
    index.file.write_out()
    assert disk.size_of(FILE) == 8


def test_a_cleared_time_index_takes_earlier_times() -> None:
    disk = SimDisk()
    disk.make_directory(ROOT)
    TimeIndex(disk, ROOT, 0).replace([TimeEntry(1000, 5)])
    index = TimeIndex(disk, ROOT, 0)
    index.clear()
    index.append(500, 7)
    index.file.write_out()
    assert TimeIndex(disk, ROOT, 0).entries() == [TimeEntry(500, 7)]


def test_what_a_start_has_read_is_not_read_again_until_it_is_written() -> None:
    disk = disk_with(OLD)
    index = index_of(disk)
    index.file.hold(disk.read(str(FILE)))
    disk.refuse(5, "open", "read")
    assert index.last() == OLD[-1]
    assert index.at_or_below(25) == OLD[1]
    assert index.file.whole_on_disk()
    index.release()
    disk.stop_refusing()
    index.append(40, 400)
    index.file.write_out()
    assert index.last() == OffsetEntry(40, 400)
    assert index.entries() == [*OLD, OffsetEntry(40, 400)]


def test_half_an_entry_at_the_end_is_seen_also_in_what_a_start_has_read() -> None:
    disk = disk_with(OLD)
    disk.open(FILE).append(b"torn")
    index = index_of(disk)
    index.file.hold(disk.read(str(FILE)))
    assert not index.file.whole_on_disk()
    assert index.last() == OLD[-1]
