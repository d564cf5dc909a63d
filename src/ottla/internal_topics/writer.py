"""Writes records to one partition of an internal topic in order; pending writes share the next batch.

The next batch collects while one is being replicated, and until the loop's turn ends. So a thousand commits cost few
appends and fsyncs, and no write is delayed when the disk is idle. Callbacks of what was appended run in the order of
the log. The queue is bounded: beyond, writes fail with an error after which clients try again.

A writer belongs to one term: its appends carry the leader epoch, so that what was queued in an earlier term fails. It
also knows the offset that the next batch must get. Another offset means that the log has a batch that the state in
memory has not: an append that was reported as failed, or one of another writer. So does a batch that was appended and
whose replication failed. Then the state must be loaded again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ottla.core.errors import ErrorCode, error_code_for
from ottla.internal_topics.topic_log import KeyValue, ProducerIdentity, TopicLog
from ottla.net import eager_tasks

BATCH_BYTES = 256 * 1024
"""Size up to which writes share a batch: well below max.message.bytes, so that no write fails because of others."""

NOT_LOADED = -1
"""As the next offset: the load has not begun, and nothing may be written."""

QUEUE_BYTES_MAX = 8 * 1024 * 1024
"""Bound on what waits for the next batches, while too few replicas are in sync or the disk is slow."""

WRITE_BYTES = 1024
"""Estimate of the memory of a queued write besides its records: the request, its tasks and its callbacks."""


Done = Callable[[ErrorCode], None]
"""Called once with the result of a write. Must not raise."""


class _Write(NamedTuple):
    records: Sequence[KeyValue]
    done: Done
    size_bytes: int
    producer: ProducerIdentity | None


class PartitionWriter:
    """Writes to one partition in one leader epoch, one batch at a time."""

    def __init__(
        self, log: TopicLog, partition: int, leader_epoch: int, *, on_diverged: Callable[[], None] = lambda: None
    ) -> None:
        self.leader_epoch = leader_epoch
        self._log, self._partition = log, partition
        self._on_diverged = on_diverged
        self._next_offset = NOT_LOADED
        self._is_refusing = False
        self._waiting: deque[_Write] = deque()
        self._waiting_bytes = 0
        self._is_active = False  # writes wait, or are being appended or replicated
        self._task: asyncio.Task[None] | None = None  # which the writes have to wait for
        self._queued = self._completed = 0
        self._flushes: deque[tuple[int, asyncio.Future[None]]] = deque()  # each waits for so many completed writes

    # ---- The place in the log

    def begin(self, next_offset: int) -> None:
        """Note the offset of the next batch: the end of what is being loaded."""
        self._next_offset = next_offset

    def has_reached(self, end_offset: int) -> bool:
        """Return whether the state in memory corresponds to a log with this end."""
        return self._next_offset == end_offset and not self._is_refusing

    def marker_appended(self, offset: int) -> None:
        """Note a transaction marker, which is appended to the partition directly."""
        if self._next_offset != NOT_LOADED:
            self._advance(offset, offset + 1)

    def _advance(self, first_offset: int, next_offset: int) -> bool:
        """Compare the offset of a new batch with the expected one; returns whether they are the same."""
        if first_offset == self._next_offset:
            self._next_offset = next_offset
            return True
        self._diverge()
        return False

    def _diverge(self) -> None:
        """Write nothing more: the log has, or may keep, a batch that the state in memory will not have."""
        if not self._is_refusing:
            self._is_refusing = True
            self._on_diverged()

    # ---- Writing

    def write(self, records: Sequence[KeyValue], done: Done, *, producer: ProducerIdentity | None = None) -> None:
        """Queue the records; they stay together. With a producer they are part of its transaction.

        A write to a full queue fails with COORDINATOR_NOT_AVAILABLE, before the writes that wait.
        """
        if self.is_full:
            asyncio.get_running_loop().call_soon(done, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        size_bytes = 0
        for key, value in records:
            size_bytes += len(key) + (len(value) if value else 0)
        self._waiting.append(_Write(records, done, size_bytes, producer))
        self._waiting_bytes += size_bytes + WRITE_BYTES
        self._queued += 1
        if not self._is_active:
            self._is_active = True
            asyncio.get_running_loop().call_soon(self._begin_drain)

    @property
    def is_full(self) -> bool:
        """Return whether the queue takes no write until others are in the log; what it takes may exceed the bound."""
        return self._waiting_bytes >= QUEUE_BYTES_MAX

    def refuse(self) -> None:
        """Fail all writes that are not appended yet, and all later ones."""
        self._is_refusing = True

    async def flush(self) -> None:
        """Wait until everything that is queued now is written or has failed, and its results are delivered."""
        if self._is_active:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._flushes.append((self._queued, done))
            await done

    async def close(self) -> None:
        """Wait until everything queued is written or has failed."""
        while self._is_active:
            await self.flush()

    def _begin_drain(self) -> None:
        self._task = eager_tasks.start(self._drain(), "write to an internal topic")

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
            self._is_active = False

    def _next_batch(self) -> list[_Write]:
        batch = [self._take()]
        size_bytes, producer = batch[0].size_bytes, batch[0].producer
        while (
            self._waiting
            and size_bytes + self._waiting[0].size_bytes <= BATCH_BYTES
            and self._waiting[0].producer == producer
        ):
            size_bytes += self._waiting[0].size_bytes
            batch.append(self._take())
        return batch

    def _take(self) -> _Write:
        write = self._waiting.popleft()
        self._waiting_bytes -= write.size_bytes + WRITE_BYTES
        return write

    async def _append(self, records: Sequence[KeyValue], producer: ProducerIdentity | None) -> ErrorCode:
        if self._is_refusing:
            return ErrorCode.NOT_COORDINATOR
        try:
            appended = await self._log.append(self._partition, records, producer, leader_epoch=self.leader_epoch)
            is_expected = self._advance(appended.first_offset, appended.next_offset)
        except Exception as error:  # noqa: BLE001  # waiters must get the error
            return error_code_for(error)
        try:
            await appended.replicated
        except Exception as error:  # noqa: BLE001  # waiters must get the error
            self._diverge()
            return error_code_for(error)
        return ErrorCode.NONE if is_expected else ErrorCode.NOT_COORDINATOR
