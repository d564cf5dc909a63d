"""Reads the state that the previous run left in the checkpoint files of a log directory."""

from __future__ import annotations

import logging
from pathlib import PurePath

from ottla.core.files import FileSystem
from ottla.core.ids import TopicPartition
from ottla.storage import small_files as names
from ottla.storage.integrity.metadata_backup import MetadataBackup
from ottla.storage.loading.log_loader import LogCheckpoint
from ottla.storage.small_files import parse_offsets, text_or_none

logger = logging.getLogger(__name__)


class PreviousRun:
    """The offsets in the checkpoint files of a log directory, and whether the run that wrote them ended cleanly."""

    def __init__(self, files: FileSystem, path: PurePath, backup: MetadataBackup) -> None:
        self._path, self._backup = path, backup
        self.broker_epoch = names.parse_clean_shutdown(text_or_none(files, path / names.CLEAN_SHUTDOWN))
        self.is_clean = self.broker_epoch is not None
        self.recovery_points = self._offsets(names.RECOVERY_POINTS)
        self._is_certain = backup.text(names.RECOVERY_POINTS).is_certain
        self.log_starts = self._offsets(names.LOG_STARTS)
        self._is_start_certain = self._is_certain and backup.text(names.LOG_STARTS).is_certain
        self.high_watermarks = self._offsets(names.HIGH_WATERMARKS)
        self.cleaned = self._offsets(names.CLEANER_OFFSETS)
        self._all_may_have_gaps = not self.cleaned and self._is_corrupt(names.CLEANER_OFFSETS)

    def checkpoint_of(self, topic_partition: TopicPartition) -> LogCheckpoint:
        """Return the entries of one log."""
        log_start_offset = self.log_starts.get(topic_partition, 0)
        return LogCheckpoint(
            is_clean=self.is_clean,
            recovery_point=self.recovery_points.get(topic_partition, 0),
            log_start_offset=log_start_offset,
            cleaned_offset=self.cleaned.get(topic_partition, log_start_offset if self._all_may_have_gaps else None),
            is_verified=self._is_certain and topic_partition in self.recovery_points,
            is_start_verified=self._is_start_certain and topic_partition in self.recovery_points,
        )

    def _offsets(self, name: str) -> dict[TopicPartition, int]:
        found = parse_offsets(self._backup.text(name).text)
        if found is None:
            logger.warning("%s is corrupt, and there is no copy of it: passed over", self._path / name)
        return found or {}

    def _is_corrupt(self, name: str) -> bool:
        return parse_offsets(self._backup.text(name).text) is None
