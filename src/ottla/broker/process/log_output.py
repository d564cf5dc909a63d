"""Writes the log of the broker process to standard error, or to a file that is reopened after log rotation."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TextIO

log = logging.getLogger(__name__)
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class LogOutput:
    """Owns the stream of the log: `reopen` opens the file again by its path, as log rotation needs it."""

    def __init__(self, path: Path | None = None) -> None:
        """Open the log; raises OSError if the file cannot be opened."""
        self.path = path
        self._handler = logging.StreamHandler(sys.stderr if path is None else self._open(path))

    def install(self) -> None:
        """Make this the output of all loggers. The level is OTTLA_LOG_LEVEL, by default INFO."""
        logging.basicConfig(
            level=os.environ.get("OTTLA_LOG_LEVEL", "INFO").upper(), format=_FORMAT, handlers=[self._handler]
        )
        logging.getLogger("asyncio").setLevel(logging.WARNING)

    @property
    def stream(self) -> TextIO:
        """Return the stream that is written to now."""
        return self._handler.stream

    def reopen(self) -> None:
        """Open the file again and close the old one; if that fails, continue with the old one."""
        if self.path is None:
            return
        try:
            opened = self._open(self.path)
        except OSError as error:
            log.error("cannot reopen the log file %s: %s. The log continues in the old file", self.path, error.strerror)  # noqa: TRY400 - the error has no more to show
            return
        old = self._handler.setStream(opened)
        if old is not None:
            old.close()

    @staticmethod
    def _open(path: Path) -> TextIO:
        return path.open("a", encoding="utf-8", errors="backslashreplace", buffering=1)
