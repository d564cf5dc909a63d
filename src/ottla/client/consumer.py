"""Consumes assigned partitions from given offsets, up to given end offsets or without an end.

One fetch per leader is in flight; the next one is sent before the records of the previous response are decoded, so
that the network and this process work at the same time. Memory is bounded by two responses per broker. Consumer groups
are in `client/group_member.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from ottla.client.cluster import Cluster
from ottla.client.errors import CannotConnect, raise_for
from ottla.client.isolation import AbortedFilter, is_visible
from ottla.client.offsets import by_topic
from ottla.core.errors import CorruptMessage, ErrorCode, KafkaError, OffsetOutOfRange, RequestTimedOut, error_for
from ottla.core.files import FileRegion
from ottla.core.ids import NO_TOPIC_ID, TopicPartition
from ottla.records.batch import NO_END_OFFSET, BatchHeader, split
from ottla.records.batch_faults import is_checksum_right
from ottla.records.record_reader import Record, read_records
from ottla.wire.apis import ApiKey
from ottla.wire.hot.fetch import FIRST_WITH_TOPIC_IDS

if TYPE_CHECKING:
    from ottla.wire.generated.fetch import FetchResponse, PartitionData


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """The size limits of a fetch, and how long it waits at the end of the log."""

    read_committed: bool = False
    max_bytes: int = 16 << 20
    partition_max_bytes: int = 2 << 20
    min_bytes: int = 1
    max_wait_s: float = 0.5
    check_crcs: bool = True


class Consumer:
    """Reads partitions from `positions` on, which advance as records are returned: they are the offsets to commit."""

    def __init__(
        self,
        cluster: Cluster,
        positions: Mapping[TopicPartition, int],
        *,
        end: Mapping[TopicPartition, int] | None = None,
        options: ConsumerOptions | None = None,
        on_batch: Callable[[TopicPartition, BatchHeader], None] | None = None,
    ) -> None:
        """Take `positions` and `end`, which is exclusive; a partition without an end is read without end.

        `on_batch` gets the header of each batch in the range, before its records.
        """
        self.options = options or ConsumerOptions()
        self.positions = dict(positions)
        self.high_watermarks: dict[TopicPartition, int] = {}
        self._cluster = cluster
        self._on_batch = on_batch
        self._end = dict(end or {})
        self._fetch_at = {tp: at for tp, at in positions.items() if not self._is_done(tp, at)}
        self._fetching: dict[int, asyncio.Task[Any]] = {}
        self._failing_since: float | None = None
        self._failing = set[int]()  # the brokers whose last answer was an error
        self._no_progress_since: dict[TopicPartition, float] = {}
        self._stale = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel the fetches in flight."""
        tasks = list(self._fetching.values())
        self._fetching.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def chunks(self) -> AsyncIterator[tuple[TopicPartition, list[Record]]]:
        """Yield the records as they arrive, in order within a partition; ends when every partition is at its end.

        Raises `OffsetOutOfRange` when a position was deleted, and other errors after the retries failed.
        """
        while self._fetch_at or self._fetching:
            await self._start_fetches()
            if not self._fetching:
                continue  # no partition has a leader now; _start_fetches waited
            done, _ = await asyncio.wait(self._fetching.values(), return_when=asyncio.FIRST_COMPLETED)
            for node_id in [node_id for node_id, task in self._fetching.items() if task in done]:
                task = self._fetching.pop(node_id)
                answer = await self._response_of(node_id, task)
                if answer is None:
                    continue
                found, failed = self._advance(answer)
                await self._start_fetches()  # the next response travels while this one is decoded
                for tp, data, from_offset in found:
                    for records in self._decode(tp, data, from_offset):
                        self.positions[tp] = max(self.positions[tp], records[-1].offset + 1)
                        yield tp, records
                    self.positions[tp] = max(self.positions[tp], self._next_offset(tp, data))
                if failed is not None:
                    self._failing.add(node_id)
                    await self._back_off(failed)
                    continue
                self._failing.discard(node_id)
                if not self._failing:  # the success of one broker is not the end of the failures of another
                    self._failing_since = None
                    self._cluster.retries.succeeded(self)

    def pause_all(self) -> None:
        """Start no more fetches; `chunks` ends after those in flight."""
        self._fetch_at.clear()

    async def _start_fetches(self) -> None:
        """Start a fetch for each leader that has none in flight."""
        if not self._fetch_at:
            return
        fresh, self._stale = self._stale, False
        try:
            grouped = await self._cluster.by_leader(self._fetch_at, fresh=fresh)
        except (KafkaError, CannotConnect) as error:
            await self._back_off(error)
            return
        self._failing.intersection_update(grouped)
        for node_id, tps in grouped.items():
            if node_id not in self._fetching:
                self._fetching[node_id] = asyncio.ensure_future(self._fetch(node_id, tps))

    async def _fetch(self, node_id: int, tps: list[TopicPartition]) -> Any:
        from ottla.wire.generated.fetch import FetchPartition, FetchRequest, FetchTopic

        ids = {topic: self._cluster.info.topics[topic].topic_id for topic in {tp.topic for tp in tps}}
        options = self.options
        topics = [
            FetchTopic(
                topic=topic,
                topic_id=ids[topic],
                partitions=[
                    FetchPartition(
                        partition=tp.partition,
                        fetch_offset=self._fetch_at[tp],
                        partition_max_bytes=options.partition_max_bytes,
                    )
                    for tp in group
                ],
            )
            for topic, group in by_topic(tps).items()
        ]
        ask = FetchRequest(
            max_wait_ms=int(options.max_wait_s * 1000),
            min_bytes=options.min_bytes,
            max_bytes=options.max_bytes,
            isolation_level=int(options.read_committed),
            topics=topics,
        )
        at_most = FIRST_WITH_TOPIC_IDS - 1 if NO_TOPIC_ID in ids.values() else None
        timeout_s = self._cluster.options.request_timeout_s + options.max_wait_s
        return await self._cluster.request(node_id, ApiKey.FETCH, ask, timeout_s=timeout_s, at_most=at_most)

    async def _response_of(self, node_id: int, task: asyncio.Task[FetchResponse]) -> FetchResponse | None:
        """Return the response of a fetch, or None after a backoff if a retriable error occurred."""
        try:
            answer = task.result()
            raise_for(answer.error_code, about="fetching")
        except (KafkaError, CannotConnect) as error:
            self._failing.add(node_id)
            await self._back_off(error)
            return None
        return answer

    async def _back_off(self, error: KafkaError | CannotConnect) -> None:
        """Wait before a retry; raise the error if it is not retriable or has lasted too long."""
        now = asyncio.get_running_loop().time()
        self._failing_since = now if self._failing_since is None else self._failing_since
        is_final = isinstance(error, KafkaError) and not error.retriable
        if is_final or now - self._failing_since > self._cluster.options.retry_s:
            raise error
        self._cluster.retries.failed(self, error, left_s=self._failing_since + self._cluster.options.retry_s - now)
        self._stale = True
        await asyncio.sleep(0.1)

    def _advance(
        self, answer: FetchResponse
    ) -> tuple[list[tuple[TopicPartition, PartitionData, int]], KafkaError | None]:
        """Advance the fetch positions past the batches of a response.

        Returns the partitions that have batches, with the fetch offset, and the error of one partition if any failed.
        """
        names = {info.topic_id: name for name, info in self._cluster.info.topics.items()}
        found: list[tuple[TopicPartition, PartitionData, int]] = []
        failed: KafkaError | None = None
        for topic in answer.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            for data in topic.partitions:
                tp = TopicPartition(name, data.partition_index)
                if tp not in self._fetch_at:
                    continue
                if data.error_code != ErrorCode.NONE:
                    failed = self._partition_error(tp, data)
                    continue
                self.high_watermarks[tp] = data.high_watermark
                from_offset = self._fetch_at.pop(tp)
                # Not back: it may be a late answer to an earlier fetch, by a broker that led the partition before.
                next_offset = max(from_offset, self._next_offset(tp, data, or_else=from_offset))
                if not self._is_done(tp, next_offset):
                    self._fetch_at[tp] = next_offset  # last in order: the others come first in the next fetch
                if data.records:
                    found.append((tp, data, from_offset))
                self._check_progress(tp, from_offset, next_offset)
        return found, failed

    def _check_progress(self, tp: TopicPartition, from_offset: int, next_offset: int) -> None:
        """Raise if a partition makes no progress although its end offset is known: the broker must have records."""
        now = asyncio.get_running_loop().time()
        if tp not in self._end or next_offset > from_offset:
            self._no_progress_since.pop(tp, None)
        elif now - self._no_progress_since.setdefault(tp, now) > self._cluster.options.request_timeout_s:
            raise RequestTimedOut(
                f"{tp}: the broker returns no records from offset {from_offset} on, although the partition ends at "
                f"{self._end[tp]}"
            )

    def _partition_error(self, tp: TopicPartition, data: PartitionData) -> KafkaError:
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return OffsetOutOfRange(
                f"{tp} has no offset {self._fetch_at[tp]}"
                + (f"; it begins at {data.log_start_offset}" if data.log_start_offset >= 0 else "")
            )
        error = error_for(data.error_code)
        return error_for(data.error_code, f"{tp}: {error.message}")

    def _is_done(self, tp: TopicPartition, offset: int) -> bool:
        return tp in self._end and offset >= self._end[tp]

    def _next_offset(self, tp: TopicPartition, data: PartitionData, *, or_else: int = -1) -> int:
        """Return the offset after the last complete batch of a response."""
        last = or_else
        for _, header in split(_records_of(data), partial_tail=True):
            last = header.last_offset + 1
        return min(last, self._end[tp]) if tp in self._end and last >= 0 else last

    def _decode(self, tp: TopicPartition, data: PartitionData, from_offset: int) -> Iterator[list[Record]]:
        """Yield the records of a response that are in the range, batch by batch."""
        end_offset = self._end.get(tp, NO_END_OFFSET)
        view = memoryview(_records_of(data))
        aborted = AbortedFilter((item.producer_id, item.first_offset) for item in data.aborted_transactions or ())
        for at, header in split(view, partial_tail=True):
            batch = view[at : at + header.size_bytes]
            if self.options.check_crcs and not is_checksum_right(batch, header):
                raise CorruptMessage(f"{tp}: the batch at offset {header.base_offset} does not match its checksum")
            if self._on_batch is not None and header.base_offset < end_offset and header.last_offset >= from_offset:
                self._on_batch(tp, header)
            if not is_visible(header, batch, aborted, read_committed=self.options.read_committed):
                continue
            records = [record for record in read_records(batch) if from_offset <= record.offset < end_offset]
            if records:
                yield records


def _records_of(data: PartitionData) -> bytes | bytearray | memoryview:
    assert not isinstance(data.records, FileRegion), "regions of files are the broker's side of a response"
    return data.records or b""
