"""A topic as Arrow batches: what its partitions hold, and reading a range of one, whole batches at a time.

Works against any broker of Kafka's protocol. The driver asks for the offsets; each task has a connection of its own
and asks for the next piece before it decodes the last, so that network, broker and decoder work at the same time.
Records are read as they lie in the log (isolation read_uncommitted); control records are no records.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ottla.client.addresses import parse_addresses
from ottla.client.cluster import ClientOptions, Cluster
from ottla.client.consumer import whole_batches
from ottla.client.errors import raise_for
from ottla.client.offsets import beginning_offsets, end_offsets
from ottla.core.errors import CorruptMessage
from ottla.core.ids import NO_TOPIC_ID, TopicPartition, id_text
from ottla.pipeline.lake import OffsetRange
from ottla.pipeline.landing import RECORDS
from ottla.pipeline.load import LoadError, LogSpan
from ottla.records.batch import crc_is_right, split
from ottla.records.scanner import columns
from ottla.wire.apis import ApiKey

_FETCH_BYTES = 4 << 20
_FETCH_WAIT_MS = 500
_EMPTY_FETCHES_MAX = 20
"""Answers without a record before the end is reached: after some ten seconds of them something is wrong."""
_TURNS_TO_SEND = 3
"""Turns of the loop until a started request is on its way."""
_NAMES_UNTIL = 12  # Fetch up to this version names topics, later ones carry their ids (KIP-516)


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as the brokers tell it: who it is, and what its partitions hold."""

    topic_id: str
    """Kafka's text form; changes when a topic is deleted and made again. Empty for brokers older than topic ids."""
    spans: Mapping[int, LogSpan]


def topic_state(bootstrap: str, topic: str) -> TopicState:
    """Ask now. Raises the broker's KafkaError, or CannotConnect."""

    async def ask() -> TopicState:
        async with await _connect(bootstrap) as cluster:
            info = await cluster.topic(topic)
            partitions = [TopicPartition(topic, p.partition) for p in info.partitions]
            starts, ends = await beginning_offsets(cluster, partitions), await end_offsets(cluster, partitions)
            topic_id = "" if info.topic_id == NO_TOPIC_ID else id_text(info.topic_id)
            return TopicState(topic_id, {tp.partition: LogSpan(starts[tp], ends[tp]) for tp in partitions})

    return asyncio.run(ask())


@dataclass(frozen=True, slots=True)
class BrokerReader:
    """A `landing.Reader` that asks the brokers. A value: it travels to the tasks and connects there."""

    bootstrap: str
    topic: str

    def read(self, offsets: OffsetRange) -> Iterator[pa.RecordBatch]:
        """The records of the range. Raises the broker's KafkaError, CannotConnect, or LoadError if they never come."""
        with asyncio.Runner() as runner:
            cluster = runner.run(_connect(self.bootstrap))
            try:
                yield from self._read(runner, cluster, offsets)
            finally:
                runner.run(cluster.close())

    def _read(self, runner: asyncio.Runner, cluster: Cluster, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        at, empty = wanted.first_offset, 0
        under_way = _start(runner, self._fetch(cluster, wanted.partition, at))
        while at < wanted.end_offset:
            data = runner.run(_result(under_way))
            next_offset = _end_of(data, at)
            empty = empty + 1 if next_offset == at else 0
            if empty > _EMPTY_FETCHES_MAX:
                raise LoadError(f"{self.topic}-{wanted.partition}: the broker gives nothing from offset {at} on")
            if next_offset < wanted.end_offset:  # the next piece travels while this one is decoded
                under_way = _start(runner, self._fetch(cluster, wanted.partition, next_offset))
            if len(data):
                yield decode(data, OffsetRange(wanted.partition, at, wanted.end_offset))
            at = next_offset

    async def _fetch(self, cluster: Cluster, partition: int, offset: int) -> memoryview:
        """The batches at an offset: whole ones, checked against their checksums."""
        stale = False

        async def attempt() -> memoryview:
            nonlocal stale
            fresh, stale = stale, True
            return await self._fetch_once(cluster, partition, offset, fresh=fresh)

        return await cluster.retrying(attempt)

    async def _fetch_once(self, cluster: Cluster, partition: int, offset: int, *, fresh: bool) -> memoryview:
        from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

        leader = await cluster.partition(TopicPartition(self.topic, partition), fresh=fresh)
        topic_id = cluster.info.topics[self.topic].topic_id
        place = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=_FETCH_BYTES)
        ask = FetchRequest(
            max_wait_ms=_FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=_FETCH_BYTES,
            topics=[FetchTopic(topic=self.topic, topic_id=topic_id, partitions=[place])],
        )
        at_most = _NAMES_UNTIL if topic_id == NO_TOPIC_ID else None
        answer = await cluster.request(leader.leader_id, ApiKey.FETCH, ask, at_most=at_most)
        raise_for(answer.error_code, about="fetching")
        if not answer.responses:
            return memoryview(b"")
        data = answer.responses[0].partitions[0]
        raise_for(data.error_code, about=f"{self.topic}-{partition} at offset {offset}")
        return _checked(whole_batches(data.records or b""))


def decode(batches: memoryview, offsets: OffsetRange) -> pa.RecordBatch:
    """Record batches of one partition as one Arrow batch, without control records and what lies outside the range."""
    found = columns(batches, from_offset=offsets.first_offset, end_offset=offsets.end_offset, want=("key", "value"))
    times = _int64(found.timestamps_ms)
    known = pc.if_else(pc.less(times, 0), pa.scalar(None, pa.int64()), times)  # -1: its producer gave none
    return pa.record_batch(
        [
            pa.repeat(pa.scalar(offsets.partition, pa.int32()), len(times)),
            _int64(found.offsets),
            known.cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC")),
            pa.array(found.keys, pa.binary()),
            pa.array(found.values, pa.binary()),
        ],
        schema=RECORDS,
    )


def _int64(numbers: array[int]) -> Any:
    """An Arrow array over the same memory."""
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def _checked(batches: memoryview) -> memoryview:
    for at, header in split(batches):
        if not crc_is_right(batches[at : at + header.size_bytes], header):
            raise CorruptMessage(f"the batch at offset {header.base_offset} does not match its checksum")
    return batches


def _end_of(batches: memoryview, otherwise: int) -> int:
    """The offset after the last batch."""
    end = otherwise
    for _, header in split(batches):
        end = header.last_offset + 1
    return end


async def _connect(bootstrap: str) -> Cluster:
    return await Cluster.connect(parse_addresses(bootstrap), options=ClientOptions(client_id="ottla-pipeline"))


def _start(runner: asyncio.Runner, work: Coroutine[Any, Any, memoryview]) -> asyncio.Task[memoryview]:
    """Begin, and let it get as far as sending its request."""

    async def begin() -> asyncio.Task[memoryview]:
        task = asyncio.ensure_future(work)
        for _ in range(_TURNS_TO_SEND):
            await asyncio.sleep(0)
        return task

    return runner.run(begin())


async def _result(task: asyncio.Task[memoryview]) -> memoryview:
    return await task
