"""Flushes a log in three steps, so that the slow one can run in a worker thread.

    job = log.begin_flush()     on the loop: lists what is to be synced, and up to which offset
    job.run()                   in a thread: the fsyncs, nothing else
    log.complete_flush(job)     on the loop: advances the flushed offset

Appends continue in between; they belong to the next flush. The descriptor that wrote is the one that syncs: Linux
reports a failed write-back once, to descriptors that were open then. After a failed sync nothing is retried (the pages
are marked clean although they never reached the disk): the whole log directory goes offline, and the next start
recovers by scan. A failure before the sync (no space for a small file, no file handle) loses nothing: the flush is
retried later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from pathlib import PurePath

from ottla.core.errors import StorageError, SyncFailed
from ottla.core.files import File, FileSystem
from ottla.storage.directory_health import NO_HANDLES, DirectoryHealth
from ottla.storage.log.segment import Segment


def sync_before_gap(sealed: Segment, health: DirectoryHealth) -> None:
    """Sync a segment before the next one has records: recovery would take what a power cut takes of it for a gap.

    It keeps what comes after the gap of a compacted log. A follower would confirm those records to its leader, and
    count as a replica that has those before them, too. Raises StorageError.
    """
    if not sealed.is_dirty:
        return
    try:
        sealed.file.sync()
    except OSError as error:
        raise health.fail("fsync of a segment that is sealed", error) from error
    sealed.mark_clean()


class FlushJob:
    """Runs the pending fsyncs of one log: most often that of the active segment alone."""

    __slots__ = (
        "_files",
        "_open_files",
        "active",
        "active_bytes",
        "directories",
        "dirty",
        "end_offset",
        "error",
        "is_done",
        "paths",
        "refusal",
        "sealed",
        "syncs",
        "truncation_count",
        "vanished",
    )

    def __init__(
        self,
        files: FileSystem,
        active: Segment,
        dirty: Sequence[Segment],
        *,
        end_offset: int,
        truncation_count: int,
        sealed: Sequence[Segment] = (),
        paths: Collection[PurePath] = (),
        directories: Collection[PurePath] = (),
    ) -> None:
        self._files = files
        self.active, self.active_bytes = active, active.size_bytes  # consumers will read up to there next
        self.dirty = dirty
        self._open_files: list[File] = []  # the descriptors that wrote
        for segment in dirty:
            self._open_files.append(segment.open_file or segment.file)
        self.sealed = sealed
        self.paths = paths
        self.directories = directories
        self.end_offset = end_offset
        self.truncation_count = truncation_count  # if the log was truncated since, `end_offset` is ignored
        self.error: OSError | None = None  # a sync failed: the directory is lost
        self.refusal: OSError | None = None  # no handle for a file: the job can be retried
        self.vanished: PurePath | None = None  # the written file that another program removed
        self.syncs = len(dirty) + len(paths) + len(directories)  # how many fsyncs there are to run
        self.is_done = False

    def run(self) -> None:
        """Sync the files, in any thread. Raises StorageError if a sync fails; a job is never run twice.

        If no file handle is free to sync a closed file, nothing has failed: `refusal` has the error.
        """
        assert not self.is_done, "a flush is run once"
        try:
            for file in self._open_files:
                file.sync()
            if self._open_files and self.dirty[-1] is self.active and not self._open_files[-1].is_linked():
                self.vanished = self.active.log_path
            for path in sorted(self.paths):
                self._sync_path(path)
            for directory in sorted(self.directories):
                with contextlib.suppress(FileNotFoundError):  # the topic was deleted meanwhile
                    self._files.sync_directory(directory)
        except OSError as error:
            if error.errno in NO_HANDLES and not isinstance(error, SyncFailed):
                self.refusal = error
                return
            self.error = error
            raise StorageError(f"fsync failed: {error.strerror or error}") from error
        finally:
            self.is_done = True

    def leave_out(self, directory: PurePath) -> bool:
        """Leave the sync of a directory to the caller; returns whether it was pending."""
        if directory not in self.directories:
            return False
        self.directories = {path for path in self.directories if path != directory}
        self.syncs -= 1
        return True

    def run_without_raising(self) -> None:
        """Run the job; `complete_flush` raises its error."""
        with contextlib.suppress(StorageError):
            self.run()

    def _sync_path(self, path: PurePath) -> None:
        try:
            file = self._files.open(path)
        except FileNotFoundError:
            return  # deleted meanwhile
        try:
            file.sync()
        finally:
            file.close()
