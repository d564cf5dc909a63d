"""Separates a truncation into steps that change a log, and the syncs between them, which may run in another thread.

A truncation is a generator. It yields what must be on the disk before it continues: `None` for the checkpoint files of
the directory, with the recovery point that the log has now, or a `TruncationSync`. If that fails the error is thrown
into the generator, which raises the StorageError that it means. `run_truncation` runs one here and now;
`replication/truncations.py` runs those of many partitions together, off the event loop.

Truncation renames files out of the way at once and removes them later, so that readers finish. What is removed from the
end is synced before anything else happens: if a power cut undid the truncation, batches of the old and of the new
leader could both be in the log, each valid; and with a recovery point above the new end recovery would skip them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import PurePath

from ottla.core.errors import StorageError
from ottla.core.files import File, FileSystem
from ottla.storage.log.flush import DirectoryHealth
from ottla.storage.log.pending_flush import PendingFlush


class TruncationSync:
    """Syncs a file, a directory, both, or nothing."""

    __slots__ = ("_directory", "_file", "_files")

    def __init__(self, files: FileSystem, file: File | None, directory: PurePath | None) -> None:
        self._files, self._file, self._directory = files, file, directory

    def run(self) -> None:
        """Run the syncs, in any thread. Raises OSError."""
        if self._file is not None:
            self._file.sync()
        if self._directory is not None:
            self._files.sync_directory(self._directory)


Truncation = Generator[TruncationSync | None, None, None]


def run_truncation(steps: Truncation, checkpoint: Callable[[], None]) -> None:
    """Run all steps of a truncation and its syncs. Raises StorageError."""
    error: OSError | StorageError | None = None
    while True:
        try:
            sync = next(steps) if error is None else steps.throw(error)
        except StopIteration:
            return
        error = None
        try:
            if sync is None:
                checkpoint()
            else:
                sync.run()
        except (OSError, StorageError) as failed:
            error = failed


class TruncationState:
    """Counts the truncations of a log: what began before one does not cover what was written after it.

    The steps of `begin` and `end` surround those that change files. The recovery point on the disk is lowered before a
    file is changed, and is written again before anything that follows the truncation counts.
    """

    __slots__ = ("_health", "_limit", "_pending_flush", "count")

    def __init__(self, pending_flush: PendingFlush, health: DirectoryHealth) -> None:
        self._pending_flush = pending_flush
        self._health = health
        self._limit: int | None = None  # while a truncation runs: recovery must not begin after it
        self.count = 0

    @property
    def is_running(self) -> bool:
        """Whether a truncation has begun and not ended."""
        return self._limit is not None

    def recovery_point(self, flushed_offset: int) -> int:
        """Return the offset at which recovery has to begin after a crash."""
        return flushed_offset if self._limit is None else min(flushed_offset, self._limit)

    def begin(self, flushed_offset: int, first_changed: int) -> Truncation:
        """Lower the recovery point, before a file is touched: the next start must scan what a crash leaves."""
        limit, before = self._limit, self.recovery_point(flushed_offset)
        self.count += 1  # now and at the end: what began meanwhile is overtaken, too
        self._limit = min(before, first_changed)
        if before <= first_changed and not self._pending_flush.needs_checkpoint:
            return  # the checkpoint files have nothing above it
        try:
            yield None
        except StorageError:
            self._limit = limit  # nothing has changed
            raise

    def end(self) -> Truncation:
        """Note the lower recovery point on the disk, before anything written after the truncation counts."""
        self.count += 1
        self._limit = None
        self._pending_flush.require_checkpoint()
        try:
            yield None
            self._pending_flush.checkpointed()
        except StorageError:
            if self._health.failure is not None:  # otherwise the next flush begins with it
                raise

    def continue_from(self, other: TruncationState) -> None:
        """Continue the count of another log, which this one replaces."""
        self.count = other.count
