"""Holds the entries of a log that wait to be written: so many at most, equal ones once with a count.

The security audit log and the events of a broker use it. What does not fit is dropped and counted by an entry.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

E = TypeVar("E", bound=Hashable)

Encode = Callable[[E, int, int, int], bytes]
"""Encodes an entry as JSON, with the time of the first equal one in milliseconds, their number, and the node id."""


class EntryQueue(Generic[E]):
    """The entries that wait for one output. `dropped` is the entry that counts those that are lost."""

    def __init__(self, encode: Encode[E], dropped: E, *, entries_max: int) -> None:
        self._encode, self._dropped_entry = encode, dropped
        self._entries_max = entries_max
        self._waiting: dict[E, list[int]] = {}  # the time of the first in milliseconds, and how many
        self._dropped = 0
        self._dropped_since_ms = 0
        self.dropped_total = 0

    def __len__(self) -> int:
        return len(self._waiting) + (self._dropped > 0)

    def put(self, entry: E, now_ms: int) -> None:
        """Add an entry, or count it as dropped."""
        counted = self._waiting.get(entry)
        if counted is not None:
            counted[1] += 1
        elif len(self._waiting) < self._entries_max:
            self._waiting[entry] = [now_ms, 1]
        else:
            self.note_dropped(1, now_ms)

    def note_dropped(self, count: int, now_ms: int) -> None:
        """Count entries that were taken and could not be written, or did not fit."""
        if not self._dropped:
            self._dropped_since_ms = now_ms
        self._dropped += count
        self.dropped_total += count

    def take(self, node_id: int, entries_max: int) -> tuple[list[bytes], int]:
        """Return the oldest entries as lines of JSON without their ends, and how many events they are."""
        lines: list[bytes] = []
        events = 0
        if self._dropped:
            lines.append(self._encode(self._dropped_entry, self._dropped_since_ms, self._dropped, node_id))
            events += self._dropped
            self._dropped = 0
        for entry in tuple(self._waiting)[: entries_max - len(lines)]:
            first_ms, count = self._waiting.pop(entry)
            lines.append(self._encode(entry, first_ms, count, node_id))
            events += count
        return lines, events
