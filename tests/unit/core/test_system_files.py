"""Files of the operating system, as the log uses them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ottla.core.files import SystemFile


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
