"""Produces records: accumulates them into batches per partition and writes each batch once if idempotent.

`send` queues one record. `send_many` queues many at once, with one future for all of those that go to a partition
together: a program that reads records in bulk pays little per record.

Every partition has a queue and one batch in flight; records that arrive meanwhile become the next batch. So the order
within a partition is kept, and a retried batch has the same producer id and sequence: the broker answers a duplicate
with the offset of the first (KIP-98). Memory is bounded: `send` waits while `buffer_bytes` are not yet acknowledged.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from ottla.client.cluster import ANY_BROKER, Cluster
from ottla.client.errors import CannotConnect, raise_for
from ottla.client.metadata import PartitionInfo, TopicInfo
from ottla.client.partitioner import StickyPartitions, partition_for_key
from ottla.core.clock import Clock
from ottla.core.errors import (
    ErrorCode,
    KafkaError,
    MessageTooLarge,
    RecordListTooLarge,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from ottla.core.ids import NO_TOPIC_ID, ProducerIdAndEpoch, TopicPartition
from ottla.records.batch import increment_sequence
from ottla.records.builder import NewRecord, build_batch
from ottla.wire.apis import ApiKey
from ottla.wire.hot.produce import FIRST_WITH_TOPIC_IDS

if TYPE_CHECKING:
    from ottla.wire.generated.init_producer_id import InitProducerIdResponse

Headers = list[tuple[str, bytes | None]]
_RECORD_OVERHEAD_BYTES = 32  # an upper bound for lengths, deltas and attributes of one record
_GROUPS_PER_BATCH = 4  # of a group's size: batches are filled well with groups that are smaller than they are


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """The settings of a producer, as in Kafka's producer configs."""

    acks: int = -1  # -1: all in-sync replicas, 1: the leader, 0: no response
    idempotent: bool = True  # needs acks=-1
    codec: int = 0  # records/codecs.py: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd
    linger_s: float = 0.005
    batch_bytes: int = 256 << 10
    buffer_bytes: int = 32 << 20
    auto_create: bool = True  # let the broker create a missing topic if it is configured to
    delivery_timeout_s: float = 120.0


class RecordMetadata(NamedTuple):
    """The position of a written record. The offset is -1 with acks=0, or for a duplicate that the broker forgot."""

    partition: int
    offset: int
    timestamp_ms: int


class RecordRefused(Exception):
    """`send_many` cannot send the record at this position, because of `error`."""

    def __init__(self, position: int, error: KafkaError) -> None:
        super().__init__(position, error)
        self.position = position
        self.error = error


class Transaction(Protocol):
    """Provides a producer with the transaction to which its records belong (client/transactions.py)."""

    transactional_id: str
    identity: ProducerIdAndEpoch
    produce_version_max: int | None

    async def add_partition(self, tp: TopicPartition) -> None:
        """Add a partition to the transaction, before each of its batches. Raises KafkaError."""
        ...

    def failed(self, error: Exception) -> None:
        """Note that records were not written, or that it is unknown whether they were."""
        ...


class WrittenRange(NamedTuple):
    """Records of a group that have consecutive offsets in the log."""

    first_index: int  # the place of the first one in `RecordGroup.positions`
    record_count: int
    base_offset: int  # -1 as in `RecordMetadata`
    append_time_ms: int  # the timestamp in the log if the broker sets it, else -1


