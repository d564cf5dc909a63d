"""Waiting for a partition to reach an offset: acks=all producers and offset commits.

`advance` wakes exactly those whose offset has been reached, in offset order. Kafka calls this room the purgatory; here
it is one heap per partition and no polling. The waiting side owns its time limit (see broker/handlers/produce.py), so a
waiter that has given up is only skipped.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

Woken = Callable[[BaseException | None], None]
"""Called once: with None when the offset is reached, with the error when it never will be."""


class OffsetWaiters:
    """Who waits for which end offset of one partition."""

    __slots__ = ("_heap", "_order", "_reached")

    def __init__(self, reached: int) -> None:
        self._reached = reached
        self._heap: list[tuple[int, int, Woken]] = []
        self._order = count()  # ties are served first come, first served

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, end_offset: int, woken: Woken) -> None:
        """Call `woken` once everything below `end_offset` counts."""
        if end_offset <= self._reached:
            woken(None)
            return
        heapq.heappush(self._heap, (end_offset, next(self._order), woken))

    def advance(self, end_offset: int) -> None:
        """Everything below `end_offset` counts now."""
        assert end_offset >= self._reached, "a high watermark never goes back while leading"
        self._reached = end_offset
        heap = self._heap
        while heap and heap[0][0] <= end_offset:
            heapq.heappop(heap)[2](None)

    def fail(self, error: BaseException) -> None:
        """Nobody will get what they wait for: leadership, the topic or the disk is gone."""
        heap, self._heap = self._heap, []
        for _, _, woken in sorted(heap, key=lambda waiting: waiting[:2]):
            woken(error)
