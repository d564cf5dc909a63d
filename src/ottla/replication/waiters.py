"""Wakes those who wait for a partition to reach an offset: acks=all producers and offset commits.

`advance` wakes exactly those whose offset has been reached, in offset order: one heap per partition and no polling. A
waiter owns its deadline (broker/delayed_operations.py) and must expect to be woken after it has given up.

Step 7 of 9 of a batch's journey, on the way back. Before: replication/partition.py. Next: broker/handlers/produce.py.
"""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ottla.replication.partition import Partition


class PartitionWatcher(Protocol):
    """Who waits for a change of a partition, maybe of several."""

    def partition_changed(self, partition: Partition) -> None:
        """Called at each move of the high watermark, the log start or the leader. Must not raise."""
        ...


class OffsetWaiter(Protocol):
    """Who waits, maybe for several partitions."""

    def offset_reached(self, part: object, error: BaseException | None) -> None:
        """Called once per `add`: with None when the offset is reached, with the error when it never will be."""
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


class HighWatermark(Protocol):
    """The owner of a partition's high watermark: `Partition` moves it, its log keeps the only copy."""

    high_watermark: int


class OffsetWaiters:
    """Who waits for which end offset of one partition."""

    __slots__ = ("_added", "_heap", "_owner")

    def __init__(self, owner: HighWatermark) -> None:
        self._owner = owner
        self._heap: list[tuple[int, int, OffsetWaiter, object]] = []
        self._added = 0  # breaks ties: first come, first served

    def __len__(self) -> int:
        return len(self._heap)

    def move_to(self, owner: HighWatermark) -> None:
        """Another log has the high watermark now."""
        self._owner = owner

    def add(self, end_offset: int, waiter: OffsetWaiter, part: object) -> None:
        """Call `waiter.offset_reached(part, None)` once everything below `end_offset` is replicated."""
        if end_offset <= self._owner.high_watermark:
            waiter.offset_reached(part, None)
            return
        self._added += 1
        heappush(self._heap, (end_offset, self._added, waiter, part))

    def advance(self, end_offset: int, error: BaseException | None = None) -> None:
        """Everything below `end_offset` is replicated now; `error` is the outcome if that is not enough."""
        heap = self._heap
        while heap and heap[0][0] <= end_offset:
            _, _, waiter, part = heappop(heap)
            waiter.offset_reached(part, error)

    def fail(self, error: BaseException) -> None:
        """No offset will be reached any more: leadership, the topic or the disk is lost."""
        heap, self._heap = self._heap, []
        while heap:
            _, _, waiter, part = heappop(heap)
            waiter.offset_reached(part, error)
