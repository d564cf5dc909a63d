"""The bound on files kept open, and that closing one interrupts no reader."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from ottla.core.errors import SyncFailed
from ottla.core.files import File, SystemFiles
from ottla.core.open_files import OpenFileCache


class Keeper:
    """Keeps one file, or pretends to."""

    def __init__(self, *, needs_it: bool = False) -> None:
        self.needs_it, self.asked = needs_it, 0

    def close_if_idle(self) -> bool:
        self.asked += 1
        return not self.needs_it


def test_beyond_the_limit_those_who_have_kept_theirs_longest_let_go() -> None:
    kept = OpenFileCache(2)
    keepers = [Keeper() for _ in range(4)]
    for keeper in keepers:
        kept.add(keeper)
    assert [keeper.asked for keeper in keepers] == [1, 1, 0, 0]
    assert len(kept) == 2


def test_one_that_must_keep_its_file_is_passed_over_and_asked_last_the_next_time() -> None:
    kept = OpenFileCache(2)
    stubborn, other, third, fourth = Keeper(needs_it=True), Keeper(), Keeper(), Keeper()
    for keeper in (stubborn, other, third):
        kept.add(keeper)
    assert (stubborn.asked, other.asked, len(kept)) == (1, 1, 2)
    kept.add(fourth)
    assert (stubborn.asked, third.asked) == (2, 1), "the one that cannot is asked, the other lets go"


def test_one_that_used_its_file_meanwhile_may_keep_it_until_all_have() -> None:
    class User(Keeper):
        def close_if_idle(self) -> bool:
            self.needs_it = self.asked == 0  # the first time it is asked it has just used it
            return super().close_if_idle()

    kept = OpenFileCache(2)
    keepers = [User(), Keeper(), User()]
    for keeper in keepers:
        kept.add(keeper)
    assert [keeper.asked for keeper in keepers] == [1, 1, 0]
    kept.add(User())
    assert [keeper.asked for keeper in keepers] == [2, 1, 0], "the first has had its chance"
    assert len(kept) == 2


def test_a_file_beyond_the_limit_is_refused_until_another_one_can_be_closed() -> None:
    kept = OpenFileCache(1)
    stubborn, other = Keeper(needs_it=True), Keeper()
    kept.add(stubborn)
    with pytest.raises(OSError, match="Too many open files"):
        kept.add(other)
    kept.add(stubborn)  # who is there may open its file again
    assert len(kept) == 1
    stubborn.needs_it = False
    kept.add(other)
    assert len(kept) == 1


def test_without_a_limit_no_file_is_registered() -> None:
    kept = OpenFileCache()
    kept.add(Keeper())
    kept.discard(Keeper())
    assert len(kept) == 0


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_file_closes_itself_when_its_last_reference_goes(tmp_path: Path) -> None:
    before = open_descriptors()
    file: File | None = SystemFiles().open(tmp_path / "a", create=True)
    assert file is not None
    file.append(b"held")
    reader = file
    file = None
    assert reader.read_at(0, 4) == b"held", "a reader still uses it"
    assert open_descriptors() == before + 1
    del reader
    assert open_descriptors() == before


def test_a_failed_fsync_has_an_error_class_of_its_own(tmp_path: Path) -> None:
    file = SystemFiles().open(tmp_path / "a", create=True)
    descriptor = file.descriptor()
    assert descriptor is not None
    os.close(descriptor)
    read_end, write_end = os.pipe()  # a pipe in the file's place cannot be synced
    os.dup2(write_end, descriptor)
    with pytest.raises(SyncFailed) as failed:
        file.sync()
    assert failed.value.errno == errno.EINVAL
    for each in (read_end, write_end):
        if each != descriptor:
            os.close(each)


def test_a_directory_that_was_removed_under_its_lock_is_noticed(tmp_path: Path) -> None:
    place = tmp_path / "data"
    place.mkdir()
    lock = SystemFiles().lock(place / ".lock")
    lock.check_present()
    lock.check_linked()
    shutil.rmtree(place)
    for check in (lock.check_present, lock.check_linked):
        with pytest.raises(FileNotFoundError):
            check()
    place.mkdir()
    (place / ".lock").touch()
    with pytest.raises(FileNotFoundError):  # another's file of the same name
        lock.check_present()
    with pytest.raises(FileNotFoundError):
        lock.check_linked()
    lock.release()
