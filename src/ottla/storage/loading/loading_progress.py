"""Logs the progress of a long start: one line a second, none for a start that takes less."""

from __future__ import annotations

import logging
import threading
from pathlib import PurePath

from ottla.core.clock import Clock

logger = logging.getLogger(__name__)

EVERY_SECONDS = 1.0
_MIB = 1 << 20


class LoadingProgress:
    """One directory's loading, of so many logs. `scanned` may be called in several threads."""

    __slots__ = ("_clock", "_loaded", "_lock", "_path", "_scanned_bytes", "_shown_at", "_started_at", "_total")

    def __init__(self, clock: Clock, path: PurePath, total: int) -> None:
        self._clock, self._path, self._total = clock, path, total
        self._loaded = self._scanned_bytes = 0
        self._started_at = self._shown_at = clock.monotonic()
        self._lock = threading.Lock()

    def scanned(self, size_bytes: int) -> None:
        """Note that so many more bytes of a log were checked."""
        with self._lock:
            self._scanned_bytes += size_bytes
            self._show()

    def loaded(self, count: int) -> None:
        """Note that so many more logs are loaded."""
        with self._lock:
            self._loaded += count
            self._show()

    def ended(self) -> None:
        """Log how long it took, unless that was short: it is not worth a line."""
        if self._shown_at > self._started_at:
            took = self._clock.monotonic() - self._started_at
            logger.info("%s: all %d logs loaded in %.1f s%s", self._path, self._total, took, self._scanned())

    def _show(self) -> None:
        now = self._clock.monotonic()
        if now - self._shown_at >= EVERY_SECONDS:
            self._shown_at = now
            logger.info("loading %s: %d of %d logs%s", self._path, self._loaded, self._total, self._scanned())

    def _scanned(self) -> str:
        return f", {self._scanned_bytes // _MIB} MiB checked" if self._scanned_bytes else ""
