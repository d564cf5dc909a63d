"""Reads a range of one partition from its leader: whole batches, verified, in offset order.

The next fetch is in flight while the previous response is decoded. If a broker restarts, a leader moves or a connection
breaks, the fetch is retried until the client's retry timeout. Every offset of the range is counted in `OffsetCounts`.
Offsets that were deleted before they were read raise an error with `fail_on_data_loss`; without it they are counted as
lost and skipped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ottla.client.cluster import Cluster
from ottla.client.errors import CannotConnect, raise_for
from ottla.client.isolation import AbortedFilter
from ottla.client.offsets import EARLIEST, list_offsets
from ottla.core.errors import CorruptMessage, ErrorCode, KafkaError, RequestTimedOut, UnknownTopicId
from ottla.core.ids import NO_TOPIC_ID, TopicPartition, id_text
from ottla.pipeline.connector.decoding import Batches
from ottla.pipeline.connector.offset_counts import OffsetCounts
from ottla.pipeline.connector.options import BrokerOptions, ReadOptions
from ottla.pipeline.offset_range import offsets_text
from ottla.records.batch import BatchHeader, split
from ottla.records.batch_faults import is_checksum_right
from ottla.records.record_reader import read_records
from ottla.wire.apis import ApiKey
from ottla.wire.hot.fetch import FIRST_WITH_TOPIC_IDS

_TURNS_TO_SEND = 3
"""Turns of the loop until a started request is sent."""
_EMPTY_MEANS_NONE = 2
"""Number of responses without a batch, though the log goes on after the range, that prove the range empty."""


class DataLoss(Exception):
    """Requested records are deleted, and the option failOnDataLoss makes that a failure."""


class TopicRecreated(DataLoss):
    """The topic was deleted and made again: its offsets mean other records now."""


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """Offsets of one partition from `first_offset` up to, not including, `end_offset`."""

    topic: str
    partition: int
    first_offset: int
    end_offset: int
    topic_id: str = ""
    """Kafka's text form of the id the topic had when the range was planned; empty where brokers have none."""

    @property
    def topic_partition(self) -> TopicPartition:
        """Return the topic and the partition."""
        return TopicPartition(self.topic, self.partition)


class _Answer(NamedTuple):
    """The result of one fetch: the batches to decode, and the offset of the next fetch."""

    batches: Batches
    next_offset: int
    log_end: int
    """Up to where records can be read: the high watermark, or the last stable offset for read_committed."""


