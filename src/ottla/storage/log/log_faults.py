"""Tracks the corrupt and missing parts of a log, so that they can be fetched again from another replica.

Nothing here is on the disk: a start finds again what it can see, and reads and the scrubber the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from ottla.core.ids import TopicPartition
from ottla.storage.integrity.corruption import ANYWHERE, Corruption


class FaultyRange(NamedTuple):
    """Offsets to be fetched again: those of a segment, or a gap before one."""

    first_offset: int
    end_offset: int
    is_segment: bool  # a segment begins there, and is replaced; otherwise one is added


FaultListener = Callable[[TopicPartition], None]
"""Called with the partition of a log in which a fault was found."""


def _ignore(topic_partition: TopicPartition) -> None:
    """Do nothing: the log is fetched from no other replica."""
    del topic_partition


_NO_OFFSETS: Final[frozenset[int]] = frozenset()  # one for all logs


class LogFaults:
    """Holds the faults of one log. Changed on the loop only."""

    __slots__ = ("_topic_partition", "first_offsets", "is_start_uncertain", "listener", "lost_start", "producers_from")

    def __init__(
        self, topic_partition: TopicPartition, *, lost_start: int | None = None, is_start_uncertain: bool = False
    ) -> None:
        self._topic_partition = topic_partition
        # Where a faulty segment begins, or a gap after one that lost its end.
        self.first_offsets = _NO_OFFSETS
        # Where the log began before its first segments were lost, for the checkpoints that are written until a replica
        # of the log decides where it begins now.
        self.lost_start = lost_start
        self.is_start_uncertain = is_start_uncertain  # the first segments may be lost, or not
        # From there on the state of producers, and aborted transactions, were replayed from a faulty log.
        self.producers_from: int | None = 0 if lost_start is not None or is_start_uncertain else None
        self.listener: FaultListener = _ignore

    def note_repaired(self, first_offset: int, next_offset: int | None = None) -> None:
        """Note that what began there is faulty no longer, or from `next_offset` on only."""
        left = self.first_offsets - {first_offset}
        self.first_offsets = left if next_offset is None else left | {next_offset}

    def note(self, first_offset: int) -> None:
        """Note that the segment which begins there is faulty, or that one is missing there."""
        if first_offset not in self.first_offsets:
            self.first_offsets |= frozenset((first_offset,))
            self.listener(self._topic_partition)

    def note_at_start(self, first_offset: int) -> None:
        """Note what a start has found in the segments from which it replayed the state of producers."""
        self.producers_from = min(first_offset, first_offset if self.producers_from is None else self.producers_from)
        self.note(first_offset)

    def forget(self) -> None:
        """Forget all: the log has no records any more."""
        self.first_offsets = _NO_OFFSETS
        self.lost_start = self.producers_from = None
        self.is_start_uncertain = False


def faulty_from(corruption: Corruption) -> int:
    """Return where a `.log` is faulty: at its base offset, or, if it lost its end, after its last batch."""
    if corruption.position != ANYWHERE and not corruption.size_bytes:
        return corruption.first_offset
    return int(corruption.file.name.partition(".")[0])