class RecordGroup:
    """Records of one `send_many` that were queued together for one partition. A split batch writes them in parts."""

    def __init__(self, partition: int, positions: Sequence[int]) -> None:
        self.partition = partition
        self.positions = positions
        """The places of the group's records in the argument of `send_many`, ascending."""
        self.written: list[WrittenRange] = []
        self.failed_position = -1
        """The place of the first record that was not written; -1 if there is none."""
        self.error: Exception | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when each record is written or has failed; it raises nothing but CancelledError."""
        self._unanswered = len(positions)

    def add_written(self, written: WrittenRange) -> None:
        """Add records that the broker acknowledged."""
        self.written.append(written)
        self._answered(written.record_count)

    def add_failed(self, first_index: int, count: int, error: Exception) -> None:
        """Add records that were not written."""
        position = self.positions[first_index]
        if self.error is None or position < self.failed_position:
            self.failed_position, self.error = position, error
        self._answered(count)

    def _answered(self, count: int) -> None:
        self._unanswered -= count
        if self._unanswered <= 0 and not self.done.done():
            self.done.set_result(None)


class _PendingRecord:
    """A queued record of `send`."""

    __slots__ = ("done", "queued_s", "records", "size_bytes")

    def __init__(self, record: NewRecord, size_bytes: int) -> None:
        self.records = (record,)
        self.size_bytes = size_bytes
        self.queued_s = 0.0
        self.done: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()

    def set_written(self, partition: int, base_offset: int, append_time_ms: int) -> None:
        if not self.done.done():
            when_ms = self.records[0].timestamp_ms if append_time_ms < 0 else append_time_ms
            self.done.set_result(RecordMetadata(partition, base_offset, when_ms))

    def set_failed(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # avoids asyncio's warning if the caller ignores the future


class _PendingGroup:
    """Queued records of a group, or of a part of it after a batch was split."""

    __slots__ = ("done", "first_index", "group", "queued_s", "records", "size_bytes")

    def __init__(self, group: RecordGroup, first_index: int, records: Sequence[NewRecord], size_bytes: int) -> None:
        self.group = group
        self.first_index = first_index
        self.records = records
        self.size_bytes = size_bytes
        self.queued_s = 0.0
        self.done = group.done

    def set_written(self, _partition: int, base_offset: int, append_time_ms: int) -> None:
        self.group.add_written(WrittenRange(self.first_index, len(self.records), base_offset, append_time_ms))

    def set_failed(self, error: Exception) -> None:
        self.group.add_failed(self.first_index, len(self.records), error)

    def halves(self) -> tuple[_PendingGroup, _PendingGroup]:
        """Split the records in two."""
        middle = len(self.records) // 2
        return (
            _PendingGroup(self.group, self.first_index, self.records[:middle], 0),
            _PendingGroup(self.group, self.first_index + middle, self.records[middle:], 0),
        )


_Pending = _PendingRecord | _PendingGroup


class _PartitionQueue:
    """The queued records of one partition and its next sequence number."""

    __slots__ = ("error", "identity", "next_sequence", "progress_s", "size_bytes", "task", "tp", "waiting", "wake")

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.waiting: deque[_Pending] = deque()
        self.size_bytes = 0
        self.wake = asyncio.Event()
        self.identity = ProducerIdAndEpoch()
        self.next_sequence = 0
        self.progress_s = 0.0  # when a batch was acknowledged, the last time
        self.error: KafkaError | CannotConnect | None = None  # of the last attempt, if it failed
        self.task: asyncio.Task[None] | None = None

    def take(self, batch_bytes: int) -> list[_Pending]:
        """Remove the records of the next batch from the queue: as many as fit, at least one item."""
        batch: list[_Pending] = []
        size_bytes = 0
        while self.waiting and (not batch or size_bytes + self.waiting[0].size_bytes <= batch_bytes):
            item = self.waiting.popleft()
            size_bytes += item.size_bytes
            batch.append(item)
        self.size_bytes -= size_bytes
        return batch


class Producer:
    """Sends records. Close it (or use `async with`), else the last records may not be sent."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        clock: Clock,
        options: ProducerOptions | None = None,
        transaction: Transaction | None = None,
    ) -> None:
        self.options = options or ProducerOptions()
        self._transaction = transaction
        if transaction is not None and not self.options.idempotent:
            raise ValueError("transactions need acks=-1 (all)")
        if self.options.idempotent and self.options.acks != -1:
            raise ValueError("an idempotent producer needs acks=-1 (all)")
        self._cluster = cluster
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._queues: dict[TopicPartition, _PartitionQueue] = {}
        self._sticky: dict[str, StickyPartitions] = {}
        self._identity = ProducerIdAndEpoch()
        self._identity_is_valid = not self.options.idempotent
        self._identity_lock = asyncio.Lock()
        self.unsent_bytes = 0
        self._space = asyncio.Event()
        self._space.set()
        self._flushing = 0
        self._closing = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        await self.close(flush=kind is None)

    async def send(
        self,
        topic: str,
        *,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Queue a record, waiting for buffer space; the future has the `RecordMetadata`, or raises the error.

        Raises directly for an unknown topic or partition, or if no broker can be reached.
        """
        info = await self._topic(topic)
        headers = headers if headers is not None else []
        size_bytes = _size_bytes(key, value, headers)
        number = self._choose(info, key, size_bytes) if partition is None else partition
        if not 0 <= number < len(info.partitions):
            raise _no_partition(info, number)
        await self._wait_for_space(size_bytes)
        when_ms = self._clock.wall_ms() if timestamp_ms is None else timestamp_ms
        item = _PendingRecord(NewRecord(key, value, when_ms, headers), size_bytes)
        self._enqueue(TopicPartition(topic, number), item)
        return item.done

    async def send_many(
        self, topic: str, records: Sequence[NewRecord], *, partitions: Sequence[int | None] | None = None
    ) -> list[RecordGroup]:
        """Queue records in their order, waiting for buffer space. Each one needs its timestamp.

        `partitions` has the partition of each record; None where the key, or the producer, chooses it. Raises as
        `send` does, and then has queued nothing; for an unknown partition it raises `RecordRefused`.
        """
        info = await self._topic(topic)
        sizes = [_size_bytes(key, value, headers) for key, value, _, headers in records]
        groups = []
        for number, positions in self._by_partition(info, records, sizes, partitions):
            whole = len(positions) == len(records)
            chosen = records if whole else [records[position] for position in positions]
            ends = list(accumulate(sizes if whole else [sizes[position] for position in positions]))
            start, start_bytes = 0, 0
            while start < len(ends):
                end = max(start + 1, bisect_right(ends, start_bytes + self.options.batch_bytes // _GROUPS_PER_BATCH))
                size_bytes = ends[end - 1] - start_bytes
                await self._wait_for_space(size_bytes)
                group = RecordGroup(number, positions[start:end])
                self._enqueue(TopicPartition(topic, number), _PendingGroup(group, 0, chosen[start:end], size_bytes))
                groups.append(group)
                start, start_bytes = end, ends[end - 1]
        return groups

    def _by_partition(
        self,
        info: TopicInfo,
        records: Sequence[NewRecord],
        sizes: Sequence[int],
        partitions: Sequence[int | None] | None,
    ) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield each partition with the positions of its records. Raises `RecordRefused` before the first."""
        count = len(info.partitions)
        if count == 1 and partitions is None:
            yield 0, range(len(records))
            return
        chosen: dict[int, list[int]] = {}
        for position, record in enumerate(records):
            number = partitions[position] if partitions is not None else None
            if number is None:
                number = self._choose(info, record.key, sizes[position])
            elif not 0 <= number < count:
                raise RecordRefused(position, _no_partition(info, number))
            if number in chosen:
                chosen[number].append(position)
            else:
                chosen[number] = [position]
        yield from chosen.items()

    async def _topic(self, topic: str) -> TopicInfo:
        assert not self._closing, "the producer is closed"
        info = self._cluster.info.topics.get(topic)
        if info is None or info.error_code != ErrorCode.NONE:
            info = await self._cluster.topic(topic, allow_auto_topic_creation=self.options.auto_create)
        return info

    async def _wait_for_space(self, size_bytes: int) -> None:
        while self.unsent_bytes > 0 and self.unsent_bytes + size_bytes > self.options.buffer_bytes:
            self._space.clear()
            await self._space.wait()

    def _enqueue(self, tp: TopicPartition, item: _Pending) -> None:
        queue = self._queue(tp)
        item.queued_s = self._loop.time()
        queue.waiting.append(item)
        queue.size_bytes += item.size_bytes
        self.unsent_bytes += item.size_bytes
        queue.wake.set()

    async def flush(self) -> None:
        """Send all queued records, without linger, and wait until each is acknowledged or has failed."""
        self._flushing += 1
        try:
            while busy := [queue.task for queue in self._queues.values() if queue.task is not None]:
                for queue in self._queues.values():
                    queue.wake.set()
                await asyncio.wait(busy)
        finally:
            self._flushing -= 1

    async def close(self, *, flush: bool = True) -> None:
        """Flush and stop. Without `flush` the queued records are dropped and their futures are cancelled."""
        if flush:
            await self.flush()
        self._closing = True
        tasks = [queue.task for queue in self._queues.values() if queue.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for queue in self._queues.values():
            while queue.waiting:
                queue.waiting.popleft().done.cancel()

    def _choose(self, info: TopicInfo, key: bytes | None, size_bytes: int) -> int:
        if key is not None:
            return partition_for_key(key, len(info.partitions))
        sticky = self._sticky.get(info.name)
        if sticky is None:
            sticky = StickyPartitions(batch_bytes=self.options.batch_bytes, rng=self._cluster.rng)
            self._sticky[info.name] = sticky
        return sticky.choose(len(info.partitions), size_bytes)

    def _queue(self, tp: TopicPartition) -> _PartitionQueue:
        queue = self._queues.get(tp)
        if queue is None:
            queue = self._queues[tp] = _PartitionQueue(tp)
        if queue.task is None:
            queue.task = asyncio.ensure_future(self._run(queue))
        return queue

    async def _run(self, queue: _PartitionQueue) -> None:
        """Send the batches of one partition, one after the other, until its queue is empty."""
        try:
            while True:
                await self._linger(queue)
                batch = queue.take(self.options.batch_bytes)
                if not batch:
                    return
                give_up_s = max(batch[0].queued_s, queue.progress_s) + self.options.delivery_timeout_s
                try:
                    await self._deliver(queue, batch, give_up_s)
                except Exception as error:  # every record needs its result, whatever the error is
                    _fail(batch, error)
                    raise
                finally:
                    self.unsent_bytes -= sum(item.size_bytes for item in batch)
                    self._space.set()
                    for item in batch:
                        item.done.cancel()  # has an effect only if this task was cancelled
        finally:
            queue.task = None

    async def _linger(self, queue: _PartitionQueue) -> None:
        loop = self._loop
        until = loop.time() + self.options.linger_s
        while queue.size_bytes < self.options.batch_bytes and not self._flushing and loop.time() < until:
            queue.wake.clear()
            try:
                async with asyncio.timeout_at(until):
                    await queue.wake.wait()
            except TimeoutError:
                return

    async def _deliver(self, queue: _PartitionQueue, batch: Sequence[_Pending], give_up_s: float) -> None:
        """Write one batch and set the result of every record; a batch that is too large is split in half.

        A batch that waited for one that was retried until the end of its time has no time of its own.
        """
        if queue.error is not None and self._loop.time() >= give_up_s:
            self._failed(batch, queue.error)
            return
        count = sum(len(item.records) for item in batch)
        try:
            base_offset, append_time_ms = await self._write(queue, batch, give_up_s)
        except (MessageTooLarge, RecordListTooLarge) as error:
            # rejected as a whole: nothing was written
            queue.next_sequence = increment_sequence(queue.next_sequence, -count)
            if count == 1:
                self._failed(batch, error)
                return
            items: Sequence[_Pending] = batch
            if isinstance(batch[0], _PendingGroup) and len(batch) == 1:
                items = batch[0].halves()
            middle = len(items) // 2
            await self._deliver(queue, items[:middle], give_up_s)
            await self._deliver(queue, items[middle:], give_up_s)
        except (KafkaError, CannotConnect) as error:
            # unknown whether the broker has the batch: only a new producer id makes the next sequence valid
            self._identity_is_valid = not self.options.idempotent
            self._failed(batch, error)
        else:
            queue.error, queue.progress_s = None, self._loop.time()
            place = 0
            for item in batch:
                offset = base_offset if base_offset < 0 else base_offset + place
                item.set_written(queue.tp.partition, offset, append_time_ms)
                place += len(item.records)

    def _failed(self, batch: Sequence[_Pending], error: Exception) -> None:
        _fail(batch, error)
        if self._transaction is not None:
            self._transaction.failed(error)

    async def _write(self, queue: _PartitionQueue, batch: Sequence[_Pending], give_up_s: float) -> tuple[int, int]:
        """Send a batch, retrying with the same sequence; returns its base offset and append time. Raises KafkaError."""
        if self._transaction is not None:
            await self._transaction.add_partition(queue.tp)
        if self.options.idempotent:
            await self._take_identity(queue)
        base_sequence = queue.next_sequence if self.options.idempotent else -1
        new_records = list(chain.from_iterable(item.records for item in batch))
        records = bytes(
            build_batch(
                new_records,
                codec=self.options.codec,
                producer_id=queue.identity.producer_id,
                producer_epoch=queue.identity.epoch,
                base_sequence=base_sequence,
                transactional=self._transaction is not None,
            )
        )
        queue.next_sequence = increment_sequence(queue.next_sequence, len(new_records))
        stale = False

        async def attempt() -> tuple[int, int]:
            nonlocal stale
            fresh, stale = stale, True
            try:
                leader = await self._cluster.partition(queue.tp, fresh=fresh)
                return await self._produce(queue.tp, leader, records)
            except (KafkaError, CannotConnect) as error:
                queue.error = error
                raise

        try:
            async with asyncio.timeout_at(give_up_s):
                return await self._cluster.retrying(attempt, retry_s=give_up_s - self._loop.time())
        except TimeoutError:
            seconds = self.options.delivery_timeout_s
            queue.error = queue.error or RequestTimedOut(f"{queue.tp}: no acknowledgement within {seconds:g} s")
            raise queue.error from None

    async def _produce(self, tp: TopicPartition, leader: PartitionInfo, records: bytes) -> tuple[int, int]:
        from ottla.wire.generated.produce import PartitionProduceData, ProduceRequest, TopicProduceData

        topic_id = self._cluster.info.topics[tp.topic].topic_id
        at_most = FIRST_WITH_TOPIC_IDS - 1 if topic_id == NO_TOPIC_ID else None
        transaction = self._transaction
        if transaction is not None and transaction.produce_version_max is not None:
            at_most = transaction.produce_version_max
        data = PartitionProduceData(index=tp.partition, records=records)
        ask = ProduceRequest(
            transactional_id=None if transaction is None else transaction.transactional_id,
            acks=self.options.acks,
            timeout_ms=int(self._cluster.options.request_timeout_s * 1000),
            topic_data=[TopicProduceData(name=tp.topic, topic_id=topic_id, partition_data=[data])],
        )
        if self.options.acks == 0:
            connection = await self._cluster.connection(leader.leader_id)
            await connection.send_only(ApiKey.PRODUCE, ask, at_most=at_most)
            return -1, -1
        answer = await self._cluster.request(leader.leader_id, ApiKey.PRODUCE, ask, at_most=at_most)
        result = answer.responses[0].partition_responses[0]
        if result.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            return -1, -1  # written, but the broker no longer knows at which offset
        detail = next((e.batch_index_error_message for e in result.record_errors if e.batch_index_error_message), None)
        raise_for(result.error_code, result.error_message or detail, about=str(tp))
        return result.base_offset, result.log_append_time_ms

    async def _take_identity(self, queue: _PartitionQueue) -> None:
        """Set the queue's producer id and epoch; new ones restart the sequence at 0."""
        async with self._identity_lock:
            if self._transaction is not None:
                self._identity = self._transaction.identity
            elif not self._identity_is_valid:
                self._identity = await self._cluster.retrying(self._init_producer_id)
                self._identity_is_valid = True
        if queue.identity != self._identity:
            queue.identity, queue.next_sequence = self._identity, 0

    async def _init_producer_id(self) -> ProducerIdAndEpoch:
        from ottla.wire.generated.init_producer_id import InitProducerIdRequest

        ask = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        answer: InitProducerIdResponse = await self._cluster.request(ANY_BROKER, ApiKey.INIT_PRODUCER_ID, ask)
        if answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:  # Kafka has no truer code
            away = "the controller or the metadata store is away"
            raise_for(answer.error_code, away, about="no producer id")
        raise_for(answer.error_code, about="allocating a producer id")
        return ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)


def _fail(batch: Sequence[_Pending], error: Exception) -> None:
    for item in batch:
        item.set_failed(error)


def _size_bytes(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> int:
    """Return the upper bound of a record's size in a batch."""
    size_bytes = _RECORD_OVERHEAD_BYTES + (len(key) if key else 0) + (len(value) if value else 0)
    if headers:
        size_bytes += sum(len(name) + len(item or b"") + 4 for name, item in headers)
    return size_bytes


def _no_partition(info: TopicInfo, number: int) -> UnknownTopicOrPartition:
    return UnknownTopicOrPartition(
        f"topic {info.name} has no partition {number}; it has {len(info.partitions)}, numbered from 0"
    )
