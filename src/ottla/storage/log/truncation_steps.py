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
