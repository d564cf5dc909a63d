"""Writes the checkpoint files of a log directory, in any thread."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import PurePath

from ottla.core.files import FileSystem
from ottla.storage.integrity.metadata_backup import BackedUpFile, replace_files
from ottla.storage.log.flush import DirectoryHealth, has_no_space


class CheckpointJob:
    """The checkpoint files as they shall be; `run` may be called in a worker thread.

    A job that was overtaken by a newer one does nothing: offsets noted before a truncation must not come after it.
    """

    __slots__ = ("_backups", "_contents", "_files", "_health", "_lock", "_newest", "_number", "_root")

    def __init__(
        self,
        files: FileSystem,
        root: PurePath,
        contents: Mapping[str, bytes],
        backup: Mapping[str, BackedUpFile],
        *,
        lock: threading.Lock,
        newest: list[int],
        health: DirectoryHealth,
    ) -> None:
        self._health = health
        self._files = files
        self._root = root
        self._contents = contents
        self._backups = backup  # of other small files, to be noted beside these
        self._lock = lock
        self._newest = newest
        newest[0] += 1
        self._number = newest[0]

    def run(self) -> bool:
        """Replace each file atomically; False if a newer job does, now or later. Raises OSError."""
        with self._lock:
            if self._number != self._newest[0]:
                return False
            try:
                replace_files(self._files, self._root, self._contents, self._backups)
            except OSError as error:
                if not has_no_space(error) or not self._health.make_space():
                    raise
                replace_files(self._files, self._root, self._contents, self._backups)
            return True
