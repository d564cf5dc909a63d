"""A flush of one directory whose fsync a test decides."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import PurePath
from typing import cast

from ottla.core.files import FileSystem
from ottla.storage.log.flush import FlushJob
from ottla.storage.log.segment import Segment
from ottla.testing.sim_disk import SimDisk
from tests.support.storage import open_log


class _Files:
    """The file system as such a flush sees it."""

    def __init__(self, sync: Callable[[], None]) -> None:
        self._sync = sync

    def sync_directory(self, path: PurePath) -> None:
        self._sync()


@cache
def _segment() -> Segment:
    return open_log(SimDisk()).segment_list.active


def flush_calling(sync: Callable[[], None]) -> FlushJob:
    """A flush whose one fsync calls `sync`, which may raise OSError."""
    files = cast("FileSystem", _Files(sync))
    return FlushJob(files, _segment(), (), end_offset=0, truncation_count=0, directories=[PurePath("/data/web-0")])
