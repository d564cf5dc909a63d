"""Keeps the log of the brokers of one kit, and no other's, though all write to the loggers of one process."""

from __future__ import annotations

import logging
from collections import deque

from ottla.testing.kit.thread import LoopThread

_LINES_MAX = 10_000
_FORMAT = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
_ROOT = "ottla"


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
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
        logger.addHandler(self)

    def end(self) -> None:
        """Keep no more lines."""
        logging.getLogger(_ROOT).removeHandler(self)

    def __str__(self) -> str:
        return "\n".join(self.lines)
