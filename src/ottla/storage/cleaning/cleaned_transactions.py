"""Tracks transactions while compaction reads a log: which were aborted, which markers still have data.

An ABORT marker stays until all batches of its transaction are gone, and so does its line in the index: a reader must go
on to pass over what is left. A COMMIT marker stays as long as data of its transaction was met before it. What may go is
then kept for `delete.retention.ms` more, like a tombstone (KIP-534).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from ottla.records.batch import BatchHeader
from ottla.storage.state.aborted_index import AbortedTransaction
from ottla.storage.state.end_marker import Marker, MarkerType


class CleanedTransactions:
    """Fed with every batch in the order of the log; returns which may go as a whole."""

    __slots__ = ("_aborted", "_committed", "_known", "_waiting", "kept")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._waiting = [(entry.first_offset, entry) for entry in aborted]
        heapq.heapify(self._waiting)
        self._aborted: dict[int, tuple[AbortedTransaction, bool]] = {}  # by producer; whether data of it was met
        self._committed: set[int] = set()  # producers of whose undecided or committed transaction data was met
        self.kept: list[AbortedTransaction] = []  # lines for the index of the segment that is being written

    def copy(self) -> CleanedTransactions:
        """Copy the state to come back to, where a group of segments must be begun again."""
        twin = CleanedTransactions(())
        twin._waiting = self._waiting.copy()
        twin._aborted = self._aborted.copy()
        twin._committed = self._committed.copy()
        twin.kept = self.kept.copy()
        return twin

    def data(self, header: BatchHeader) -> bool:
        """Note a batch of users' records; return whether its transaction was aborted."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        begun = self._aborted.get(header.producer_id)
        if begun is None:
            self._committed.add(header.producer_id)
            return False
        self._aborted[header.producer_id] = begun[0], True
        return True

    def control(self, header: BatchHeader, marker: Marker | None) -> bool:
        """Note a control batch; return whether nothing is left of what it decides."""
        self._begin_up_to(header.last_offset)
        if not header.record_count:
            return True  # emptied by an earlier pass
        if marker is None:
            return False
        if marker.type is MarkerType.COMMIT:
            if header.producer_id in self._committed:
                self._committed.remove(header.producer_id)
                return False
            return True
        entry, has_data = self._aborted.pop(header.producer_id, (None, False))
        if entry is not None and has_data:
            self.kept.append(entry)
            return False
        return True

    def _begin_up_to(self, offset: int) -> None:
        while self._waiting and self._waiting[0][0] <= offset:
            entry = heapq.heappop(self._waiting)[1]
            self._aborted.setdefault(entry.producer_id, (entry, False))
