"""The simulated disk loses what a real one may lose, and nothing that a sync has covered."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.core.files import read_file
from ottla.testing.sim_disk import POWER_CUTS, PowerCut, SimDisk, Survival
from ottla.testing.sim_disk_state import PAGE_BYTES, SECTOR_BYTES

ROOT = PurePosixPath("/data")
FILE = ROOT / "file"


def written(*pieces: bytes, synced: int) -> SimDisk:
    """A disk with one file, appended to piece by piece; so many of the pieces were synced, and its name."""
    disk = SimDisk()
    disk.make_directory(ROOT)
    disk.sync_directory(PurePosixPath("/"))
    file = disk.open(FILE, create=True)
    for at, piece in enumerate(pieces):
        file.append(piece)
        if at + 1 == synced:
            file.sync()
            disk.sync_directory(ROOT)
    return disk


def possible_contents(disk: SimDisk) -> Iterator[bytes | None]:
    for number in range(disk.states()):
        after = disk.state(number)
        yield read_file(after, FILE) if after.exists(FILE) else None


def test_synced_data_is_in_every_state_and_there_is_only_one_when_all_was_synced() -> None:
    assert list(possible_contents(written(b"a" * 100, b"b" * 10_000, synced=2))) == [b"a" * 100 + b"b" * 10_000]
    for left in possible_contents(written(b"a" * 100, b"b" * 10_000, synced=1)):
        assert left is not None and left[:100] == b"a" * 100


def test_each_unsynced_page_is_kept_or_lost_by_itself_below_any_length() -> None:
    disk = written(b"s", b"x" * (3 * PAGE_BYTES), synced=1)
    states = set(possible_contents(disk))
    assert None not in states
    kept = {
        tuple(left[at * PAGE_BYTES + 1 : at * PAGE_BYTES + 2] for at in range(3))
        for left in states
        if left and len(left) == 3 * PAGE_BYTES + 1
    }
    assert len(kept) == 8, "three pages, each there or not"
    assert {len(left) for left in states if left} >= {1, PAGE_BYTES, 2 * PAGE_BYTES, 3 * PAGE_BYTES, 3 * PAGE_BYTES + 1}


def test_a_page_may_be_torn_at_each_of_its_sectors() -> None:
    states = set(possible_contents(written(b"o" * PAGE_BYTES, synced=1)))
    assert states == {b"o" * PAGE_BYTES}
    disk = written(b"o" * PAGE_BYTES, synced=1)
    disk.open(FILE).write_at(0, b"n" * PAGE_BYTES)
    states = set(possible_contents(disk))
    for cut in range(0, PAGE_BYTES + 1, SECTOR_BYTES):
        assert b"n" * cut + b"o" * (PAGE_BYTES - cut) in states
        assert b"o" * cut + b"n" * (PAGE_BYTES - cut) in states
    assert len(states) == 16
    mixed = disk.torn(random.Random(2))
    left = read_file(mixed, FILE)
    assert set(left) <= set(b"on") and len({left[at : at + SECTOR_BYTES] for at in range(0, PAGE_BYTES, 512)}) <= 2


def test_a_page_may_hold_what_it_held_after_any_write_since_the_sync() -> None:
    states = set(possible_contents(written(b"", b"1", b"2", b"3", synced=1)))
    assert {b"1\0\0", b"12\0", b"123", b"", b"\0\0\0", b"12"} <= states


def test_names_survive_in_order_up_to_some_point_and_a_rename_is_one_change() -> None:
    disk = written(b"x", synced=1)
    disk.open(ROOT / "second", create=True)
    disk.rename(FILE, ROOT / "third")
    disk.remove(ROOT / "second")
    names = [disk.state(number).names_in(ROOT) for number in range(disk.states())]
    assert names == [["file"], ["file", "second"], ["second", "third"], ["third"]]


def test_a_file_whose_directory_was_not_synced_may_be_gone_synced_as_it_is() -> None:
    disk = written(b"x", synced=1)
    file = disk.open(ROOT / "other", create=True)
    file.append(b"y")
    file.sync()
    assert {disk.state(number).exists(ROOT / "other") for number in range(disk.states())} == {False, True}


def test_looking_at_the_states_leaves_the_disk_as_it_is() -> None:
    disk = written(b"x", b"y" * 5000, synced=1)
    before = disk.image()
    assert [disk.state(number).image() for number in range(disk.states())]
    assert disk.torn(random.Random(1)).image() and disk.image() == before
    assert [left.image() for left in disk.killed()] == [before]
    with pytest.raises(IndexError):
        disk.state(disk.states())


def test_a_disk_that_lies_keeps_nothing() -> None:
    disk = SimDisk(lies=True)
    file = disk.open(PurePosixPath("/file"), create=True)
    file.append(b"x")
    file.sync()
    disk.sync_directory(PurePosixPath("/"))
    disk.power_cut(random.Random(0), Survival.LOST)
    assert disk.names_in(PurePosixPath("/")) == []


def test_a_page_whose_sync_failed_never_reaches_the_platter_by_a_later_sync() -> None:
    disk = written(b"x", synced=1)
    file = disk.open(FILE)
    file.append(b"y")
    disk.fail_at(1, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    file.sync()
    assert file.read_at(0, 9) == b"xy"
    disk.power_cut(random.Random(0), Survival.LOST)
    assert read_file(disk, FILE) in {b"x", b"x\0"}


def test_a_flipped_bit_survives_whatever_is_kept() -> None:
    for survival in POWER_CUTS:
        disk = written(b"x", b"y", synced=1)
        disk.flip_bit(FILE, 0)
        disk.power_cut(random.Random(0), survival)
        assert read_file(disk, FILE)[:1] == b"y"


def test_a_stopped_disk_does_nothing_more_until_the_power_is_back() -> None:
    disk = written(b"x", synced=1)
    disk.stop_at(2)
    file = disk.open(FILE)
    file.append(b"y")
    for attempt in (lambda: file.append(b"z"), file.sync, lambda: disk.open(FILE)):
        with pytest.raises(PowerCut):
            attempt()
    disk.power_cut(random.Random(0), Survival.KEPT)
    assert read_file(disk, FILE) == b"xy"


def test_kill_9_may_leave_a_write_half_done_and_keeps_all_before_it() -> None:
    disk = written(b"x", synced=1)
    disk.stop_at(1)
    file = disk.open(FILE)
    with pytest.raises(PowerCut):
        file.append(b"y" * 9000)
    assert [disk_left.size_of(FILE) for disk_left in disk.killed()] == [1, PAGE_BYTES, 2 * PAGE_BYTES]


def test_a_revertible_disk_loses_all_that_is_not_synced_and_remembers_no_change() -> None:
    disk, path = SimDisk(is_revertible=True), PurePosixPath("/a/b")
    disk.make_directory(path.parent)
    disk.sync_directory(PurePosixPath("/"))
    file = disk.open(path, create=True)
    file.append(b"written")
    file.sync()
    disk.sync_directory(path.parent)
    file.append(b" more")
    file.write_at(1, b"RITTEN!")
    file.truncate(3)
    disk.open(PurePosixPath("/a/c"), create=True).append(b"new")
    disk.power_cut(random.Random(1), Survival.LOST)
    assert disk.open(path).read_at(0, 20) == b"written"
    assert not disk.exists(PurePosixPath("/a/c"))
    disk.open(path).append(b" again")
    disk.power_cut(random.Random(1), Survival.LOST)
    assert disk.open(path).read_at(0, 20) == b"written"
    assert disk.changes > 0
    assert disk.history == []


_CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 9), st.integers(0, 255)),
        st.tuples(st.just("write"), st.integers(0, 40), st.integers(0, 255)),
        st.tuples(st.just("truncate"), st.integers(0, 40), st.just(0)),
        st.tuples(st.just("sync"), st.just(0), st.just(0)),
    ),
    max_size=30,
)


@given(_CHANGES)
def test_a_revertible_file_has_after_a_power_cut_what_any_other_has_without_its_unsynced_writes(
    changes: list[tuple[str, int, int]],
) -> None:
    disks = [SimDisk(), SimDisk(is_revertible=True)]
    for disk in disks:
        disk.make_directory(ROOT)
        disk.sync_directory(PurePosixPath("/"))
        file = disk.open(FILE, create=True)
        disk.sync_directory(ROOT)
        for change, number, byte in changes:
            match change:
                case "append":
                    file.append(bytes([byte]) * number)
                case "write":
                    file.write_at(number, bytes([byte]) * 7)
                case "truncate":
                    file.truncate(number)
                case _:
                    file.sync()
    contents = []
    for disk in disks:
        disk.power_cut(random.Random(1), Survival.LOST)
        contents.append(disk.open(FILE).read_at(0, 1000))
    assert contents[0] == contents[1]
