"""Files of the operating system, as the log uses them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from ottla.core import files
from ottla.core.files import SystemFile, SystemFiles


def test_an_open_file_notices_that_its_name_was_removed(tmp_path: Path) -> None:
    file = SystemFile(tmp_path / "a.log", create=True)
    assert file.is_linked()
    (tmp_path / "a.log").rename(tmp_path / "b.log")
    assert file.is_linked()
    (tmp_path / "b.log").unlink()
    (tmp_path / "b.log").write_bytes(b"another file")
    assert not file.is_linked()
    file.close()


def test_a_file_is_looked_for_without_a_stat_which_makes_the_next_fdatasync_slower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = SystemFile(tmp_path / "a.log", create=True)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a stat of the file that is written")

    for name in ("stat", "fstat", "lstat"):
        monkeypatch.setattr(os, name, refuse)
    assert file.is_linked()
    monkeypatch.undo()
    file.close()


def test_without_proc_the_names_of_an_open_file_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = SystemFile(tmp_path / "a.log", create=True)

    def no_proc(path: str) -> str:
        raise FileNotFoundError(2, "No such file or directory", path)

    monkeypatch.setattr(os, "readlink", no_proc)
    assert file.is_linked()
    (tmp_path / "a.log").unlink()
    assert not file.is_linked()
    file.close()


@pytest.mark.parametrize(
    ("refusal", "fsyncs"), [(None, 0), (errno.ENOTSUP, 1), (errno.EIO, 0)], ids=["full", "no full sync", "error"]
)
def test_without_fdatasync_the_cache_of_the_drive_is_written_too(
    refusal: int | None, fsyncs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS; a file system that has no full sync gets the plain one, and an error of the disk is an error."""
    commands: list[int] = []
    synced: list[int] = []

    def control(_: int, command: int) -> None:
        commands.append(command)
        if refusal is not None:
            raise OSError(refusal, os.strerror(refusal))

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", control)
    monkeypatch.setattr(os, "fsync", synced.append)
    with pytest.raises(OSError, match="error") if refusal == errno.EIO else contextlib.nullcontext():
        files._sync_fully(7)
    assert (commands, synced) == ([51], [7] * fsyncs)


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 100_000])
def test_a_small_file_is_read_whole_and_a_larger_one_too(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    (tmp_path / "file").write_bytes(data)
    assert SystemFiles().read(str(tmp_path / "file")) == data


def test_a_missing_file_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        SystemFiles().read(str(tmp_path / "file"))
