"""Files on their way out: removed by a worker thread while logs are renamed and deleted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import PurePath
from types import FrameType

from ottla.core.files import File
from ottla.storage.log.deleted_files import DeletedFiles
from ottla.testing.sim_disk import SimDisk

ROOT = PurePath("/data")
LOG, DELETED_LOG = ROOT / "t-0", ROOT / "t-0.0123-delete"


class Disk(SimDisk):
    """Runs something of the event loop before a file is removed, as it may happen beside a worker thread."""

    def __init__(self) -> None:
        super().__init__()
        self.before_removal: Callable[[], None] = lambda: None
        self.make_directory(ROOT)

    def remove(self, path: PurePath) -> None:
        before, self.before_removal = self.before_removal, lambda: None
        before()
        super().remove(path)


def create(disk: Disk, path: PurePath) -> File:
    file = disk.open(path, create=True)
    file.append(b"x")
    return file


def test_a_file_whose_directory_is_renamed_while_it_is_removed_is_removed_there() -> None:
    disk = Disk()
    disk.make_directory(LOG)
    deleted = DeletedFiles(disk)
    deleted.add(LOG / "0.log.deleted", due_ms=1, file=create(disk, LOG / "0.log.deleted"))

    def rename() -> None:
        disk.rename(LOG, DELETED_LOG)
        deleted.moved(LOG, DELETED_LOG)

    disk.before_removal = rename
    assert deleted.purge(1) == 1
    assert len(deleted) == 0
    assert disk.names_in(DELETED_LOG) == []


def test_nothing_is_removed_after_the_directory_was_closed() -> None:
    disk = Disk()
    deleted = DeletedFiles(disk)
    for name in ("a", "b"):
        deleted.add(ROOT / name, due_ms=1, file=create(disk, ROOT / name))
    disk.before_removal = deleted.close
    assert deleted.purge(1) == 0
    assert disk.names_in(ROOT) == ["b"], "the one that was being removed is gone, the next start finds the other"
    assert len(deleted) == 0


def test_the_deletion_of_a_log_does_not_look_at_what_waits_in_other_directories() -> None:
    deleted = DeletedFiles(Disk())
    for number in range(1_000):
        deleted.add(ROOT / f"t-{number}.0123-delete" / "0.log", due_ms=1)
        deleted.add(ROOT / f"t-{number}.0123-delete", due_ms=1, is_directory=True)
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        deleted.moved(ROOT / "t-7.0123-delete", ROOT / "renamed")
    finally:
        sys.setprofile(None)
    assert calls < 100
