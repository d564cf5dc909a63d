"""Keeps the log of the brokers of one kit, and no other's, though all write to the loggers of one process.

What they write is for their kit alone: handlers of the test and of its runner, such as pytest's `caplog`, see what the
tested code logs.
"""

from __future__ import annotations

import logging
import threading
from collections import deque

from ottla.testing.kit.thread import LoopThread

_LINES_MAX = 10_000
_FORMAT = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")


class CapturedLog:
    """The last lines of the brokers' log, oldest first."""

    def __init__(self, thread: LoopThread) -> None:
        self._thread = thread
        self.lines: deque[str] = deque(maxlen=_LINES_MAX)

    def takes(self, record: logging.LogRecord) -> bool:
        """Keep a line, if brokers of this kit wrote it; return whether they did."""
        is_own = self._thread.owns(record.threadName or "")
        if is_own:
            self.lines.append(_FORMAT.format(record))
        return is_own

    def begin(self) -> None:
        """Begin to keep lines, from INFO on, unless the test has set another level."""
        _router.add(self)

    def end(self) -> None:
        """Keep no more lines."""
        _router.remove(self)

    def __str__(self) -> str:
        return "\n".join(self.lines)


class _Router(logging.Handler):
    """Gives each line to the kit whose brokers wrote it; one that none of them wrote takes its usual way.

    While brokers run their loggers have no parent. `propagate` would not do: pytest adds its handlers to each logger
    that does not propagate.
    """

    def __init__(self) -> None:
        super().__init__()
        self._logger = logging.getLogger("ottla")
        self._kits: tuple[CapturedLog, ...] = ()
        self._level, self._parent = logging.NOTSET, self._logger.parent  # as they were before
        self._changes = threading.Lock()

    def add(self, kit: CapturedLog) -> None:
        """Give a kit the lines of its brokers."""
        with self._changes:
            if not self._kits:
                self._begin()
            self._kits = (*self._kits, kit)

    def remove(self, kit: CapturedLog) -> None:
        """Give a kit no more lines."""
        with self._changes:
            if kit not in self._kits:
                return
            self._kits = tuple(other for other in self._kits if other is not kit)
            if not self._kits:
                self._end()

    def _begin(self) -> None:
        logger = self._logger
        self._level, self._parent, logger.parent = logger.level, logger.parent, None
        logger.setLevel(self._level or logging.INFO)
        logger.addHandler(self)

    def _end(self) -> None:
        self._logger.removeHandler(self)
        self._logger.parent = self._parent
        self._logger.setLevel(self._level)

    def emit(self, record: logging.LogRecord) -> None:
        """Give a line to its kit, or to the handlers that it would have reached."""
        if any(kit.takes(record) for kit in self._kits) or not self._logger.propagate:
            return
        if (parent := self._parent) is not None and (self._level or record.levelno >= parent.getEffectiveLevel()):
            parent.callHandlers(record)


_router = _Router()
