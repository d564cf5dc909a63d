"""Writes records to one partition of `__consumer_offsets` in order; pending writes share the next batch.

The next batch collects while one becomes durable, so a thousand commits cost few fsyncs, and no write is delayed when
the disk is idle. Callbacks run in the order of the log.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple, Protocol

from ottla.core.errors import ErrorCode, error_code_for

KeyValue = tuple[bytes, bytes | None]

BATCH_BYTES = 256 * 1024
"""Size up to which writes share a batch: well below max.message.bytes, so that no write fails because of others."""


class OffsetsLog(Protocol):
    """Port: reads and appends to `__consumer_offsets`. The broker implements it; tests use lists."""

    @property
    def partitions(self) -> int:
        """Return the number of partitions; 0 before the first use, constant afterwards."""
        ...

    def is_offline(self, partition: int) -> bool:
        """Return whether the partition cannot be read or written because of its disk."""
        ...

    async def append(self, partition: int, records: Sequence[KeyValue]) -> None:
        """Append as one batch; returns once it is durable. Raises KafkaError. Called again only after it returned."""
        ...

    def read_all(self, partition: int) -> AsyncIterator[KeyValue]:
        """Yield every key and value from the start of the log to its end."""
        ...


Done = Callable[[ErrorCode], None]
"""Called once with the result of a write. Must not raise."""


class _Write(NamedTuple):
    records: Sequence[KeyValue]
    done: Done
    size_bytes: int


class PartitionWriter:
    """Writes to one partition, one batch at a time."""

    def __init__(self, log: OffsetsLog, partition: int) -> None:
        self._log, self._partition = log, partition
        self._waiting: deque[_Write] = deque()
        self._task: asyncio.Task[None] | None = None

    def write(self, records: Sequence[KeyValue], done: Done) -> None:
        """Queue the records; they stay together."""
        size_bytes = sum(len(key) + len(value or b"") for key, value in records)
        self._waiting.append(_Write(records, done, size_bytes))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drain())

    async def close(self) -> None:
        """Wait until everything queued is written or has failed."""
        while self._task is not None:
            await asyncio.shield(self._task)

    async def _drain(self) -> None:
        try:
            while self._waiting:
                batch = self._next_batch()
                error = await self._append([record for write in batch for record in write.records])
                for write in batch:
                    write.done(error)
        finally:
            self._task = None

    def _next_batch(self) -> list[_Write]:
        batch = [self._waiting.popleft()]
        size_bytes = batch[0].size_bytes
        while self._waiting and size_bytes + self._waiting[0].size_bytes <= BATCH_BYTES:
            size_bytes += self._waiting[0].size_bytes
            batch.append(self._waiting.popleft())
        return batch

    async def _append(self, records: Sequence[KeyValue]) -> ErrorCode:
        try:
            await self._log.append(self._partition, records)
        except Exception as error:  # noqa: BLE001  # waiters must get the error
            return error_code_for(error)
        return ErrorCode.NONE
