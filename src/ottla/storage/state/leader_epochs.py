"""Keeps the start offset of each leader epoch, by which truncation is decided (KIP-101, KIP-279, KIP-320).

The file is Kafka's `leader-epoch-checkpoint`: version 0, the number of entries, then `epoch start_offset` a line. It is
a cache of what the batches themselves say; recovery reads it as far as it goes and adds what the scan found.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ottla.records.batch import NO_END_OFFSET

FILE_NAME = "leader-epoch-checkpoint"
_VERSION = 0
UNDEFINED = -1


class EpochEntry(NamedTuple):
    """A leader epoch and the offset of its first record."""

    epoch: int
    start_offset: int


class EpochEnd(NamedTuple):
    """An epoch and the offset after its last record; (-1, -1) where nothing is known."""

    epoch: int
    end_offset: int


class Span(NamedTuple):
    """The offsets of one epoch."""

    start_offset: int
    end_offset: int
    epoch: int


NO_SPAN = Span(0, 0, UNDEFINED)


class LeaderEpochs:
    """The epochs of one log, oldest first. Both columns only grow."""

    __slots__ = ("_entries", "certain", "complete_below", "latest")

    def __init__(self, entries: Iterable[EpochEntry] = (), *, complete_below: int = NO_END_OFFSET) -> None:
        self.complete_below = complete_below  # batches from there on may have epochs that are not in here
        self.certain = True  # whether batches can be verified with it: not while it comes from a file without a copy
        self._entries: list[EpochEntry] = []
        self.latest = UNDEFINED
        for entry in entries:
            self.assign(entry.epoch, entry.start_offset)

    def mark_certain(self) -> None:
        """Have batches verified with the epochs: they were compared with those of the batches."""
        self.certain = True

    def mark_uncertain(self) -> None:
        """Verify no batch with the epochs: they come from a file that nothing confirms."""
        self.certain = False

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        """Return all epochs with their start offsets, oldest first."""
        return tuple(self._entries)

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Note that `epoch` begins at `start_offset`; whether that was news.

        An entry that the new one contradicts (an epoch as new, or a start as late) came from records that are gone.
        """
        if epoch <= self.latest:
            return False
        while self._entries and self._entries[-1].start_offset >= start_offset:
            self._entries.pop()
        self._entries.append(EpochEntry(epoch, start_offset))
        self.latest = epoch
        return True

    def end_offset(self, epoch: int, *, log_end_offset: int) -> EpochEnd:
        """Return the largest known epoch at or below `epoch`, and where it ends.

        For the newest epoch that is the log's end. An epoch older than all is answered with itself and the start of
        the oldest: everything a follower has of it is gone here. An epoch newer than all is unknown.
        """
        if epoch == UNDEFINED or not self._entries or epoch > self.latest:
            return EpochEnd(UNDEFINED, UNDEFINED)
        if epoch == self.latest:
            return EpochEnd(epoch, log_end_offset)
        at = bisect_right(self._entries, epoch, key=lambda entry: entry.epoch)
        if at == 0:
            return EpochEnd(epoch, self._entries[0].start_offset)
        return EpochEnd(self._entries[at - 1].epoch, self._entries[at].start_offset)

    def epoch_of(self, offset: int) -> int:
        """Return the epoch a record at `offset` was written in; -1 if unknown."""
        at = bisect_right(self._entries, offset, key=lambda entry: entry.start_offset)
        return self._entries[at - 1].epoch if at else UNDEFINED

    def span_of(self, offset: int, last_offset: int) -> Span:
        """Return the epoch of a batch and how far it goes.

        Unknown below the first entry, but for a batch that reaches it.
        """
        entries = self._entries
        at = max(bisect_right(entries, offset, key=lambda entry: entry.start_offset), 1)
        if at > len(entries) or last_offset < entries[0].start_offset:
            return Span(offset, offset + 1, UNDEFINED)
        end = entries[at].start_offset if at < len(entries) else self.complete_below
        return Span(min(offset, entries[at - 1].start_offset), end, entries[at - 1].epoch)

    def agree_below(self, end_offset: int, noted: Iterable[EpochEntry] | None) -> bool:
        """Return whether what was noted says the same of a log that ends there; epochs without a record are ignored."""
        if noted is None:
            return False
        ours, theirs = (
            [entry for entry in entries if entry.start_offset < end_offset] for entries in (self._entries, noted)
        )
        return ours == theirs

    def agree_between(self, certain: Sequence[EpochEntry], end_offset: int) -> bool:
        """Return whether both agree from the first certain offset on; the file may still have what was deleted."""
        epochs = LeaderEpochs(self._entries)
        epochs.truncate_from_start(certain[0].start_offset)
        return epochs.agree_below(end_offset, certain)

    def truncate_from_end(self, end_offset: int) -> bool:
        """Drop epochs that begin at or after `end_offset` (truncation); whether any was dropped."""
        before = len(self._entries)
        while self._entries and self._entries[-1].start_offset >= end_offset:
            self._entries.pop()
        self.latest = self._entries[-1].epoch if self._entries else UNDEFINED
        return len(self._entries) != before

    def truncate_from_start(self, start_offset: int) -> bool:
        """Forget epochs that end at or before `start_offset` (retention); the one holding it now begins there."""
        at = bisect_right(self._entries, start_offset, key=lambda entry: entry.start_offset)
        if at == 0:
            return False
        held = EpochEntry(self._entries[at - 1].epoch, start_offset)
        if at == 1 and self._entries[0] == held:
            return False
        self._entries[:at] = [held]
        return True

    def replace_all(self, other: LeaderEpochs) -> None:
        """Take over the epochs of another log with the same records."""
        self._entries = list(other._entries)
        self.latest, self.certain, self.complete_below = other.latest, other.certain, other.complete_below

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()
        self.latest = UNDEFINED

    def to_text(self) -> str:
        """Return the text of Kafka's file."""
        lines = [str(_VERSION), str(len(self._entries)), *(f"{epoch} {start}" for epoch, start in self._entries)]
        return "\n".join(lines) + "\n"


def parse_epochs(text: str) -> LeaderEpochs | None:
    """Parse the text of `to_text`; None where it is torn or otherwise not a whole file of ours."""
    lines = text.split("\n")
    try:
        version, count = int(lines[0]), int(lines[1])
        rows = [EpochEntry(*map(int, line.split(" "))) for line in lines[2:-1]]
    except (ValueError, IndexError, TypeError):
        return None
    if version != _VERSION or count != len(rows) or lines[-1]:
        return None
    epochs = LeaderEpochs(rows)
    return epochs if list(epochs.entries) == rows else None
