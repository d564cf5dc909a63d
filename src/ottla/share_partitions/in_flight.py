"""Holds the states of the offsets in flight of a share partition, as ranges of offsets with the same state.

The ranges cover every offset from the share partition's start to its end without a hole; an offset between two record
batches, where the log has no record, is covered too. Work is per range, not per record.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from ottla.share_coordinator.states import TERMINAL, RecordState, StateBatch

NO_MEMBER = ""
NO_WRITE = 0


@dataclass(slots=True, kw_only=True)
class InFlightRange:
    """Holds consecutive offsets with the same state."""

    first: int
    last: int
    state: RecordState
    delivery_count: int
    width: int  # of the range that was acquired first: what a delivery of poison records halves
    member: str = NO_MEMBER  # that acquired it
    lock_ms: int = 0  # when the acquisition lock expires
    write: int = NO_WRITE  # that persists the end of its delivery; the range cannot change until the write ends

    def __len__(self) -> int:
        return self.last - self.first + 1

    @property
    def is_terminal(self) -> bool:
        """Return whether its records are never delivered again."""
        return self.state in TERMINAL

    @property
    def is_available(self) -> bool:
        """Return whether its records can be acquired."""
        return self.state is RecordState.AVAILABLE and self.write == NO_WRITE

    @property
    def is_acquired(self) -> bool:
        """Return whether a member holds its records."""
        return self.state is RecordState.ACQUIRED and self.write == NO_WRITE

    def acquire(self, member: str, lock_ms: int) -> None:
        """Deliver its records to a member until its lock expires."""
        self.state, self.member, self.lock_ms = RecordState.ACQUIRED, member, lock_ms
        self.delivery_count += 1

    def release(self, state: RecordState) -> None:
        """Take its records from the member that holds them."""
        self.state, self.member, self.lock_ms = state, NO_MEMBER, 0

    def apply(self, batch: StateBatch) -> None:
        """Take the state that is persisted: no member holds its records any more, and no write ends their delivery."""
        self.delivery_count, self.write = batch.delivery_count, NO_WRITE
        self.release(batch.state)

    def split(self, offset: int) -> InFlightRange:
        """Cut the range so that it ends before `offset`; returns the rest."""
        assert self.first < offset <= self.last, f"{offset} is not inside {self}"
        rest = InFlightRange(
            first=offset,
            last=self.last,
            state=self.state,
            delivery_count=self.delivery_count,
            width=self.width,
            member=self.member,
            lock_ms=self.lock_ms,
            write=self.write,
        )
        self.last = offset - 1
        return rest

    def equals(self, other: InFlightRange) -> bool:
        """Return whether two neighbours may become one range."""
        if self.state is not other.state or self.write != other.write or self.delivery_count != other.delivery_count:
            return False
        if self.is_terminal:
            return True
        return (self.member, self.lock_ms, self.width) == (other.member, other.lock_ms, other.width)


class InFlight:
    """Holds the ranges from `start` up to, not including, `end`."""

    __slots__ = ("_ranges", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self._ranges: list[InFlightRange] = []

    @property
    def end(self) -> int:
        """Return the offset after the last range: the next one to read from the log for the first time."""
        return self._ranges[-1].last + 1 if self._ranges else self.start

    @property
    def count(self) -> int:
        """Return the number of offsets in flight."""
        return self.end - self.start

    def __iter__(self) -> Iterator[InFlightRange]:
        return iter(self._ranges)

    def __len__(self) -> int:
        return len(self._ranges)

    def append(self, new: InFlightRange) -> None:
        """Add a range at the end."""
        assert new.first == self.end, f"{new} does not begin at {self.end}"
        self._ranges.append(new)

    def between(self, first: int, last: int) -> list[InFlightRange]:
        """Return the ranges that cover exactly these offsets; ranges are split for that."""
        if first > last or not self._ranges:
            return []
        assert self.start <= first <= last < self.end, f"[{first}, {last}] is not in flight"
        begin = self._boundary(first)
        end = self._boundary(last + 1)
        return self._ranges[begin:end]

    def _boundary(self, offset: int) -> int:
        """Return the place of the range that begins at `offset`, split off if necessary."""
        at = bisect_right(self._ranges, offset, key=_first)
        if at and self._ranges[at - 1].last >= offset:
            if self._ranges[at - 1].first == offset:
                return at - 1
            self._ranges.insert(at, self._ranges[at - 1].split(offset))
        return at

    def overlapping(self, first: int, last: int) -> list[InFlightRange]:
        """Return the ranges with at least one of these offsets, whole."""
        at = max(bisect_right(self._ranges, first, key=_first) - 1, 0)
        found = []
        while at < len(self._ranges) and self._ranges[at].first <= last:
            if self._ranges[at].last >= first:
                found.append(self._ranges[at])
            at += 1
        return found

    def advance(self, start: int) -> None:
        """Forget the offsets before `start`."""
        assert start >= self.start, f"the start cannot return from {self.start} to {start}"
        self.start = start
        gone = 0
        for each in self._ranges:
            if each.last >= start:
                break
            gone += 1
        del self._ranges[:gone]
        if self._ranges and self._ranges[0].first < start:
            self._ranges[0] = self._ranges[0].split(start)

    def merge(self) -> None:
        """Join neighbours that are equal."""
        merged: list[InFlightRange] = []
        for each in self._ranges:
            if merged and merged[-1].equals(each):
                merged[-1].last = each.last
            else:
                merged.append(each)
        self._ranges = merged

    def check(self) -> None:
        """Assert that the ranges cover the offsets in flight without a hole, and that each is consistent."""
        expected = self.start
        for each in self._ranges:
            assert each.first == expected, f"a hole before {each}"
            assert each.last >= each.first, f"{each} is empty"
            assert each.delivery_count >= 0, f"{each} has a negative delivery count"
            if each.is_acquired:
                assert each.member != NO_MEMBER, f"{each} belongs to no member"
                assert each.lock_ms > 0, f"{each} has no lock"
                assert each.delivery_count > 0, f"{each} was not delivered"
            elif each.write == NO_WRITE:
                assert each.member == NO_MEMBER, f"{each} still belongs to a member"
            expected = each.last + 1


def _first(each: InFlightRange) -> int:
    return each.first
