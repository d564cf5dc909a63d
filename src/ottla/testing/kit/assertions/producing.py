"""Appends a test's records to topics, at the leaders of their partitions, as acks=all does and without a client."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ottla.client.partitioner import partition_for_key
from ottla.core.errors import RequestTimedOut
from ottla.core.ids import TopicPartition
from ottla.records.builder import NewRecord, build_batch
from ottla.replication.high_watermark_waiters import FutureWaiter
from ottla.testing.cluster import TestCluster
from ottla.testing.kit.assertions.lookups import leader_of, partitions_of, topic_of

Data = bytes | str | None
Headers = Iterable[tuple[str, bytes | str | None]]

_TIMEOUT_S = 30.0
_BATCH_BYTES = 256 << 10  # a larger record is a batch of its own, which the topic's max.message.bytes may refuse
_BATCH_RECORDS = 5000
_RECORD_BYTES = 40  # of a record besides its data, at most


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """A record to produce. Text is encoded as UTF-8; without a timestamp the brokers' time is taken."""

    value: Data
    key: Data = None
    partition: int | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """The place of a record that was produced."""

    topic: str
    partition: int
    offset: int


class Produce:
    """Appends records to topics, and chooses their partitions.

    A record with a key goes where Kafka's clients send it (murmur2). Those without one go to one partition per call,
    and with the next call to the next: so the records of a call stay in order.
    """

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()

    async def append(
        self, cluster: TestCluster, topic: str, records: Sequence[ProducerRecord]
    ) -> tuple[RecordMetadata, ...]:
        """Append records and return where they are, in their order, once they are replicated.

        Raises NotFound, and the KafkaError that a producer would get.
        """
        view = topic_of(cluster, topic)
        if view.internal:
            raise ValueError(f"{topic} is a topic of the brokers themselves: records of tests have no place there")
        count = len(view.partitions)
        keyless = self._calls[topic] % count
        places: dict[int, list[int]] = {}
        for place, record in enumerate(records):
            if record.partition is not None:
                ((_, partition),) = partitions_of(view, record.partition)
            elif record.key is None:
                partition = keyless
            else:
                partition = partition_for_key(_bytes(record.key) or b"", count)
            places.setdefault(partition, []).append(place)
        self._calls[topic] += any(record.partition is None and record.key is None for record in records)
        metadata: dict[int, RecordMetadata] = {}
        for partition, chosen in places.items():
            offsets = await _append(cluster, TopicPartition(topic, partition), [records[place] for place in chosen])
            for place, offset in zip(chosen, offsets, strict=True):
                metadata[place] = RecordMetadata(topic, partition, offset)
        return tuple(metadata[place] for place in range(len(records)))


async def _append(cluster: TestCluster, where: TopicPartition, records: Sequence[ProducerRecord]) -> list[int]:
    offsets: list[int] = []
    services, partition = await leader_of(cluster, where)
    now_ms = services.clock.wall_ms()
    for batch in _batches([_new_record(record, now_ms) for record in records]):
        appended = partition.append_as_leader(memoryview(build_batch(batch)), acks=-1, now_ms=now_ms)
        offsets += range(appended.first_offset, appended.last_offset + 1)
        replicated: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        partition.waiters.add(appended.last_offset + 1, FutureWaiter(), replicated)
        try:
            await asyncio.wait_for(replicated, _TIMEOUT_S)
        except TimeoutError:
            raise RequestTimedOut(f"{where}: not all in-sync replicas have the records yet") from None
    return offsets


def _batches(records: Sequence[NewRecord]) -> Iterable[list[NewRecord]]:
    batch: list[NewRecord] = []
    size = 0
    for record in records:
        record_size = _RECORD_BYTES + len(record.key or b"") + len(record.value or b"")
        record_size += sum(_RECORD_BYTES + len(name) * 4 + len(value or b"") for name, value in record.headers)
        if batch and (size + record_size > _BATCH_BYTES or len(batch) == _BATCH_RECORDS):
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += record_size
    if batch:
        yield batch


def _new_record(record: ProducerRecord, now_ms: int) -> NewRecord:
    return NewRecord(
        key=_bytes(record.key),
        value=_bytes(record.value),
        timestamp_ms=now_ms if record.timestamp_ms is None else record.timestamp_ms,
        headers=[(name, _bytes(value)) for name, value in record.headers],
    )


def _bytes(data: Data) -> bytes | None:
    """Return text as UTF-8. Raises TypeError for what is neither text nor bytes."""
    if isinstance(data, str):
        return data.encode()
    if data is not None and not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"{data!r} is neither bytes nor text: a record has bytes")
    return None if data is None else bytes(data)
