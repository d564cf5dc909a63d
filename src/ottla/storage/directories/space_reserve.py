"""Keeps disk space for the metadata store and the checkpoints, so that a full disk can be freed through the broker.

The reserve is a file with content. When a checkpoint or a commit of the metadata store finds no space, the file is
removed and the write is repeated. From then on, and after any write that found no space, records are refused, or they
would use the space up; reads, DeleteRecords, DeleteTopics, changes of settings and retention work. `fill` writes the
file again once there is free space.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import random
import threading
from pathlib import PurePath

from ottla.core.files import FileSystem
from ottla.storage.directory_health import NO_SPACE, DirectoryHealth

logger = logging.getLogger(__name__)

FILE_NAME = "ottla-reserve"
SIZE_BYTES_MAX = 4 << 20
DISK_SHARE = 16
"""The reserve is at most this part of the disk, for disks of a few MiB."""

FREE_FACTOR = 2
"""The reserve is filled only if there is this many times its size: what was freed is not used up by the reserve."""

_CHUNK_BYTES = 1 << 18


_PROBE_NAME = FILE_NAME + "-probe"
"""A file that is created and removed: only a write shows whether a quota, or the number of files, allows one."""


class SpaceReserve:
    """The reserve of one directory. Thread-safe."""

    def __init__(self, files: FileSystem, directory: PurePath, health: DirectoryHealth | None = None) -> None:
        """Create the reserve of a directory; `health` refuses records while it is used. Raises OSError."""
        self._files, self._path, self._health = files, directory / FILE_NAME, health
        self._probe_path = directory / _PROBE_NAME
        self._lock = threading.Lock()
        self._size_bytes = min(SIZE_BYTES_MAX, files.total_bytes(directory) // DISK_SHARE)
        files.remove(self._probe_path)
        self.is_used = not self._is_whole() and not self._can_fill()
        if health is not None:
            health.use_reserve(self.release)
            if self.is_used:
                health.fill_up("start", os.strerror(errno.ENOSPC))

    @property
    def is_needed(self) -> bool:
        """Whether records are refused until `fill` finds free space, or the reserve was used."""
        return self.is_used or (self._health is not None and self._health.is_full)

    def fill(self) -> bool:
        """Write the file if it is not there and there is free space; returns whether the reserve is whole.

        Records are accepted again then.
        """
        with self._lock:
            try:
                is_whole = self._is_whole()
                if is_whole and not self.is_needed:
                    return True
                if not self._can_fill():
                    return False
                if not is_whole:
                    self._write(self._path, self._size_bytes)
                if self.is_needed:
                    self._write(self._probe_path, _CHUNK_BYTES)
                    self._files.remove(self._probe_path)
            except OSError as error:
                self._remove_partial()
                if error.errno not in NO_SPACE:
                    logger.warning("the space reserve %s cannot be written: %s", self._path, error)
                return False
            if self.is_used and self._health is None:
                logger.info("%s has free space again: the space reserve is filled", self._path.parent)
            self.is_used = False
            if self._health is not None:
                self._health.space_found()
            return True

    def release(self) -> bool:
        """Remove the file; returns whether that freed space, so that a write that failed may be repeated."""
        with self._lock:
            try:
                if not self._files.exists(self._path) or not self._files.size_of(self._path):
                    return False
                self._files.remove(self._path)
                self._files.sync_directory(self._path.parent)
            except OSError as error:
                logger.warning("the space reserve %s cannot be released: %s", self._path, error)
                return False
            self.is_used = True
            if self._health is not None:
                self._health.fill_up("the space reserve is used for checkpoints", os.strerror(errno.ENOSPC))
            else:
                logger.warning(
                    "%s is full: the space reserve is used for metadata. Delete topics or records, or lower "
                    "retention.bytes",
                    self._path.parent,
                )
            return True

    def _is_whole(self) -> bool:
        return self._files.exists(self._path) and self._files.size_of(self._path) >= self._size_bytes

    def _can_fill(self) -> bool:
        """Return whether as much as the reserve is free besides it."""
        held = self._files.size_of(self._path) if self._files.exists(self._path) else 0
        return self._files.free_bytes(self._path.parent) + held >= FREE_FACTOR * self._size_bytes

    def _remove_partial(self) -> None:
        with contextlib.suppress(OSError):
            self._files.remove(self._probe_path)
            if not self._is_whole():
                self._files.remove(self._path)

    def _write(self, path: PurePath, size_bytes: int) -> None:
        chunk = random.Random(0).randbytes(_CHUNK_BYTES)  # a file system that compresses keeps no space for zeros
        file = self._files.open(path, create=True)
        try:
            file.truncate(0)
            for position in range(0, size_bytes, _CHUNK_BYTES):
                file.append(chunk[: size_bytes - position])
            file.sync()
        finally:
            file.close()
