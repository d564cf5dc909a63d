"""Writes the checkpoint files of a log directory, in any thread."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from ottla.core.files import FileSystem
from ottla.core.ids import TopicPartition
from ottla.storage.checkpoint_files import PARTITION_METADATA, offsets_text
from ottla.storage.integrity.metadata_backup import BackedUpFile, replace_files
from ottla.storage.log.flush import DirectoryHealth, has_no_space
from ottla.storage.state.leader_epochs import FILE_NAME as EPOCHS_FILE


class CheckpointJob:
    """The checkpoint files as they shall be; `run` may be called in a worker thread.

    A job that was overtaken by a newer one does nothing: offsets noted before a truncation must not come after it.
    """

    __slots__ = ("_backups", "_contents", "_files", "_health", "_lock", "_logs", "_newest", "_number", "_root")

    def __init__(
        self,
        files: FileSystem,
        root: PurePath,
        contents: Mapping[str, Mapping[TopicPartition, int]],
        backup: Mapping[str, BackedUpFile],
        logs: Sequence[tuple[PurePath, BackedUpFile | None, BackedUpFile | None]],
        *,
        lock: threading.Lock,
        newest: list[int],
        health: DirectoryHealth,
    ) -> None:
        self._health = health
        self._files = files
        self._root = root
        self._contents = contents  # encoded by `run`: with thousands of logs it takes as long as the rest
        self._backups = backup  # of other small files, to be noted beside these
        self._logs = logs  # directory of a log, its leader-epoch file and partition.metadata
        self._lock = lock
        self._newest = newest
        newest[0] += 1
        self._number = newest[0]

    def run(self) -> bool:
        """Replace each file atomically; False if a newer job does, now or later. Raises OSError."""
        with self._lock:
            if self._number != self._newest[0]:
                return False
            texts = {name: offsets_text(offsets).encode() for name, offsets in self._contents.items()}
            backups = self._all_backups()
            try:
                replace_files(self._files, self._root, texts, backups)
            except OSError as error:
                if not has_no_space(error) or not self._health.make_space():
                    raise
                replace_files(self._files, self._root, texts, backups)
            return True

    def _all_backups(self) -> dict[str, BackedUpFile]:
        found: dict[str, BackedUpFile] = {}
        for directory, epochs, metadata in self._logs:
            if epochs is not None:
                found[f"{directory.name}/{EPOCHS_FILE}"] = epochs
            if metadata is not None:
                found[f"{directory.name}/{PARTITION_METADATA}"] = metadata
        return {**found, **self._backups}
