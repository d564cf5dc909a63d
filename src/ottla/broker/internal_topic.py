"""Reads and appends to an internal topic in which a coordinator keeps its state.

Implements the port `OffsetsLog` of `groups` on the partitions of `__consumer_offsets`. Records are appended like a
client's, so they are as durable and replicated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from ottla.coordination.view import Cluster
from ottla.core.clock import Clock
from ottla.core.ids import TopicPartition
from ottla.records.batch import split
from ottla.records.builder import NewRecord, build_batch
from ottla.records.record_reader import read_records
from ottla.replication.partition import Partition
from ottla.replication.replicas import Replicas
from ottla.storage.log.partition_log import AppendOrigin

READ_BYTES = 1 << 20

KeyValue = tuple[bytes, bytes | None]


RECORDS_ON_LOOP_MAX = 500
"""A batch of more records is built in a thread."""


class _FutureWaiter:
    """Passes the outcome of a wait for an offset to a future, which is the `part` of the wait."""

    def offset_reached(self, part: object, error: BaseException | None) -> None:
        """The records are replicated, or never will be."""
        assert isinstance(part, asyncio.Future)
        if part.done():
            return
        if error is None:
            part.set_result(None)
        else:
            part.set_exception(error)


class InternalTopic:
    """Reads and appends to one internal, compacted topic."""

    def __init__(self, topic: str, *, replicas: Replicas, cluster: Cluster, clock: Clock) -> None:
        self.topic = topic
        self._replicas, self._cluster, self._clock = replicas, cluster, clock

    @property
    def partitions(self) -> int:
        """Return the number of partitions; 0 before the first use."""
        topic = self._cluster.current.topics.get(self.topic)
        return len(topic.partitions) if topic is not None else 0

    def is_offline(self, partition: int) -> bool:
        """Return whether the partition is offline."""
        return self._replicas.is_offline(self.topic, partition)

    async def append(self, partition: int, records: Sequence[KeyValue]) -> None:
        """Append as one batch; returns once it is replicated. Raises KafkaError."""
        now_ms = self._clock.wall_ms()
        if len(records) > RECORDS_ON_LOOP_MAX:
            batch = await asyncio.to_thread(_batch, records, now_ms)
        else:
            batch = _batch(records, now_ms)
        replica = self._partition(partition)
        appended = replica.append_as_leader(memoryview(batch), acks=-1, now_ms=now_ms, origin=AppendOrigin.COORDINATOR)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        replica.waiters.add(appended.last_offset + 1, _FutureWaiter(), done)
        await done

    async def read_all(self, partition: int) -> AsyncIterator[KeyValue]:
        """Yield every key and value from the start of the log to its current end."""
        replica = self._partition(partition)
        offset, end = replica.log.log_start_offset, replica.log.end_offset
        while offset < end:
            region = replica.log.read(offset, max_bytes=READ_BYTES, end_offset=end, at_least_one=True)
            if region is None:
                return
            offset, found = await asyncio.to_thread(_decode, region.read())
            for item in found:
                yield item

    def _partition(self, index: int) -> Partition:
        return self._replicas.partition(TopicPartition(self.topic, index))


def _batch(records: Sequence[KeyValue], now_ms: int) -> bytearray:
    return build_batch([NewRecord(key=key, value=value, timestamp_ms=now_ms) for key, value in records])


def _decode(data: bytes) -> tuple[int, list[KeyValue]]:
    """Decode the keys and values of complete batches; returns the offset after the last one too."""
    view = memoryview(data)
    found: list[KeyValue] = []
    next_offset = 0
    for at, header in split(view):
        next_offset = header.last_offset + 1
        if not header.is_control:
            found += [
                (record.key, record.value)
                for record in read_records(view[at : at + header.size_bytes])
                if record.key is not None
            ]
    return next_offset, found
