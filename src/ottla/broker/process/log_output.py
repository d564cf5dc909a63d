"""Writes the log of the broker process to standard error, or to a file that is reopened after log rotation.

Of a warning or error with the same text so many a minute are written; the end of the minute says how many were left
out.
"""

from __future__ import annotations

import logging
import os
import sys
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TextIO

log = logging.getLogger(__name__)

TEXT_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
REPEATS_MAX: Final = 5
"""So many equal warnings are written in an interval."""
INTERVAL_S: Final = 60.0
TEXTS_MAX: Final = 1_000


class Repeats:
    """Decides which warnings are written."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, int, str], list[float]] = OrderedDict()  # begin of the interval, count

    def admit(self, record: logging.LogRecord) -> bool:
        """Count a record; return whether it is written."""
        if record.levelno < logging.WARNING:
            return True
        key = (record.name, record.levelno, record.getMessage())
        seen = self._seen.get(key)
        if seen is None or record.created - seen[0] >= INTERVAL_S:
            self._seen[key] = [record.created, 1]
            return True
        seen[1] += 1
        return seen[1] <= REPEATS_MAX

    def over(self, now: float) -> Iterator[logging.LogRecord]:
        """Yield a record for each text of which some were left out in an interval that is over."""
        while self._seen:
            key, (began, count) = next(iter(self._seen.items()))
            if now - began < INTERVAL_S and len(self._seen) <= TEXTS_MAX:
                return
            del self._seen[key]
            if count > REPEATS_MAX:
                name, level, text = key
                left_out = int(count) - REPEATS_MAX
                yield logging.makeLogRecord(
                    {
                        "name": name,
                        "levelno": level,
                        "levelname": logging.getLevelName(level),
                        "msg": f"{text} (repeated {left_out} more times in {now - began:.0f} s)",
                        "created": now,
                        "msecs": now % 1 * 1000,
                        "repeated": left_out,
                    }
                )


class LineFormatter(logging.Formatter):
    """Writes a message in one line, whatever texts of clients it has: a line break could begin a forged line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name in logging
        """Return the line, with characters that are not printed as escapes; a traceback follows it."""
        line = super().formatMessage(record)
        if line.isprintable():
            return line
        return "".join(
            letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in line
        )


class LimitedHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes records to a stream, the same warning a few times a minute."""

    def __init__(self, stream: object) -> None:
        super().__init__(stream)
        self._repeats = Repeats()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, and before it the counts of those that were left out."""
        for summary in tuple(self._repeats.over(record.created)):
            super().emit(summary)
        if self._repeats.admit(record):
            super().emit(record)


class LogOutput:
    """Owns the stream of the log: `reopen` opens the file again by its path, as log rotation needs it."""

    def __init__(self, path: Path | None = None) -> None:
        """Open the log; raises OSError if the file cannot be opened."""
        self.path = path
        self._handler = LimitedHandler(sys.stderr if path is None else self._open(path))

    def install(self) -> None:
        """Make this the output of all loggers. The level is OTTLA_LOG_LEVEL, by default INFO."""
        self._handler.setFormatter(LineFormatter(TEXT_FORMAT))
        logging.basicConfig(level=os.environ.get("OTTLA_LOG_LEVEL", "INFO").upper(), handlers=[self._handler])
        logging.getLogger("asyncio").setLevel(logging.WARNING)

    def use_format(self, name: str) -> None:
        """Write records as the setting ottla.log.format says, from now on."""
        if name != "text":
            from ottla.broker.process.log_format import formatter_of

            self._handler.setFormatter(formatter_of(name))

    @property
    def stream(self) -> TextIO:
        """Return the stream that is written to now."""
        stream: TextIO = self._handler.stream
        return stream

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
