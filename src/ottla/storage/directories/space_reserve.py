"""Keeps disk space for the metadata store and the checkpoints, so that a full disk can be freed through the broker.

The reserve is a file with content. When a checkpoint or a commit of the metadata store finds no space, the file is
removed and the write is repeated. From then on records are refused, or they would use the space up; reads,
DeleteRecords, DeleteTopics, changes of settings and retention work. `fill` writes the file again once there is free
space.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import random
import threading
from pathlib import PurePath

from ottla.core.files import FileSystem
from ottla.storage.log.flush import DirectoryHealth

logger = logging.getLogger(__name__)

FILE_NAME = "ottla-reserve"
SIZE_BYTES_MAX = 4 << 20
DISK_SHARE = 16
"""The reserve is at most this part of the disk, for disks of a few MiB."""

FREE_FACTOR = 2
"""The reserve is filled only if there is this many times its size: what was freed is not used up by the reserve."""

_CHUNK_BYTES = 1 << 18


class SpaceReserve:
    """The reserve of one directory. Thread-safe."""

    def __init__(self, files: FileSystem, directory: PurePath, health: DirectoryHealth | None = None) -> None:
        """Create the reserve of a directory; `health` refuses records while it is used. Raises OSError."""
        self._files, self._path, self._health = files, directory / FILE_NAME, health
        self._lock = threading.Lock()
        self._size_bytes = min(SIZE_BYTES_MAX, files.total_bytes(directory) // DISK_SHARE)
        self.is_used = not self._is_whole() and not self._can_fill()
        self._inform()

    def fill(self) -> bool:
        """Write the file if it is not there and there is free space; returns whether the reserve is whole."""
        with self._lock:
            if self._is_whole():
                return True
            try:
                if not self._can_fill():
                    return False
                self._write()
            except OSError as error:
                with contextlib.suppress(OSError):
                    self._files.remove(self._path)
                if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                    logger.warning("the space reserve %s cannot be written: %s", self._path, error)
                return False
            if self.is_used:
                logger.info("%s has free space again: the space reserve is filled", self._path.parent)
            self.is_used = False
            self._inform()
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
            logger.warning(
                "%s is full: the space reserve was released for checkpoints and metadata. Records are refused until "
                "there is free space: delete topics or records, or lower retention.bytes",
                self._path.parent,
            )
            self.is_used = True
            self._inform()
            return True

    def _is_whole(self) -> bool:
        return self._files.exists(self._path) and self._files.size_of(self._path) >= self._size_bytes

    def _can_fill(self) -> bool:
        return self._files.free_bytes(self._path.parent) >= FREE_FACTOR * self._size_bytes

    def _write(self) -> None:
        chunk = random.Random(0).randbytes(_CHUNK_BYTES)  # a file system that compresses keeps no space for zeros
        file = self._files.open(self._path, create=True)
        try:
            file.truncate(0)
            for position in range(0, self._size_bytes, _CHUNK_BYTES):
                file.append(chunk[: self._size_bytes - position])
            file.sync()
        finally:
            file.close()

    def _inform(self) -> None:
        if self._health is not None:
            self._health.use_reserve(self.release, is_used=self.is_used)
