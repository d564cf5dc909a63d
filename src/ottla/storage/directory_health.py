"""Knows whether a log directory can be written: it may be full for a while, or offline until a restart."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from typing import Final

from ottla.core.errors import StorageError, SyncFailed
from ottla.core.events import EventKind, EventLog

NO_HANDLES: Final = frozenset({errno.EMFILE, errno.ENFILE})
NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_PASSING: Final = NO_HANDLES | NO_SPACE
_LOG_INTERVAL_SECONDS: Final = 60.0
_MISSING_LOGGED_MAX: Final = 10_000
logger = logging.getLogger(__name__)


def has_no_space(error: OSError) -> bool:
    """Return whether a write failed because the disk is full or a quota is used up; nothing was lost."""
    return error.errno in NO_SPACE and not isinstance(error, SyncFailed)


def is_passing(error: OSError) -> bool:
    """Return whether an error means that space or file handles are exhausted for now, and not that the disk failed."""
    return error.errno in _PASSING and not isinstance(error, SyncFailed)


def _nothing_to_free() -> bool:
    """Return False: there is no reserve."""
    return False


class DirectoryHealth:
    """Tracks whether a log directory may still be written; shared by all of its logs.

    A transient error (no space, no file handles) fails the current request, and the write is retried. Any other error
    takes the directory offline until a restart, which scans the files. A directory with a space reserve is full from
    the first write that found no space until the reserve is whole and there is free space: it refuses records
    meanwhile. The begin and the end of each is logged once.
    """

    __slots__ = (
        "_has_reserve",
        "_is_logged",
        "_is_sync_noted",
        "_logged",
        "_logged_at",
        "_missing",
        "_now",
        "_on_failed_sync",
        "_release_reserve",
        "_slow_logged_at",
        "events",
        "failed_appends",
        "failure",
        "is_full",
        "name",
        "on_failure",
        "refusal",
        "retention_requests",
    )

    def __init__(
        self, name: str, *, now: Callable[[], float], on_failed_sync: Callable[[str], None] | None = None
    ) -> None:
        self.name = name
        self._now = now  # seconds that only grow
        self.failure: str | None = None
        self.events: EventLog | None = None  # the broker sets it
        self._slow_logged_at = -_LOG_INTERVAL_SECONDS
        self.failed_appends = 0  # unexpectedly
        self.refusal: str | None = None  # the transient error of the last write, if it failed
        self.on_failure: Callable[[StorageError], None] | None = None  # called once, maybe in another thread
        self._on_failed_sync = on_failed_sync  # called with the first one, maybe in another thread
        self._is_sync_noted = False
        self._release_reserve: Callable[[], bool] = _nothing_to_free
        self._has_reserve = False
        self.is_full = False  # records are refused
        self.retention_requests = 0  # how often a command has made records deletable
        self._logged, self._logged_at, self._is_logged = "", 0.0, False  # the last error logged, when, and if it lasts
        self._missing: set[str] = set()  # missing files that were logged

    def fail(self, what: str, error: OSError) -> StorageError:
        """Take the directory offline until a restart; returns the error to raise."""
        if isinstance(error, SyncFailed):
            self.note_failed_sync(f"{what}: {error.strerror or error}")
        if self.failure is None:
            self.failure = f"{what}: {error.strerror or error}"
            logger.error("log directory %s is offline until a restart: %s", self.name, self.failure)
            self._record(f"log directory {self.name} is offline until a restart: {self.failure}")
            if self.on_failure is not None:
                self.on_failure(StorageError(self.failure))
        return StorageError(self.failure)

    def note_failed_append(self, place: str, error: Exception) -> None:
        """Log that an append failed unexpectedly: the 1st, 2nd, 4th time, not at every attempt of a client."""
        times = self.failed_appends = self.failed_appends + 1
        if not times & (times - 1):
            text = "append to %s failed, %d times now; what it wrote is removed. Please report this as a bug"
            logger.error(text, place, times, exc_info=error)

    def note_failed_sync(self, what: str) -> None:
        """Leave a mark for the next start, once: the page cache may have what the disk has not."""
        if self._on_failed_sync is not None and not self._is_sync_noted:
            self._is_sync_noted = True
            self._on_failed_sync(what)

    def refused(self, what: str, error: OSError) -> StorageError:
        """Handle a write that failed and was undone, or can be retried; returns the error to raise for the request."""
        if not is_passing(error):
            return self.fail(what, error)
        self.refusal = why = error.strerror or str(error)
        if self._has_reserve and has_no_space(error):
            self.fill_up(what, why)
            return StorageError(f"{what}: {why}")
        now = self._now()
        is_new = not self._is_logged and now - self._logged_at > _LOG_INTERVAL_SECONDS  # it may come and go
        if why != self._logged or is_new:
            self._logged, self._logged_at, self._is_logged = why, now, True
            logger.warning("log directory %s: %s (%s); writes are retried", self.name, why, what)
            self._record(f"log directory {self.name} refuses writes: {why} ({what})")
        return StorageError(f"{what}: {why}")

    def fill_up(self, what: str, why: str) -> None:
        """Refuse records from now on, because a write has found no space."""
        if self.is_full:
            return
        self.is_full = True
        self._record(f"log directory {self.name} is full and refuses records: {why} ({what})")
        if not self._is_logged or why != self._logged:  # it may have begun while the logs were loaded
            logger.warning(
                "log directory %s is full: %s (%s). Records are refused until there is free space: delete topics or "
                "records, or lower retention.bytes",
                self.name,
                why,
                what,
            )

    def space_found(self) -> None:
        """Accept records again: there is free space."""
        if not self.is_full:
            return
        self.is_full, self.refusal, self._is_logged = False, None, False
        logger.info("log directory %s has free space and accepts records again", self.name)
        self._record(f"log directory {self.name} has free space and accepts records again")

    def slow_sync(self, seconds: float, syncs: int) -> None:
        """Note that a round of fsyncs took long; logged once a minute."""
        now = self._now()
        text = f"fsync in log directory {self.name} took {seconds:.1f} s for {syncs} files"
        if self.events is not None:
            numbers = {"seconds": round(seconds, 3), "files": syncs}
            self.events.record(EventKind.SLOW_FSYNC, text, numbers=numbers)
        if now - self._slow_logged_at >= _LOG_INTERVAL_SECONDS:
            self._slow_logged_at = now
            logger.warning("%s: the disk is slow or shared (ottla.slow.fsync.ms)", text)

    def _record(self, cause: str) -> None:
        if self.events is not None:
            self.events.record(EventKind.DISK, cause)

    def use_reserve(self, release: Callable[[], bool]) -> None:
        """Use a space reserve, whose `release` returns whether it freed space."""
        self._release_reserve, self._has_reserve = release, True

    def make_space(self) -> bool:
        """Release the space reserve; return whether that freed space, so that a write may be repeated."""
        return self._release_reserve()

    def run_with_reserve(self, write: Callable[[], None]) -> None:
        """Run a write, and once more if the space reserve could be freed for it. Raises its StorageError or OSError."""
        try:
            write()
        except (StorageError, OSError):
            if self.failure is not None or not self.make_space():
                raise
            write()

    def missing(self, what: str, path: str) -> StorageError:
        """Log a missing file of one log, once; returns the error to raise for the request."""
        if path not in self._missing:
            if len(self._missing) >= _MISSING_LOGGED_MAX:
                self._missing.clear()
            self._missing.add(path)
            logger.error(
                "%s is missing (%s). Another program has removed or moved it. Restore it and restart the broker",
                path,
                what,
            )
        missing = StorageError(f"{what}: {path} is missing")
        missing.missing_path = path
        return missing

    def accepted(self) -> None:
        """Clear the transient error after a successful write and sync; a full directory stays so."""
        if self.refusal is not None and not self.is_full:
            self.refusal = None
            if self._is_logged:
                self._is_logged = False
                logger.info("log directory %s accepts writes again", self.name)

    def check(self) -> None:
        """Raise StorageError if the directory is offline."""
        if self.failure is not None:
            raise StorageError(self.failure)

    def check_append(self) -> None:
        """Raise StorageError if no records may be written."""
        self.check()
        if self.is_full:
            raise StorageError(f"log directory {self.name} is full: records are refused until there is free space")
