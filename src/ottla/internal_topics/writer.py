"""Writes records to one partition of an internal topic in order; pending writes share the next batch.

The next batch collects while one becomes durable, so a thousand commits cost few fsyncs, and no write is delayed when
the disk is idle. Callbacks run in the order of the log.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ottla.core.errors import ErrorCode, error_code_for
from ottla.internal_topics.log import KeyValue, Producer, TopicLog

BATCH_BYTES = 256 * 1024
"""Size up to which writes share a batch: well below max.message.bytes, so that no write fails because of others."""


Done = Callable[[ErrorCode], None]
"""Called once with the result of a write. Must not raise."""


class _Write(NamedTuple):
    records: Sequence[KeyValue]
    done: Done
    size_bytes: int
    producer: Producer | None


class PartitionWriter:
    """Writes to one partition, one batch at a time."""

    def __init__(self, log: TopicLog, partition: int) -> None:
        self._log, self._partition = log, partition
        self._waiting: deque[_Write] = deque()
        self._task: asyncio.Task[None] | None = None
        self._queued = self._completed = 0
        self._flushes: deque[tuple[int, asyncio.Future[None]]] = deque()  # each waits for so many completed writes

    def write(self, records: Sequence[KeyValue], done: Done, *, producer: Producer | None = None) -> None:
        """Queue the records; they stay together. With a producer they are part of its transaction."""
        size_bytes = sum(len(key) + len(value or b"") for key, value in records)
        self._waiting.append(_Write(records, done, size_bytes, producer))
        self._queued += 1
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drain())

    async def flush(self) -> None:
        """Wait until everything that is queued now is written or has failed, and its results are delivered."""
        if self._task is not None:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._flushes.append((self._queued, done))
            await done

    async def close(self) -> None:
        """Wait until everything queued is written or has failed."""
        while self._task is not None:
            await asyncio.shield(self._task)

    async def _drain(self) -> None:
        try:
            while self._waiting:
                batch = self._next_batch()
                error = await self._append([record for write in batch for record in write.records], batch[0].producer)
                for write in batch:
                    write.done(error)
                self._completed += len(batch)
                while self._flushes and self._flushes[0][0] <= self._completed:
                    _, flushed = self._flushes.popleft()
                    if not flushed.done():  # not cancelled
                        flushed.set_result(None)
        finally:
            self._task = None

    def _next_batch(self) -> list[_Write]:
        batch = [self._waiting.popleft()]
        size_bytes, producer = batch[0].size_bytes, batch[0].producer
        while (
            self._waiting
            and size_bytes + self._waiting[0].size_bytes <= BATCH_BYTES
            and self._waiting[0].producer == producer
        ):
            size_bytes += self._waiting[0].size_bytes
            batch.append(self._waiting.popleft())
        return batch

    async def _append(self, records: Sequence[KeyValue], producer: Producer | None) -> ErrorCode:
        try:
            await self._log.append(self._partition, records, producer)
        except Exception as error:  # noqa: BLE001  # waiters must get the error
            return error_code_for(error)
        return ErrorCode.NONE
