"""Loads logs in threads: all file operations of their loads, and what they found."""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from functools import partial

from ottla.storage.config import LogConfig
from ottla.storage.integrity.corruption import Corruption, collect_reports, stop_collecting
from ottla.storage.loading.found_log import FoundLog
from ottla.storage.loading.log_loader import LogCheckpoint, load_log
from ottla.storage.log.log_parts import LogLocation
from ottla.storage.log.partition_log import PartitionLog

_LOADERS = 2
"""Threads that load logs while the disk is read: one computes while the other waits. More only contend."""


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


class Loaders:
    """Loads logs in one thread, and in several while their files are read from the disk.

    What is in the system's memory needs the interpreter alone, for which several threads only contend: each hands it
    over at every system call, and two take twice the processor time of one, and longer.
    """

    __slots__ = ("_blocks_read", "_last_blocks", "_last_count", "_threads_max")

    def __init__(self, threads: int, blocks_read: Callable[[], int] | None = None) -> None:
        self._threads_max = min(threads, _LOADERS)
        self._blocks_read = blocks_read or _blocks_of_process
        self._last_count, self._last_blocks = 0, self._blocks_read()

    def split(self, jobs: Sequence[LoadJob]) -> list[Callable[[], None]]:
        """Return functions that load these logs, to be run beside each other. They do not raise."""
        count = 1
        if self._threads_max > 1:
            before, self._last_blocks = self._last_blocks, self._blocks_read()
            if self._last_blocks - before > self._last_count:  # more than a block for each log of the last call
                count = self._threads_max
        self._last_count = len(jobs)
        return [partial(_run, jobs[first::count]) for first in range(count)]


def _blocks_of_process() -> int:
    """Return how many blocks of files this process has had read from a disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_inblock


def _run(jobs: Sequence[LoadJob]) -> None:
    for job in jobs:
        job.run()
