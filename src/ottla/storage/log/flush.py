"""Making a log durable, in three steps, so that the slow one can run in a worker thread.

    job = log.begin_flush()     on the loop: what is to be synced, and up to which offset that will count
    job.run()                   in a thread: the fsyncs, nothing else
    log.complete_flush(job)     on the loop: only now do the offsets count

Appends go on in between; they belong to the next flush. The descriptor that wrote is the one that syncs: Linux tells of
a failed write-back once, to descriptors that were open then. After a failure nothing is retried (the pages are marked
clean although they never reached the disk): the whole log directory goes offline, and the next start recovers by scan.
What fails before the sync (no room for a small file, no file handle) has lost nothing: the flush is tried again later.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import PurePath

from ottla.core.errors import StorageError, SyncFailed
from ottla.core.files import FileSystem
from ottla.storage.log.segment import Segment

NO_HANDLES = frozenset({errno.EMFILE, errno.ENFILE})
_PASSING = NO_HANDLES | {errno.ENOSPC, errno.EDQUOT}
_TOLD_AGAIN_SECONDS = 60.0
logger = logging.getLogger(__name__)


def is_passing(error: OSError) -> bool:
    """Whether an error says that there is no room or no file handle for now, and nothing of the disk itself."""
    return error.errno in _PASSING and not isinstance(error, SyncFailed)


class DirectoryHealth:
    """Whether a log directory may still be written; shared by all of its logs.

    Two kinds of trouble. A passing one (no room, no file handles) costs the request at hand, and what was to be written
    is tried again. Any other takes the directory offline until a restart, which scans the files. Each is logged once.
    """

    __slots__ = ("_is_told", "_now", "_told", "_told_at", "failure", "name", "on_failure", "refusal")

    def __init__(self, name: str, *, now: Callable[[], float]) -> None:
        self.name = name
        self._now = now  # seconds that only grow
        self.failure: str | None = None
        self.refusal: str | None = None  # the passing trouble there is, or was the last time something was written
        self.on_failure: Callable[[StorageError], None] | None = None  # told once, maybe in another thread
        self._told, self._told_at, self._is_told = "", 0.0, False  # what was logged last, when, and whether it lasts

    def fail(self, what: str, error: OSError) -> StorageError:
        """Take the directory offline for good; gives the error to raise."""
        if self.failure is None:
            self.failure = f"{what}: {error.strerror or error}"
            logger.error("log directory %s is offline until a restart: %s", self.name, self.failure)
            if self.on_failure is not None:
                self.on_failure(StorageError(self.failure))
        return StorageError(self.failure)

    def refused(self, what: str, error: OSError) -> StorageError:
        """Something failed and was undone, or can be done later. Costs this request, or the directory: see above."""
        if not is_passing(error):
            return self.fail(what, error)
        self.refusal = why = error.strerror or str(error)
        now = self._now()
        if why != self._told or now - self._told_at > _TOLD_AGAIN_SECONDS:
            self._told, self._told_at, self._is_told = why, now, True
            logger.warning("log directory %s: %s (%s); writes go on when that is over", self.name, why, what)
        return StorageError(f"{what}: {why}")

    def accepted(self) -> None:
        """Something was written and synced: what refused before is over."""
        if self.refusal is not None:
            self.refusal = None
            if self._is_told:
                self._is_told = False
                logger.info("log directory %s takes writes again", self.name)

    def check(self) -> None:
        """Raises StorageError if the directory is offline."""
        if self.failure is not None:
            raise StorageError(self.failure)


class FlushJob:
    """The pending fsyncs of one log, and what they cover. Most often that is the active segment alone."""

    __slots__ = (
        "_files", "_open_files", "active", "active_bytes", "directories", "dirty", "end_offset", "error", "is_done",
        "paths", "refusal", "sealed", "syncs", "truncation_count",
    )  # fmt: skip

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
        self._open_files = [segment.file for segment in dirty]  # the descriptors that wrote
        self.sealed = sealed
        self.paths = paths
        self.directories = directories
        self.end_offset = end_offset
        self.truncation_count = truncation_count  # if the log was truncated since, `end_offset` does not count
        self.error: OSError | None = None  # a sync failed: the directory is lost
        self.refusal: OSError | None = None  # there was no handle for a file: all of it can be done later
        self.syncs = len(dirty) + len(paths) + len(directories)  # how many fsyncs there are to run
        self.is_done = False

    def run(self) -> None:
        """Do it. May run in a thread of its own; touches files only. Raises StorageError, and is never tried again.

        Where there is no file handle to sync something by, nothing has failed: `refusal` has the error.
        """
        assert not self.is_done, "a flush is run once"
        try:
            for file in self._open_files:
                file.sync()
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

    def _sync_path(self, path: PurePath) -> None:
        try:
            file = self._files.open(path)
        except FileNotFoundError:
            return  # deleted meanwhile
        try:
            file.sync()
        finally:
            file.close()
