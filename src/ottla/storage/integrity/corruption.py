"""What damage is called: one value for what is wrong and where, one error, one log line.

A disk may give back other bytes than it was given. What is found to be so is never sent, never cut off and never
mended by guessing on a running broker: a reader of just these offsets is refused (CORRUPT_MESSAGE, which every client
hands to its program instead of asking again for ever), readers of others go on, and the log says once what to do.
"""

from __future__ import annotations

import logging
from pathlib import PurePath
from typing import NamedTuple

from ottla.core.errors import CorruptMessage

logger = logging.getLogger(__name__)

ANYWHERE = -1

RECORDS_ADVICE = (
    "copy the partition from another replica or a backup, or let readers seek past these offsets; "
    "`ottla log verify` says what else is damaged"
)
CACHE_ADVICE = "nothing: the broker makes it anew from the log at its next use, or at the latest at its next start"
CHECKPOINT_ADVICE = "nothing: the broker uses its own copy at its next start, and writes the file anew"


class Corruption(NamedTuple):
    """Something that is not as it was written."""

    file: PurePath
    what: str  # a clause: "its checksum does not fit"
    advice: str
    position: int = ANYWHERE
    size_bytes: int = 0
    first_offset: int = ANYWHERE
    last_offset: int = ANYWHERE
    costs_records: bool = False  # otherwise something that can be rebuilt

    def __str__(self) -> str:
        where = f"{self.file}"
        if self.position != ANYWHERE:
            where += f", bytes {self.position} to {self.position + self.size_bytes - 1}"
        if self.first_offset != ANYWHERE:
            where += f", offsets {self.first_offset} to {self.last_offset}"
        return f"{where}: {self.what}"


def report_corruption(damage: Corruption) -> None:
    """One line for the person who runs the broker."""
    level = logging.ERROR if damage.costs_records else logging.WARNING
    logger.log(level, "damage found: %s. What to do: %s", damage, damage.advice)


def corruption_error(damage: Corruption) -> CorruptMessage:
    """The error for a reader of these offsets."""
    return CorruptMessage(f"the log is damaged: {damage}")
