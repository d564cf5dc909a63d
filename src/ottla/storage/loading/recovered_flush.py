"""Syncs what a recovery kept of a log, which may be in the system's memory only."""

from __future__ import annotations

from ottla.core.errors import StorageError
from ottla.storage.log.flush import FlushJob
from ottla.storage.log.partition_log import PartitionLog


class RecoveredFlush:
    """Flushes a log that was recovered, without its small files where the disk has no space for them."""

    __slots__ = ("job", "log")

    def __init__(self, log: PartitionLog) -> None:
        """Begin the flush; `job` is None if the log is synced already. Raises OSError, StorageError."""
        self.log = log
        self.job: FlushJob | None = None
        for segment in log.segments[:-1]:
            if segment.is_dirty:  # one by one: there may be more of them than file handles
                segment.file.sync()
                segment.mark_clean()
                log.pending_flush.add_sealed([segment])
        log.pending_flush.add_directories(log.directory, log.directory.parent)
        if not log.pending_flush.has_written(log.epochs):
            log.pending_flush.write_epochs(log.directory, log.epochs)
        try:
            self.job = log.begin_flush()
        except StorageError:
            self._sync_without_small_files()

    def complete(self) -> None:
        """Complete the flush once its job has run. Raises OSError, and StorageError if the directory is lost."""
        log = self.log
        try:
            if self.job is not None:
                log.complete_flush(self.job)
        except StorageError:
            self._sync_without_small_files()

    def _sync_without_small_files(self) -> None:
        """Sync the log; its small files wait until the disk has space for them."""
        log = self.log
        log.health.check()
        log.active.file.sync()
        log.files.sync_directory(log.directory)
        log.files.sync_directory(log.directory.parent)
        log.active.mark_clean()
