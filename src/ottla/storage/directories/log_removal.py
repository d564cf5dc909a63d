"""Removes logs from a log directory: of deleted topics, of replicas that moved, of unknown topics.

A log's directory is renamed at once, so that no start loads it; its files go once readers have had time to finish
(`storage/log/deleted_files.py`). Which logs are due is for `replication/due_deletions.py` to say.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import PurePath

from ottla.core.clock import Clock
from ottla.core.files import FileSystem
from ottla.core.ids import TopicPartition
from ottla.storage.directory_health import DirectoryHealth
from ottla.storage.directory_names import DELETE_SUFFIX, STRAY_SUFFIX, renamed_directory
from ottla.storage.log.deleted_files import DeletedFiles
from ottla.storage.log.partition_log import PartitionLog


class LogRemoval:
    """The removal of logs from one log directory."""

    def __init__(
        self, files: FileSystem, path: PurePath, clock: Clock, health: DirectoryHealth, new_id: Callable[[], uuid.UUID]
    ) -> None:
        self._files, self._path, self._clock, self._health = files, path, clock, health
        self._new_id = new_id
        self.deleted_files = DeletedFiles(files)

    def delete(self, log: PartitionLog, held: dict[TopicPartition, PartitionLog]) -> None:
        """Delete a log that is held there. Raises StorageError; then it is as it was, or the directory is offline."""
        self._health.check()
        self._rename(log, DELETE_SUFFIX, held)
        self._remove_later(log)

    def delete_replaced(
        self, topic_partition: TopicPartition, directory: PurePath, log: PartitionLog | None = None
    ) -> None:
        """Delete the directory of a log that was replaced; if the disk refuses, the next start does it."""
        path = self._path / renamed_directory(topic_partition, self._new_id(), DELETE_SUFFIX)
        try:
            self._files.rename(directory, path)
        except OSError as error:
            self._health.refused(f"deleting {directory}", error)
            if log is not None:
                log.close_files()
            return
        if log is not None:
            log.moved(path)
            self._remove_later(log)
        else:
            self.remove_directory(path)

    def remove_directory(self, path: PurePath) -> None:
        """Remove a directory that was renamed, and that no reader uses."""
        self.deleted_files.add(path, due_ms=self._clock.wall_ms(), is_directory=True)

    def set_aside(self, log: PartitionLog, held: dict[TopicPartition, PartitionLog]) -> PurePath:
        """Rename the directory of a log that is held there, and keep it; return its new path. Raises StorageError."""
        self._health.check()
        self._rename(log, STRAY_SUFFIX, held)
        log.close_files()
        return log.directory

    def _remove_later(self, log: PartitionLog) -> None:
        """Remove the files of a log whose directory was renamed, once readers have had time to finish."""
        due_ms = self._clock.wall_ms() + log.config.file_delete_delay_ms
        for segment in log.segments:
            file = segment.detach_file()
            if file is not None:
                self.deleted_files.add(segment.path(".log"), due_ms=due_ms, file=file)
        self.deleted_files.add(log.directory, due_ms=due_ms, is_directory=True)

    def _rename(self, log: PartitionLog, suffix: str, held: dict[TopicPartition, PartitionLog]) -> None:
        """Rename a log's directory to a name that no start loads. Raises StorageError."""
        topic_partition = log.topic_partition
        name = renamed_directory(topic_partition, self._new_id(), suffix)
        try:
            self._files.rename(log.directory, self._path / name)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and self._files.exists(self._path):
                self._health.missing(f"renaming {topic_partition} to *{suffix}", str(log.directory))
                del held[topic_partition]
                return
            raise self._health.refused(f"renaming {topic_partition} to *{suffix}", error) from error
        del held[topic_partition]
        try:
            self._files.sync_directory(self._path)
        except OSError as error:
            refusal = self._health.refused(f"renaming {topic_partition} to *{suffix}", error)
            if self._health.failure is not None:  # otherwise a power cut may undo the rename
                raise refusal from error
        log.moved(self._path / name)

    def purge(self, now_ms: int, *, is_urgent: bool) -> int:
        """Remove, in any thread, what is due, or all if it is urgent; return how many went. Raises StorageError."""
        try:
            return self.deleted_files.purge(now_ms, is_urgent=is_urgent)
        except OSError as error:
            raise self._health.refused("removing deleted files", error) from error
