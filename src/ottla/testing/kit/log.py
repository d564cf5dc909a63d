"""Keeps the log of the brokers of one kit, and no other's, though all write to the loggers of one process."""

from __future__ import annotations

import logging
import threading
from collections import deque

from ottla.testing.kit.thread import LoopThread

_LINES_MAX = 10_000
_FORMAT = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
_ROOT = "ottla"
_lock = threading.Lock()
_begun: set[CapturedLog] = set()
_levels: list[int] = []  # of the logger, before the first of them began


class CapturedLog(logging.Handler):
    """The last lines of the brokers' log, oldest first."""

    def __init__(self, thread: LoopThread) -> None:
        super().__init__()
        self._thread = thread
        self.lines: deque[str] = deque(maxlen=_LINES_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line, if brokers of this kit wrote it."""
        if self._thread.owns(record.threadName or ""):
            self.lines.append(_FORMAT.format(record))

    def begin(self) -> None:
        """Begin to keep lines, from INFO on, unless the test has set another level."""
        logger = logging.getLogger(_ROOT)
        with _lock:
            if not _begun:
                _levels[:] = [logger.level]
                if logger.level == logging.NOTSET:
                    logger.setLevel(logging.INFO)
            _begun.add(self)
        logger.addHandler(self)

    def end(self) -> None:
        """Keep no more lines. The last one that ends restores the level."""
        logger = logging.getLogger(_ROOT)
        logger.removeHandler(self)
        with _lock:
            _begun.discard(self)
            if not _begun and _levels == [logging.NOTSET] and logger.level == logging.INFO:
                logger.setLevel(logging.NOTSET)

    def __str__(self) -> str:
        return "\n".join(self.lines)
