"""Bounds the bytes of all connections together: requests larger than a connection's own small buffer reserve from it.

Kafka has the same bound but leaves it off (`queued.max.request.bytes=-1`); here it is on, so that no number of large
requests can take the machine's memory. Who finds it spent waits, and the wait goes back to the client's socket.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial


class ByteBudget:
    """Reserves bytes up to a limit. A refused caller is called back, in order, when bytes are released."""

    def __init__(self, limit_bytes: int) -> None:
        assert limit_bytes > 0
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._waiting: deque[Callable[[], None]] = deque()

    def try_reserve(self, size_bytes: int) -> bool:
        """Reserve `size_bytes`, or return False. The first are granted, or one huge request could wait for ever."""
        if self.used_bytes and self.used_bytes + size_bytes > self.limit_bytes:
            return False
        self.used_bytes += size_bytes
        return True

    def release(self, size_bytes: int) -> None:
        """Release bytes and let everyone who waits try again, first come first."""
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0, "more bytes were released than reserved"
        waiting, self._waiting = self._waiting, deque()
        for retry in waiting:
            retry()

    def call_when_free(self, retry: Callable[[], None]) -> None:
        """Call `retry` once after the next `release`."""
        self._waiting.append(retry)

    async def reserve(self, size_bytes: int) -> None:
        """Reserve `size_bytes`, after a wait if need be."""
        loop = asyncio.get_running_loop()
        while not self.try_reserve(size_bytes):
            free: asyncio.Future[None] = loop.create_future()
            self.call_when_free(partial(_wake, free))
            await free


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():  # it is done if the wait was cancelled
        waiting.set_result(None)
