"""Produces records and reports to the topic `__audit` how many were acknowledged, and the checksums of their content.

    async with AuditedProducer(cluster, clock=SystemClock()) as producer:
        await producer.send("orders", value=b"...")

The checksums are of the records as they were given to `send`, not of what the producer made of them, and are reported
under the offsets that the broker acknowledged: what an audit finds there must be these records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from itertools import groupby

from ottla.client.audit import AUDIT_TOPIC, ProducedCounter, bucket_of
from ottla.client.audit_topic import ensure_audit_topic, send_counts
from ottla.client.cluster import Cluster
from ottla.client.content import record_checksum
from ottla.client.producer import Headers, Producer, ProducerOptions, RecordGroup, RecordMetadata, WrittenRange
from ottla.core.clock import Clock
from ottla.core.runtime import new_uuid
from ottla.records.builder import NewRecord


class AuditedProducer(Producer):
    """A producer that reports when it is closed without an error, or by `report` before."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        clock: Clock,
        options: ProducerOptions | None = None,
        counter: ProducedCounter | None = None,
    ) -> None:
        super().__init__(cluster, clock=clock, options=options)
        self.counter = counter or ProducedCounter(new_uuid().hex)
        self._of_cluster = cluster

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
        """Queue a record as `Producer.send` does."""
        sent = await super().send(
            topic, key=key, value=value, headers=headers, timestamp_ms=timestamp_ms, partition=partition
        )
        if topic != AUDIT_TOPIC:
            sent.add_done_callback(partial(self._count, topic, NewRecord(key, value, -1, tuple(headers or ()))))
        return sent

    async def send_many(
        self, topic: str, records: Sequence[NewRecord], *, partitions: Sequence[int | None] | None = None
    ) -> list[RecordGroup]:
        """Queue records as `Producer.send_many` does."""
        groups = await super().send_many(topic, records, partitions=partitions)
        for group in groups:
            group.done.add_done_callback(partial(self._count_group, topic, records, group))
        return groups

    async def report(self) -> None:
        """Report all that was acknowledged so far; doing it twice changes nothing. Raises KafkaError."""
        await self.flush()
        await ensure_audit_topic(self._of_cluster)
        await send_counts(self, self.counter.reports())

    async def close(self, *, flush: bool = True) -> None:
        """Report, unless the records are given up, and close."""
        if flush:
            await self.report()
        await super().close(flush=flush)

    def _count(self, topic: str, record: NewRecord, sent: asyncio.Future[RecordMetadata]) -> None:
        if sent.cancelled() or sent.exception() is not None:
            return
        written = sent.result()
        checksum = record_checksum(record.key, record.value, record.headers, written.timestamp_ms)
        self.counter.acknowledged(topic, written.partition, written.offset, written.timestamp_ms, checksum)

    def _count_group(
        self, topic: str, records: Sequence[NewRecord], group: RecordGroup, _: asyncio.Future[None]
    ) -> None:
        for written in group.written:
            count_written(self.counter, topic, records, group, written)


def count_written(
    counter: ProducedCounter, topic: str, records: Sequence[NewRecord], group: RecordGroup, written: WrittenRange
) -> None:
    """Count records of a `send_many` that the broker acknowledged, with the checksums of their content."""
    offset = written.base_offset
    positions = group.positions[written.first_index : written.first_index + written.record_count]
    bucket_checksums = []
    for position in positions:
        key, value, timestamp_ms, headers = records[position]
        timestamp_ms = timestamp_ms if written.append_time_ms < 0 else written.append_time_ms
        bucket_checksums.append((bucket_of(timestamp_ms), record_checksum(key, value, headers, timestamp_ms)))
    for bucket_ms, same in groupby(bucket_checksums, key=lambda one: one[0]):
        checksums = [checksum for _, checksum in same]
        counter.acknowledged_run(topic, group.partition, offset, bucket_ms, len(checksums), checksums)
        offset = offset if offset < 0 else offset + len(checksums)
