"""Holds what a log is made from: its location, and the state that was found there."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import PurePath
from typing import NamedTuple, Protocol

from ottla.core.clock import Clock
from ottla.core.files import FileSystem
from ottla.storage.directory_health import DirectoryHealth
from ottla.storage.file_names import offset_name
from ottla.storage.integrity.metadata_backup import BackedUpFile, CheckedCache, CheckedText, MetadataBackup, backup_of
from ottla.storage.log.deleted_files import DeletedFiles
from ottla.storage.log.segment import Segment
from ottla.storage.small_files import text_or_none
from ottla.storage.state.leader_epochs import LeaderEpochs
from ottla.storage.state.producer_snapshots import ProducerSnapshots
from ottla.storage.state.producer_state_manager import ProducerStateManager


class LogCheckpoints(Protocol):
    """Port: the directory that keeps the checkpoints of a log."""

    def checkpoint(self) -> None:
        """Write the checkpoint files: the log was truncated, and its recovery point went back. Raises StorageError."""
        ...


class LogLocation(NamedTuple):
    """Holds the directory of a log, and what it shares with the others of its log directory."""

    files: FileSystem
    clock: Clock
    directory: PurePath
    health: DirectoryHealth
    deleted_files: DeletedFiles
    checkpoints: LogCheckpoints
    backup: MetadataBackup | None = None  # what is known of the directory's small files

    def known(
        self, name: str, *, must_exist: bool = False, can_parse: Callable[[str], bool] | None = None
    ) -> CheckedText:
        """Return the text of a small file of this partition, or the copy of it if the file is corrupt.

        If it `must_exist` the copy is taken for a missing file, too; with `can_parse` for every one that is not valid.
        """
        if self.backup is None:
            return CheckedText(text_or_none(self.files, self.directory / name), is_certain=False)
        return self.backup.text(f"{self.directory.name}/{name}", must_exist=must_exist, can_parse=can_parse)

    def copy_of(self, name: str, known: CheckedText) -> BackedUpFile | None:
        """Return the copy to note of a small file that was just read."""
        if known.is_certain and self.backup is not None:
            return self.backup.entries.get(f"{self.directory.name}/{name}")
        return backup_of(self.files, self.directory / name)

    def is_corrupt(self, base_offset: int, suffix: str) -> bool:
        """Return whether an index is certainly not what a clean stop left."""
        return self.backup is not None and self.backup.is_corrupt(self._index_name(base_offset, suffix))

    def checked_index(self, base_offset: int, suffix: str) -> CheckedCache:
        """Read an index, and compare it with what a clean stop left."""
        if self.backup is None:
            return CheckedCache(None, is_corrupt=False)
        return self.backup.cache(self._index_name(base_offset, suffix))

    def _index_name(self, base_offset: int, suffix: str) -> str:
        return f"{self.directory.name}/{offset_name(base_offset, suffix)}"


class LoadedState(NamedTuple):
    """Holds the topic's id, the segments, at least one, and what is derived from them."""

    topic_id: uuid.UUID
    segments: list[Segment]
    epochs: LeaderEpochs
    producers: ProducerStateManager
    snapshots: ProducerSnapshots
    log_start_offset: int
    end_offset: int
    cleaned_offset: int | None = None  # how far compaction came, if the cleaner's checkpoint has it
    is_as_stopped: bool = False  # nothing has changed since a clean shutdown
    checkpointed_start: int | None = 0  # the log start in the checkpoint files; None: unknown
    lost_start: int | None = None  # the same, if the segments that began there are missing
    is_start_uncertain: bool = False  # the first segments may be missing: another program wrote the checkpoint last
