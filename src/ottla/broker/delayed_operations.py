"""Keeps the operations that wait (Kafka's purgatory): produce for replication, fetch for data, each until its deadline.

An operation completes once: when what it waits for has come, or at its deadline. One heap and one timer serve all
operations of the broker. A completed operation stays in the heap, without what it held, until its deadline or until
the heap is purged.

Step 7 of 9 on the path of a batch (ARCHITECTURE.md), on the way back.
Before: broker/delayed_produce.py. Next: net/connection.py.
"""

from __future__ import annotations

import asyncio
import math
from heapq import heapify, heappop, heappush
from typing import Final

from ottla.net.connection import PendingResponse

_PURGE_AT: Final = 1000
"""From so many operations on the heap is purged of completed ones; afterwards again at twice what is left.

The timer purges it too, once half of it was added since: to take completed ones off the heap costs more, one by one."""


class DelayedOperation:
    """One request whose response may have to wait."""

    __slots__ = ("is_completed", "response")

    def __init__(self, response: PendingResponse) -> None:
        self.is_completed = False
        self.response: PendingResponse | None = response

    def complete(self) -> None:
        """Respond now. Later calls do nothing. Never raises: one request's trouble must not reach the others."""
        response, self.response = self.response, None  # completed operations must not keep a connection's buffer
        if response is None:
            return
        self.is_completed = True
        try:
            self.respond(response)
        except Exception as error:  # noqa: BLE001 - it is logged there
            response.fail(error)

    def abandon(self) -> None:
        """Close the connection now, because no response can be sent. Does nothing once the operation is completed."""
        response, self.response = self.response, None
        if response is not None:
            self.is_completed = True
            response.abandon()

    def respond(self, response: PendingResponse) -> None:
        """Send the response and release everything that the operation holds."""
        raise NotImplementedError

    def expire(self) -> None:
        """Complete with what there is, because the deadline has passed."""
        raise NotImplementedError

    def stop(self) -> None:
        """Complete now because the broker stops, unless what the operation waits for comes all the same."""


class DelayedOperations:
    """The deadlines of all operations that wait."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._heap: list[tuple[float, int, DelayedOperation]] = []
        self._added = 0  # breaks ties of deadlines: first come, first served
        self._added_before = 0  # the last purge
        self._purge_at = _PURGE_AT
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self.is_stopping = False

    def __len__(self) -> int:
        """Return the number of operations in the heap, completed ones included."""
        return len(self._heap)

    def names(self) -> list[str]:
        """Return the kind of each operation that waits."""
        return [type(operation).__name__ for _, _, operation in self._heap if not operation.is_completed]

    def add(self, operation: DelayedOperation, timeout_seconds: float) -> None:
        """Expire the operation after so many seconds unless it has completed before."""
        deadline = self._loop.time() + timeout_seconds
        self._added += 1
        heappush(self._heap, (deadline, self._added, operation))
        if self._timer is None or deadline < self._timer_due:
            self._set_timer(deadline)
        if len(self._heap) > self._purge_at:
            self._purge()

    def stop(self) -> None:
        """Complete what needs no disk because the broker stops, and let no operation wait for data any more."""
        self.is_stopping = True
        for _, _, operation in self._heap.copy():
            operation.stop()

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = deadline
        self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer_due = -math.inf  # the response may lead to another operation, whose deadline is not the next one
        now = self._loop.time()
        if 2 * (self._added - self._added_before) >= len(self._heap):
            self._purge()
        try:
            while self._heap and (self._heap[0][2].is_completed or self._heap[0][0] <= now):
                operation = heappop(self._heap)[2]
                if not operation.is_completed:
                    operation.expire()
        finally:
            if self._heap:
                self._set_timer(self._heap[0][0])
            else:
                self._timer = None

    def _purge(self) -> None:
        self._heap = [each for each in self._heap if not each[2].is_completed]
        heapify(self._heap)
        self._added_before = self._added
        self._purge_at = max(_PURGE_AT, 2 * len(self._heap))
