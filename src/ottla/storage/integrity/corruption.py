"""Describes corruption: one value for the place and the fault, one error, one log line.

A disk may return other bytes than were written to it. A running broker never sends corrupt data, never truncates it and
never repairs it by guessing: reads of exactly these offsets are refused (with CORRUPT_MESSAGE, which every client
passes to its application instead of retrying it for ever), other reads continue, and the log reports the fault and the
next action once.
"""

from __future__ import annotations

import logging
import threading
from pathlib import PurePath
from typing import NamedTuple

from ottla.core.errors import CorruptMessage

logger = logging.getLogger(__name__)

ANYWHERE = -1

RECORDS_ADVICE = (
    "Copy the partition from another replica or a backup, or let consumers seek past these offsets; "
    "`ottla log verify` lists all corruption"
)
CACHE_ADVICE = "No action is needed: the broker rebuilds it from the log at its next use, or at its next start"
CHECKPOINT_ADVICE = "No action is needed: the broker restores it from its own copy, at the latest at its next start"


class Corruption(NamedTuple):
    """A part of a file that is not as it was written."""

    file: PurePath
    what: str  # a clause: "its checksum does not match"
    advice: str
    position: int = ANYWHERE
    size_bytes: int = 0
    first_offset: int = ANYWHERE
    last_offset: int = ANYWHERE
    costs_records: bool = False  # otherwise the file can be rebuilt

    def __str__(self) -> str:
        where = f"{self.file}"
        if self.position != ANYWHERE:
            where += f", bytes {self.position} to {self.position + self.size_bytes - 1}"
        if self.first_offset != ANYWHERE:
            where += f", offsets {self.first_offset} to {self.last_offset}"
        return f"{where}: {self.what}"


class _Collecting(threading.local):
    """The list of a caller that collects what is reported during its work, in this thread."""

    reports: list[Corruption] | None = None


_collecting = _Collecting()


def collect_reports() -> list[Corruption]:
    """Collect the reports of corruption that costs records from now on, in the list that is returned."""
    corruptions: list[Corruption] = []
    _collecting.reports = corruptions
    return corruptions


def stop_collecting() -> None:
    """Collect no longer."""
    _collecting.reports = None


def report_corruption(corruption: Corruption) -> None:
    """Log the corruption, with the next action."""
    if corruption.costs_records and _collecting.reports is not None:
        _collecting.reports.append(corruption)
    level = logging.ERROR if corruption.costs_records else logging.WARNING
    logger.log(level, "corruption found in %s. %s", corruption, corruption.advice)


def corruption_error(corruption: Corruption) -> CorruptMessage:
    """Return the error for a read of these offsets."""
    return CorruptMessage(f"the log is corrupt: {corruption}")
