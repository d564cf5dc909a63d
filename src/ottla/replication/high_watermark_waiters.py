"""Wakes those who wait for a partition to reach an offset: acks=all producers and offset commits.

`advance` wakes exactly those whose offset has been reached, in offset order: one heap per partition and no polling. A
waiter owns its deadline (broker/delayed_operations.py) and must expect to be woken after it has given up.

Step 7 of 9 on the path of a batch (ARCHITECTURE.md), on the way back.
Before: replication/partition.py. Next: broker/delayed_produce.py.
"""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from typing import Final, Protocol

from ottla.storage.log.partition_log import PartitionLog


class OffsetWaiter(Protocol):
    """Receives the results of waiting for offsets, maybe of several partitions."""

    def offset_reached(self, part: object, error: BaseException | None) -> None:
        """Take the outcome, once per `add`: None when the offset is reached, the error when it never will be."""
        ...


class FutureWaiter:
    """Passes the outcome of a wait for an offset to a future, which is the `part` of the wait."""

    def offset_reached(self, part: object, error: BaseException | None) -> None:
        """Complete the future: the records are replicated, or never will be."""
        assert isinstance(part, asyncio.Future)
        if part.done():
            return
        if error is None:
            part.set_result(None)
        else:
            part.set_exception(error)


_NO_WAITERS: Final[list[tuple[int, int, OffsetWaiter, object]]] = []  # one for all partitions, until one is added


class OffsetWaiters:
    """Lists the waiters of one partition by the end offset for which they wait."""

    __slots__ = ("_added", "_heap", "_log")

    def __init__(self, log: PartitionLog) -> None:
        self._log = log  # it keeps the only copy of the high watermark
        self._heap = _NO_WAITERS
        self._added = 0  # breaks ties: first come, first served

    def __len__(self) -> int:
        return len(self._heap)

    def move_to(self, log: PartitionLog) -> None:
        """Move to another log, which has the high watermark now."""
        self._log = log

    def add(self, end_offset: int, waiter: OffsetWaiter, part: object) -> None:
        """Call `waiter.offset_reached(part, None)` once everything below `end_offset` is replicated."""
        if end_offset <= self._log.high_watermark:
            waiter.offset_reached(part, None)
            return
        self._added += 1
        if self._heap is _NO_WAITERS:
            self._heap = []
        heappush(self._heap, (end_offset, self._added, waiter, part))

    def advance(self, end_offset: int, error: BaseException | None = None) -> None:
        """Complete waits up to `end_offset`: all below is replicated. `error` is the outcome if that is too little."""
        heap = self._heap
        while heap and heap[0][0] <= end_offset:
            _, _, waiter, part = heappop(heap)
            waiter.offset_reached(part, error)

    def fail(self, error: BaseException) -> None:
        """Fail all waits: no offset will be reached any more because leadership, the topic or the disk is lost."""
        heap, self._heap = self._heap, _NO_WAITERS
        while heap:
            _, _, waiter, part = heappop(heap)
            waiter.offset_reached(part, error)
