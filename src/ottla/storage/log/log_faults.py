"""Tracks the corrupt and missing parts of a log, so that they can be fetched again from another replica.

Nothing here is on the disk: a start finds again what it can see, and reads and the scrubber the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ottla.storage.integrity.corruption import ANYWHERE, Corruption


class FaultyRange(NamedTuple):
    """Offsets to be fetched again: those of a segment, or a gap before one."""

    first_offset: int
    end_offset: int
    is_segment: bool  # a segment begins there, and is replaced; otherwise one is added


def _ignore() -> None:
    """Do nothing: the log is fetched from no other replica."""


class LogFaults:
    """Holds the faults of one log. Changed on the loop only."""

    __slots__ = ("first_offsets", "is_start_uncertain", "listener", "lost_start", "producers_from")

    def __init__(self, *, lost_start: int | None = None, is_start_uncertain: bool = False) -> None:
        # Where a faulty segment begins, or a gap after one that lost its end.
        self.first_offsets: set[int] = set()
        # Where the log began before its first segments were lost, for the checkpoints that are written until a replica
        # of the log decides where it begins now.
        self.lost_start = lost_start
        self.is_start_uncertain = is_start_uncertain  # the first segments may be lost, or not
        # From there on the state of producers, and aborted transactions, were replayed from a faulty log.
        self.producers_from: int | None = 0 if lost_start is not None or is_start_uncertain else None
        self.listener: Callable[[], None] = _ignore

    def note(self, first_offset: int) -> None:
        """Note that the segment which begins there is faulty, or that one is missing there."""
        if first_offset not in self.first_offsets:
            self.first_offsets.add(first_offset)
            self.listener()

    def note_at_start(self, first_offset: int) -> None:
        """Note what a start has found in the segments from which it replayed the state of producers."""
        self.producers_from = min(first_offset, first_offset if self.producers_from is None else self.producers_from)
        self.note(first_offset)

    def forget(self) -> None:
        """Forget all: the log has no records any more."""
        self.first_offsets.clear()
        self.lost_start = self.producers_from = None
        self.is_start_uncertain = False


def faulty_from(corruption: Corruption) -> int:
    """Return where a `.log` is faulty: at its base offset, or, if it lost its end, after its last batch."""
    if corruption.position != ANYWHERE and not corruption.size_bytes:
        return corruption.first_offset
    return int(corruption.file.name.partition(".")[0])
