"""Reads and appends to an internal topic in which a coordinator keeps its state.

Implements the port `TopicLog` on the replicas of this broker. Records are appended like a client's, so they are as
durable and replicated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from ottla.core.clock import Clock
from ottla.core.errors import NotEnoughReplicasAfterAppend
from ottla.core.ids import TopicPartition
from ottla.internal_topics.topic_log import (
    RECORDS_ON_LOOP_MAX,
    AppendedBatch,
    KeyValue,
    LoadedRecords,
    ProducerIdentity,
)
from ottla.metadata_store.metadata_cache import MetadataCache
from ottla.records.builder import NewRecord, build_batch
from ottla.replication.high_watermark_waiters import FutureWaiter
from ottla.replication.partition import Partition
from ottla.replication.replicas import Replicas
from ottla.storage.log.partition_log import AppendOrigin


class InternalTopic:
    """Reads and appends to one internal, compacted topic."""

    def __init__(self, topic: str, *, replicas: Replicas, cluster: MetadataCache, clock: Clock) -> None:
        self.topic = topic
        self._replicas, self._cluster, self._clock = replicas, cluster, clock

    @property
    def partitions(self) -> int:
        """Return the number of partitions; 0 before the first use."""
        topic = self._cluster.current.topics.get(self.topic)
        return len(topic.partitions) if topic is not None else 0

    def is_offline(self, partition: int) -> bool:
        """Return whether the partition is offline."""
        return self._replicas.is_offline(self.topic, partition) or self._replicas.is_held(self.topic, partition)

    def leader_epoch(self, partition: int) -> int:
        """Return the leader epoch of a partition that this broker leads. Raises KafkaError."""
        replica = self._partition(partition)
        if not replica.is_serving:
            replica.check_serving()
        return replica.leader_epoch

    def end_offset(self, partition: int) -> int:
        """Return the offset of the next batch. Raises KafkaError."""
        return self._partition(partition).log.end_offset

    def delete_records(self, partition: int, before_offset: int, *, leader_epoch: int) -> None:
        """Delete the records before an offset. Raises KafkaError, also if the leader epoch is not this one any more."""
        replica = self._led(partition, leader_epoch)
        replica.delete_records(min(before_offset, replica.high_watermark))

    async def append(
        self,
        partition: int,
        records: Sequence[KeyValue],
        producer: ProducerIdentity | None = None,
        *,
        leader_epoch: int,
    ) -> AppendedBatch:
        """Append as one batch, transactional with a producer. Raises KafkaError, then nothing is appended."""
        now_ms = self._clock.wall_ms()
        if len(records) > RECORDS_ON_LOOP_MAX:
            batch = await asyncio.to_thread(_batch, records, producer, now_ms)
        else:
            batch = _batch(records, producer, now_ms)
        replica = self._led(partition, leader_epoch)  # nothing is awaited between this check and the append
        appended = replica.append_as_leader(
            memoryview(batch),
            acks=-1,
            now_ms=now_ms,
            origin=AppendOrigin.COORDINATOR,
            guard=None if producer is None else producer.guard,
        )
        next_offset = appended.last_offset + 1
        return AppendedBatch(appended.first_offset, next_offset, _replicated(replica, next_offset))

    def read_all(self, partition: int, end_offset: int) -> AsyncIterator[LoadedRecords]:
        """Yield everything from the start of the log to an offset, replicated or not. Raises KafkaError."""
        from ottla.internal_topics.log_reader import read_all

        return read_all(self._partition(partition).log, end_offset)

    async def wait_until_replicated(self, partition: int, end_offset: int, *, leader_epoch: int) -> None:
        """Wait until the high watermark reaches an offset. Raises KafkaError if this broker's term ends before."""
        await _replicated(self._led(partition, leader_epoch), end_offset)

    def _led(self, partition: int, leader_epoch: int) -> Partition:
        """Return the partition that this broker leads in this epoch. Raises KafkaError."""
        return self._replicas.leader(self.topic, partition, leader_epoch)

    def _partition(self, index: int) -> Partition:
        return self._replicas.partition(TopicPartition(self.topic, index))


_TO_FUTURE = FutureWaiter()  # held, not inherited from: a compiled class has compiled subclasses only


class _HighWatermarkWaiter:
    """Waits for the high watermark alone.

    If the in-sync replicas became too few at the moment in which it passed a record, the record counts all the same:
    the log has decided, and memory must not differ from it.
    """

    def offset_reached(self, part: object, error: BaseException | None) -> None:
        """Complete the future: the records are below the high watermark, or never will be."""
        _TO_FUTURE.offset_reached(part, None if isinstance(error, NotEnoughReplicasAfterAppend) else error)


def _replicated(replica: Partition, end_offset: int) -> asyncio.Future[None]:
    """Return a future that completes when the high watermark reaches an offset."""
    reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    replica.waiters.add(end_offset, _HighWatermarkWaiter(), reached)
    return reached


def _batch(records: Sequence[KeyValue], producer: ProducerIdentity | None, now_ms: int) -> bytearray:
    built = [NewRecord(key=key, value=value, timestamp_ms=now_ms) for key, value in records]
    if producer is None:
        return build_batch(built)
    return build_batch(built, producer_id=producer.producer_id, producer_epoch=producer.epoch, transactional=True)
