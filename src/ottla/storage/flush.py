"""Making a log durable, in three steps, so that the slow one can run in a worker thread.

    job = log.begin_flush()     on the loop: what is to be synced, and up to which offset that will count
    job.run()                   in a thread: the fsyncs, nothing else
    log.complete_flush(job)     on the loop: only now do the offsets count

Appends go on in between; they belong to the next flush. The descriptor that wrote is the one that syncs: Linux tells of
a failed write-back once, to descriptors that were open then. After a failure nothing is retried (the pages are marked
clean although they never reached the disk): the whole log directory goes offline, and the next start recovers by scan.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Sequence
from pathlib import PurePath

from ottla.core.errors import StorageError
from ottla.core.files import File, FileSystem
from ottla.storage.segment import Segment

_PASSING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})
logger = logging.getLogger(__name__)


class DirectoryHealth:
    """Whether a log directory may still be written; shared by all of its logs."""

    __slots__ = ("failure",)

    def __init__(self) -> None:
        self.failure: str | None = None

    def fail(self, what: str, error: OSError) -> StorageError:
        """Take the directory offline for good; gives the error to raise."""
        if self.failure is None:
            self.failure = f"{what}: {error.strerror or error}"
            logger.error("log directory offline", extra={"why": self.failure})
        return StorageError(self.failure)

    def refused(self, what: str, error: OSError) -> StorageError:
        """A write failed and was undone. Lack of room or descriptors costs this request; all else the directory."""
        if error.errno in _PASSING:
            return StorageError(f"{what}: {error.strerror or error}")
        return self.fail(what, error)

    def check(self) -> None:
        """Raises StorageError if the directory is offline."""
        if self.failure is not None:
            raise StorageError(self.failure)


class FlushJob:
    """One log's pending fsyncs."""

    __slots__ = (
        "_directories",
        "_files",
        "_open_files",
        "_paths",
        "boundary",
        "cuts",
        "end_offset",
        "error",
        "is_done",
    )

    def __init__(
        self,
        files: FileSystem,
        *,
        open_files: Sequence[File],
        paths: Sequence[PurePath],
        directories: Sequence[PurePath],
        end_offset: int,
        cuts: int,
        boundary: tuple[Segment, int],
    ) -> None:
        self._files = files
        self._open_files = open_files
        self._paths = paths  # of small files that were written and closed: sealed indexes, snapshots, epochs
        self._directories = directories  # whose names changed
        self.end_offset = end_offset
        self.boundary = boundary  # where `end_offset` lies: consumers will read up to there next
        self.cuts = cuts  # of the log when this began: a truncation since makes `end_offset` a lie
        self.error: OSError | None = None
        self.is_done = False

    def run(self) -> None:
        """Do it. May run in a thread of its own; touches files only. Raises StorageError, and is never tried again."""
        assert not self.is_done, "a flush is run once"
        try:
            for file in self._open_files:
                file.sync()
            for path in self._paths:
                self._sync_path(path)
            for directory in self._directories:
                with contextlib.suppress(FileNotFoundError):  # the topic was deleted meanwhile
                    self._files.sync_directory(directory)
        except OSError as error:
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
