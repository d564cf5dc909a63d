"""Keeps an internal topic in memory, for tests of coordinators without a broker."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Generator, Sequence

from ottla.core.errors import FencedLeaderEpoch, KafkaError, NotLeaderOrFollower, StorageError
from ottla.internal_topics.topic_log import AppendedBatch, KeyValue, LoadedRecords, ProducerIdentity

STALL_S = 7.0
"""Longer than the timeouts of writes that tests set."""


class MemoryTopicLog:
    """Implements `TopicLog`; what is appended is replicated at once, or when the test sets `replicated`.

    With `failing` nothing can be written. `epoch` is the leader epoch of all partitions.
    """

    def __init__(self, partitions: int = 1) -> None:
        self.partitions = partitions
        self.batches: dict[int, list[LoadedRecords]] = defaultdict(list)
        self.failing: KafkaError | None = None
        self.offline: set[int] = set()
        self.has_lied = False  # an append was reported as failed and is in the log all the same
        self.epoch, self.is_led = 0, True
        self.is_contiguous = False  # the present term follows on one of this broker: its writes in flight go on
        self.replicated = asyncio.Event()
        self.replicated.set()
        self.starts: dict[int, int] = defaultdict(int)
        self.ends: dict[int, int] = defaultdict(int)

    def records(self, partition: int = 0) -> list[KeyValue]:
        """Return the records of a partition, in order."""
        return [record for batch in self.batches[partition] for record in batch.records]

    def is_offline(self, partition: int) -> bool:
        return partition in self.offline

    def leader_epoch(self, partition: int) -> int:
        if not self.is_led:
            raise NotLeaderOrFollower
        return self.epoch

    def check_epoch(self, partition: int, leader_epoch: int) -> None:
        """Refuse what is not of the current term."""
        if self.leader_epoch(partition) != leader_epoch:
            raise FencedLeaderEpoch

    async def append(
        self,
        partition: int,
        records: Sequence[KeyValue],
        producer: ProducerIdentity | None = None,
        *,
        leader_epoch: int,
    ) -> AppendedBatch:
        self.check_epoch(partition, leader_epoch)
        if self.failing is not None:
            raise self.failing
        first_offset = self.put(partition, records, producer)
        return AppendedBatch(first_offset, self.ends[partition], _Replication(self, partition, leader_epoch))

    def put(self, partition: int, records: Sequence[KeyValue], producer: ProducerIdentity | None = None) -> int:
        """Append a batch, as the coordinator or as another writer; returns its offset."""
        first_offset = self._next_offset(partition, len(records))
        self.batches[partition].append(LoadedRecords(list(records), producer, base_offset=first_offset))
        return first_offset

    async def wait_until_replicated(self, partition: int, end_offset: int, *, leader_epoch: int) -> None:
        await self.replicated.wait()
        if not self.is_contiguous:
            self.check_epoch(partition, leader_epoch)

    def end_transaction(self, partition: int, producer: ProducerIdentity, *, commits: bool) -> int:
        """Append a transaction marker; returns its offset."""
        offset = self._next_offset(partition, 1)
        self.batches[partition].append(LoadedRecords((), producer, commits, offset))
        return offset

    def end_offset(self, partition: int) -> int:
        return self.ends[partition]

    def delete_records(self, partition: int, before_offset: int, *, leader_epoch: int) -> None:
        self.check_epoch(partition, leader_epoch)
        self.starts[partition] = max(self.starts[partition], before_offset)

    def _next_offset(self, partition: int, count: int) -> int:
        self.ends[partition] += count
        return self.ends[partition] - count

    async def read_all(self, partition: int, end_offset: int) -> AsyncIterator[LoadedRecords]:
        start = self.starts[partition]
        for batch in list(self.batches[partition]):
            if batch.base_offset + max(len(batch.records), 1) > start and batch.base_offset < end_offset:
                yield batch


class SlowTopicLog(MemoryTopicLog):
    """Takes its time; some appends fail, and of those some were written all the same. A few take `STALL_S`."""

    def __init__(self, rng: random.Random, failing: float, *, partitions: int = 1) -> None:
        super().__init__(partitions)
        self._rng, self.failing_rate = rng, failing
        self.written_rate = 0.3  # of those that fail
        self.stall_rate = 0.0

    async def append(
        self,
        partition: int,
        records: Sequence[KeyValue],
        producer: ProducerIdentity | None = None,
        *,
        leader_epoch: int,
    ) -> AppendedBatch:
        await asyncio.sleep(self._rng.random() * 0.05)
        if self.stall_rate and self._rng.random() < self.stall_rate:
            await asyncio.sleep(STALL_S)
        fails = self._rng.random() < self.failing_rate
        if fails and self._rng.random() >= self.written_rate:
            await asyncio.sleep(self._rng.random() * 0.05)
            raise StorageError
        appended = await super().append(partition, records, producer, leader_epoch=leader_epoch)
        return appended._replace(replicated=self._slowly(appended.replicated, fails=fails))

    async def _slowly(self, replicated: Awaitable[None], *, fails: bool) -> None:
        await asyncio.sleep(self._rng.random() * 0.05)
        await replicated
        if fails:
            raise StorageError


class _Replication:
    """Waits for the replication of an append. Unlike a coroutine it may be dropped: what a test ends never waits."""

    def __init__(self, log: MemoryTopicLog, partition: int, leader_epoch: int) -> None:
        self._log, self._partition, self._leader_epoch = log, partition, leader_epoch
        self._end_offset = log.end_offset(partition)

    def __await__(self) -> Generator[object, None, None]:
        waiting = self._log.wait_until_replicated(self._partition, self._end_offset, leader_epoch=self._leader_epoch)
        return waiting.__await__()