class RangeReader:
    """Reads one range. `offset_counts` is right when `batches` has ended. Belongs to one thread."""

    def __init__(self, read_options: ReadOptions, wanted: PartitionRange) -> None:
        self.offset_counts = OffsetCounts()
        self._read_options = read_options
        self._wanted = wanted

    def batches(self) -> Iterator[Batches]:
        """Yield the batches with records of the range, response by response; their ends may be outside of it.

        The caller adds what it decoded to `offset_counts` by `count_decoded`. Raises DataLoss, the broker's KafkaError,
        CannotConnect, CorruptMessage.
        """
        with asyncio.Runner() as runner:
            cluster = runner.run(connect(self._read_options.connection))
            try:
                yield from self._read(runner, cluster)
            finally:
                runner.run(cluster.close())

    def count_decoded(self, batches: Batches, records: int) -> None:
        """Count the records of these batches that were in the range; what else they cover is holes."""
        covered = sum(self._within(header.base_offset, header.last_offset + 1) for _, header in batches)
        self.offset_counts.records += records
        self.offset_counts.compacted += covered - records

    def _read(self, runner: asyncio.Runner, cluster: Cluster) -> Iterator[Batches]:
        end = self._wanted.end_offset
        at, empty = self._wanted.first_offset, 0
        loop_time = runner.get_loop().time
        give_up_at = loop_time() + cluster.options.retry_s
        under_way = _start(runner, self._fetch(cluster, at)) if at < end else None
        while under_way is not None:
            answer = runner.run(_result(under_way))
            under_way = None
            if answer.next_offset > at:
                empty, give_up_at = 0, loop_time() + cluster.options.retry_s
            elif answer.log_end >= end:
                empty += 1
                if empty >= _EMPTY_MEANS_NONE:
                    self.offset_counts.compacted += end - at
                    return
            elif loop_time() > give_up_at:
                raise RequestTimedOut(
                    f"{self._wanted.topic_partition}: nothing comes from offset {at} on; what can be read ends at "
                    f"{answer.log_end}, and {end} was asked for"
                )
            at = answer.next_offset
            if at < end:
                under_way = _start(runner, self._fetch(cluster, at))
            if answer.batches:
                yield answer.batches

    async def _fetch(self, cluster: Cluster, offset: int) -> _Answer:
        stale = False

        async def attempt() -> _Answer:
            nonlocal stale
            fresh, stale = stale, True
            return await self._fetch_once(cluster, offset, fresh=fresh)

        try:
            return await cluster.retrying(attempt)
        except TopicRecreated:
            if self._read_options.fail_on_data_loss:
                raise
            self.offset_counts.lost += self._wanted.end_offset - offset
            return _Answer((), self._wanted.end_offset, self._wanted.end_offset)

    async def _fetch_once(self, cluster: Cluster, offset: int, *, fresh: bool) -> _Answer:
        from ottla.wire.generated.fetch import FetchPartition, FetchRequest, FetchTopic

        read_options, tp = self._read_options, self._wanted.topic_partition
        leader = await cluster.partition(tp, fresh=fresh)
        topic_id = cluster.info.topics[tp.topic].topic_id
        if self._wanted.topic_id and topic_id != NO_TOPIC_ID and id_text(topic_id) != self._wanted.topic_id:
            raise TopicRecreated(
                f"topic {tp.topic} had id {self._wanted.topic_id} and has {id_text(topic_id)} now: it was recreated"
            )
        part = FetchPartition(partition=tp.partition, fetch_offset=offset, partition_max_bytes=read_options.fetch_bytes)
        ask = FetchRequest(
            max_wait_ms=read_options.fetch_wait_ms,
            min_bytes=1,
            max_bytes=read_options.fetch_bytes,
            isolation_level=int(read_options.read_committed),
            topics=[FetchTopic(topic=tp.topic, topic_id=topic_id, partitions=[part])],
        )
        at_most = FIRST_WITH_TOPIC_IDS - 1 if topic_id == NO_TOPIC_ID else None
        answer = await cluster.request(leader.leader_id, ApiKey.FETCH, ask, at_most=at_most)
        raise_for(answer.error_code, about=f"fetching {tp}")
        if not answer.responses:
            raise UnknownTopicId(f"fetching {tp}: the response does not contain it")  # worth another attempt
        data = answer.responses[0].partitions[0]
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return await self._out_of_range(cluster, offset)
        raise_for(data.error_code, about=f"{tp} at offset {offset}")
        return self._walk(data, offset)

    def _walk(self, data: Any, at: int) -> _Answer:
        """Check what came, leave out batches without records for readers, and count the gaps."""
        view = memoryview(data.records or b"")
        aborted = AbortedFilter((item.producer_id, item.first_offset) for item in data.aborted_transactions or ())
        found, passed = [], OffsetCounts()
        for position, header in split(view, partial_tail=True):
            batch = view[position : position + header.size_bytes]
            if self._read_options.check_crcs and not is_checksum_right(batch, header):
                tp = self._wanted.topic_partition
                raise CorruptMessage(f"{tp}: the batch at offset {header.base_offset} does not match its checksum")
            passed.compacted += self._within(at, header.base_offset)
            covered = self._within(header.base_offset, header.last_offset + 1)
            at = max(at, header.last_offset + 1)
            if header.is_control:
                _end_transaction(aborted, header, batch)
                passed.control += covered
            elif self._read_options.read_committed and _is_aborted(aborted, header):
                passed.aborted += covered
            elif covered:
                found.append((batch, header))
        self.offset_counts.add(passed)  # at once, here: an attempt that failed half way is made again
        log_end = data.last_stable_offset if self._read_options.read_committed else data.high_watermark
        return _Answer(found, at, log_end)

    async def _out_of_range(self, cluster: Cluster, offset: int) -> _Answer:
        """Handle an offset before the log's start (deleted records) or after its end (a truncated or another log)."""
        tp, end = self._wanted.topic_partition, self._wanted.end_offset
        start = (await list_offsets(cluster, {tp: EARLIEST}))[tp].offset
        if start <= offset:
            message = f"{tp}: offset {offset} is after the end of the log; the log was truncated, or is another log"
            next_offset = end
        else:
            message = f"{tp}: records were deleted before they were read: {offsets_text(offset, min(start, end))}"
            next_offset = min(start, end)
        if self._read_options.fail_on_data_loss:
            raise DataLoss(f"{message} ({self._read_options.loss_advice})")
        self.offset_counts.lost += next_offset - offset
        return _Answer((), next_offset, next_offset)

    def _within(self, first: int, end: int) -> int:
        """Return the number of offsets of the wanted range from `first` up to, not including, `end`."""
        return max(0, min(end, self._wanted.end_offset) - max(first, self._wanted.first_offset))


async def first_connect(connection: BrokerOptions) -> Cluster:
    """Connect at the start of a job or query: absent brokers are an error after `connection.wait_s`.

    Raises CannotConnect or a KafkaError.
    """
    twice_s = connection.wait_s / (2 * len(connection.brokers))  # time to try each of them two times
    each_s = min(connection.client.connect_timeout_s, max(1.0, twice_s))
    impatient = replace(connection.client, connect_timeout_s=each_s, retry_s=connection.wait_s)
    cluster = await connect(replace(connection, client=impatient))
    cluster.options = connection.client
    return cluster


async def connect(connection: BrokerOptions) -> Cluster:
    """Connect, trying for as long as the client's patience lasts. Raises CannotConnect or a KafkaError."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + connection.client.retry_s
    wait_s = 0.05
    while True:
        try:
            return await Cluster.connect(connection.brokers, options=connection.client)
        except CannotConnect:
            if loop.time() + wait_s > give_up_at:
                raise
        except KafkaError as error:
            if not error.retriable or loop.time() + wait_s > give_up_at:
                raise
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, 1.0)


def _end_transaction(aborted: AbortedFilter, header: BatchHeader, batch: memoryview) -> None:
    key = next((record.key for record in read_records(batch)), None)
    aborted.end_transaction(producer_id=header.producer_id, last_offset=header.last_offset, control_key=key)


def _is_aborted(aborted: AbortedFilter, header: BatchHeader) -> bool:
    return aborted.is_aborted(
        producer_id=header.producer_id, last_offset=header.last_offset, transactional=header.is_transactional
    )


def _start(runner: asyncio.Runner, work: Coroutine[Any, Any, _Answer]) -> asyncio.Task[_Answer]:
    """Start a fetch and run the loop until its request is sent."""

    async def begin() -> asyncio.Task[_Answer]:
        task = asyncio.ensure_future(work)
        for _ in range(_TURNS_TO_SEND):
            await asyncio.sleep(0)
        return task

    return runner.run(begin())


async def _result(task: asyncio.Task[_Answer]) -> _Answer:
    return await task
