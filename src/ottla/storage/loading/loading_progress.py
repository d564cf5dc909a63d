"""Logs the progress of a long start: one line a second, none for a start that takes less."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import TypeVar

from ottla.core.clock import Clock

logger = logging.getLogger(__name__)

EVERY_SECONDS = 1.0
_MIB = 1 << 20
T = TypeVar("T")


class LoadingProgress:
    """One directory's loading."""

    __slots__ = ("_clock", "_loaded", "_path", "_scanned_bytes", "_shown_at", "_started_at", "_total")

    def __init__(self, clock: Clock, path: PurePath) -> None:
        self._clock, self._path = clock, path
        self._loaded = self._scanned_bytes = self._total = 0
        self._started_at = self._shown_at = clock.monotonic()

    def scanned(self, size_bytes: int) -> None:
        """Note that so many more bytes of a log were checked."""
        self._scanned_bytes += size_bytes
        self._show()

    def over(self, logs: Sequence[T]) -> Iterator[T]:
        """Yield the logs to load one by one; a log counts as loaded when the next one is requested."""
        self._total = len(logs)
        for log in logs:
            yield log
            self._loaded += 1
            self._show()
        if self._shown_at > self._started_at:  # a short start is not worth a line
            took = self._clock.monotonic() - self._started_at
            logger.info("%s: all %d logs loaded in %.1f s%s", self._path, self._total, took, self._scanned())

    def _show(self) -> None:
        now = self._clock.monotonic()
        if now - self._shown_at >= EVERY_SECONDS:
            self._shown_at = now
            logger.info("loading %s: %d of %d logs%s", self._path, self._loaded, self._total, self._scanned())

    def _scanned(self) -> str:
        return f", {self._scanned_bytes // _MIB} MiB checked" if self._scanned_bytes else ""
