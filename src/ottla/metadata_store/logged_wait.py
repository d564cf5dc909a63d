"""Logs what the start of a broker waits for, if it takes long."""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Final, Self

LOG_AFTER_S: Final = 1.0
"""A shorter wait is not worth a line."""

log = logging.getLogger(__name__)


class LoggedWait:
    """A wait of the start. It logs one line once the wait has become long, and another one at its end.

    `reason` may be set meanwhile, for the first of the two lines. A failure is reported by the caller.
    """

    def __init__(self, what: str) -> None:
        self.reason = ""
        self._what = what
        self._loop = asyncio.get_running_loop()
        self._began = 0.0
        self._is_logged = False
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._began = self._loop.time()
        self._timer = self._loop.call_later(LOG_AFTER_S, self._log)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._timer is not None
        self._timer.cancel()
        if self._is_logged and error is None:
            log.info("waited %.1f s for %s", self._loop.time() - self._began, self._what)

    def _log(self) -> None:
        self._is_logged = True
        log.info("waiting for %s%s", self._what, f": {self.reason}" if self.reason else "")
