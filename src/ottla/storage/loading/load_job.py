"""Loads one log in a thread, beside others: all file operations of its load, and what they found."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ottla.storage.config import LogConfig
from ottla.storage.integrity.corruption import Corruption, collect_reports, stop_collecting
from ottla.storage.loading.found_log import FoundLog
from ottla.storage.loading.log_loader import LogCheckpoint, load_log
from ottla.storage.log.log_parts import LogLocation
from ottla.storage.log.partition_log import PartitionLog


class LoadJob:
    """The load of one log. It shares nothing that changes with the loads of other logs."""

    __slots__ = ("_config", "_error", "_location", "_log", "_progress", "checkpoint", "found", "is_synced", "reports")

    def __init__(
        self,
        found: FoundLog,
        location: LogLocation,
        config: LogConfig,
        checkpoint: LogCheckpoint,
        progress: Callable[[int], None],
    ) -> None:
        self.found, self.checkpoint = found, checkpoint
        self.is_synced = False  # whether nothing was found or changed that may not be on the disk
        self.reports: Sequence[Corruption] = ()  # of corruption that costs records
        self._location, self._config, self._progress = location, config, progress
        self._log: PartitionLog | None = None
        self._error: Exception | None = None

    def run(self) -> None:
        """Load the log. Does not raise: see `log`."""
        try:
            self.reports = collect_reports()
            try:
                self._log, self.is_synced = load_log(
                    self._location, self.found.topic_partition, self._config, self.checkpoint, self._progress
                )
            finally:
                stop_collecting()
        except Exception as error:  # noqa: BLE001 - raised where the log is taken
            self._error = error

    @property
    def log(self) -> PartitionLog:
        """The log that was loaded. Raises OSError or StorageError where it was not."""
        if self._error is not None:
            raise self._error
        assert self._log is not None
        return self._log


def run_jobs(jobs: Sequence[LoadJob]) -> None:
    """Load these logs one after the other. Does not raise."""
    for job in jobs:
        job.run()
