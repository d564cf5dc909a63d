"""Copies topics of one cluster to another in transactions: records, positions and offset runs become visible together.

A record of the source that was committed is in the copy exactly once for readers of committed records, in its partition
and order, with its key, value, headers and timestamp. A transaction of the source that covers several partitions may
become visible in several steps, as with MirrorMaker.

One process mirrors under one name. A second one with the same name takes over: it fences the first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.client.admin import describe_cluster
from ottla.client.cluster import Cluster
from ottla.client.consumer import Consumer, ConsumerOptions
from ottla.client.errors import CannotConnect
from ottla.client.offsets import OffsetBounds, end_offsets, offset_bounds
from ottla.client.producer import ProducerOptions, RecordGroup
from ottla.client.transactions import ConsumerGroupMetadata, TransactionalProducer
from ottla.core.clock import Clock
from ottla.core.errors import KafkaError, OffsetOutOfRange
from ottla.core.ids import NO_TOPIC_ID, TopicPartition
from ottla.mirroring.groups import copy_group_offsets
from ottla.mirroring.positions import (
    Position,
    as_offsets,
    copies_in,
    create_runs_topic,
    encode_runs,
    own_name,
    read_positions,
    read_runs,
)
from ottla.mirroring.topics import MirroredTopic, TopicPolicy, prepare_copies, selected_topics
from ottla.mirroring.translation import OffsetRun, OffsetTranslation, runs_of
from ottla.records.builder import NewRecord
from ottla.records.codecs import Codec
from ottla.records.record_reader import Record

log = logging.getLogger(__name__)

_CHUNKS_AHEAD = 8  # batches that are read while a transaction is written
_RUNS_PER_RECORD = 1000
_RETRY_FIRST_S, _RETRY_MOST_S = 1.0, 10.0


class SameCopy(Exception):
    """Reports a copy that would be another topic's copy too, or the topic itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorOptions:
    """Says what to mirror, and how often to commit. Times are in seconds."""

    name: str = "mirror"
    topics: TopicPolicy = field(default_factory=TopicPolicy)
    groups: tuple[str, ...] = ("*",)  # shell patterns; none: offsets of groups are not copied
    includes_copies: bool = False  # mirrors what another mirror wrote into the source, too
    replication_factor: int = -1  # of the copies; -1: the default of the target
    codec: int = Codec.LZ4
    commit_interval_s: float = 1.0
    group_interval_s: float = 10.0
    refresh_interval_s: float = 30.0  # how soon new topics, partitions and settings are noticed
    records_max: int = 50_000  # in a transaction
    stops_at_end: bool = False  # at the end that the source has at the start


class Progress(NamedTuple):
    """Counts what a mirror has done since its start, and what is left."""

    topics: int
    records: int
    transactions: int
    lag: int  # offsets of the source that are not mirrored yet
    group_offsets: int  # committed in the target


class _Copy(NamedTuple):
    """A partition of the source with its copy."""

    source: TopicPartition
    target: TopicPartition
    topic: MirroredTopic


@dataclass(slots=True)
class _Written:
    """The records of one chunk in the transaction at hand."""

    target: TopicPartition
    records: list[Record]
    groups: list[RecordGroup]

    def runs(self) -> list[OffsetRun]:
        """Return the runs of the records. Raises the error of a record that was not written."""
        offset_runs: list[OffsetRun] = []
        for group in self.groups:
            if group.error is not None:
                raise group.error
            for written in sorted(group.written):
                if written.base_offset >= 0:
                    indexes = group.positions[written.first_index : written.first_index + written.record_count]
                    offset_runs += runs_of([self.records[index].offset for index in indexes], written.base_offset)
        return offset_runs


class Mirror:
    """Mirrors topics until it is stopped, or with `stops_at_end` until the end."""

    def __init__(
        self,
        source: Cluster,
        target: Cluster,
        options: MirrorOptions,
        *,
        clock: Clock,
        on_progress: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        self._source, self._target, self._options = source, target, options
        self._clock, self._on_progress = clock, on_progress
        self._group = ConsumerGroupMetadata(own_name(options.name))
        self._translations: dict[TopicPartition, OffsetTranslation] = {}
        self._copies: dict[TopicPartition, _Copy] = {}  # by partition of the source
        self._committed: dict[TopicPartition, Position] = {}  # by partition of the copy
        self._ends: dict[TopicPartition, int] | None = None  # with `stops_at_end`, by partition of the source
        self._records = self._transactions = self._group_offsets = 0
        self._groups_at = 0.0
        self._is_one_cluster = False

    async def run(self, stop: asyncio.Event) -> Progress:
        """Mirror until `stop` is set. Lost connections and retriable errors are retried for ever.

        Raises SameCopy, and the KafkaError of what cannot be retried: PRODUCER_FENCED if another process mirrors under
        this name.
        """
        backoff_s = _RETRY_FIRST_S
        while True:
            before = self._transactions
            try:
                await self._run_until_error(stop)
            except (KafkaError, CannotConnect) as error:
                if isinstance(error, KafkaError) and not error.retriable and not isinstance(error, OffsetOutOfRange):
                    raise
                backoff_s = _RETRY_FIRST_S if self._transactions > before else min(2 * backoff_s, _RETRY_MOST_S)
                log.warning("the mirror begins again in %.0f s: %s", backoff_s, error)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), backoff_s)
                if not stop.is_set():
                    continue
            return self._progress(0)

    async def _run_until_error(self, stop: asyncio.Event) -> None:
        options = self._options
        self._is_one_cluster = await _are_same(self._source, self._target)
        await create_runs_topic(self._target, options.name, replication_factor=options.replication_factor)
        producer_options = ProducerOptions(codec=options.codec, auto_create=False, linger_s=0.05)
        async with TransactionalProducer(
            self._target, own_name(options.name), clock=self._clock, options=producer_options
        ) as producer:  # from here on no earlier transaction of this name is open
            self._translations = await read_runs(self._target, options.name)
            while not stop.is_set():
                positions = await self._refresh(producer)
                if await self._copy(producer, positions, stop) and options.stops_at_end:
                    await self._copy_groups()
                    return

    # ---- Topics and positions

    async def _refresh(self, producer: TransactionalProducer) -> dict[TopicPartition, int]:
        """Find the topics, prepare their copies, and return the position of each source partition."""
        options = self._options
        copies = frozenset[str]() if options.includes_copies else await copies_in(self._source)
        topics = await selected_topics(self._source, options.topics, copies)
        _check_names(topics, is_one_cluster=self._is_one_cluster)
        await prepare_copies(self._source, self._target, topics, replication_factor=options.replication_factor)
        self._copies = {
            copy.source: copy
            for topic in topics
            for index in range(topic.partitions)
            for copy in [_Copy(TopicPartition(topic.name, index), TopicPartition(topic.target, index), topic)]
        }
        self._committed = await read_positions(self._target, options.name)
        bounds = await offset_bounds(self._source, self._copies, read_committed=True)
        if options.stops_at_end and self._ends is None:
            self._ends = {tp: found.end_offset for tp, found in bounds.items()}
        positions = {tp: self._position_of(copy, bounds[tp]) for tp, copy in self._copies.items()}
        begun = {
            copy.target: Position(positions[tp], copy.topic.topic_id)
            for tp, copy in self._copies.items()
            if copy.target not in self._committed
        }
        if begun:  # now, so that a mirror of the other direction knows the copies and does not copy them back
            await self._write(producer, begun, [])
        return positions

    def _position_of(self, copy: _Copy, bounds: OffsetBounds) -> int:
        known = self._committed.get(copy.target)
        if known is None:
            return bounds.start_offset
        if NO_TOPIC_ID not in {known.topic_id, copy.topic.topic_id} and known.topic_id != copy.topic.topic_id:
            log.warning("topic %s was created again in the source: mirrored from its start", copy.source.topic)
            self._translations.pop(copy.target, None)
            return bounds.start_offset
        if known.offset < bounds.start_offset:
            log.warning(
                "%s: offsets %d to %d were deleted before they were mirrored",
                copy.source,
                known.offset,
                bounds.start_offset - 1,
            )
        elif known.offset > bounds.end_offset:
            log.warning("%s ends at %d, before the mirrored offset %d", copy.source, bounds.end_offset, known.offset)
        return bounds.clamp(known.offset)

    # ---- Records

    async def _copy(
        self, producer: TransactionalProducer, positions: Mapping[TopicPartition, int], stop: asyncio.Event
    ) -> bool:
        """Copy records until it is time to look for new topics. Returns whether the end was reached."""
        refresh_at = self._clock.monotonic() + self._options.refresh_interval_s
        queue: asyncio.Queue[tuple[TopicPartition, list[Record]] | None] = asyncio.Queue(_CHUNKS_AHEAD)
        options = ConsumerOptions(read_committed=True)
        async with Consumer(self._source, positions, end=self._ends, options=options) as consumer:
            reading = asyncio.ensure_future(_read_into(queue, consumer))
            try:
                ended = False
                while not ended and not stop.is_set() and self._clock.monotonic() < refresh_at:
                    ended = await self._transaction(producer, consumer, queue, stop)
                    self._on_progress(self._progress(self._lag(consumer)))
                    await self._copy_groups_when_due()
                if ended:
                    await reading  # raises what ended it
                return ended
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    async def _transaction(
        self,
        producer: TransactionalProducer,
        consumer: Consumer,
        queue: asyncio.Queue[tuple[TopicPartition, list[Record]] | None],
        stop: asyncio.Event,
    ) -> bool:
        """Write what arrives within the commit interval in one transaction. Returns whether the reader has ended."""
        written: list[_Written] = []
        positions: dict[TopicPartition, Position] = {}
        count, ended = 0, False
        until = asyncio.get_running_loop().time() + self._options.commit_interval_s
        while count < self._options.records_max and not stop.is_set():
            try:
                async with asyncio.timeout_at(until):
                    chunk = await queue.get()
            except TimeoutError:
                break
            if chunk is None:
                ended = True
                break
            if not written:
                producer.begin()
            tp, records = chunk
            copy = self._copies[tp]
            written.append(_Written(copy.target, records, await _send(producer, copy, records)))
            positions[copy.target] = Position(records[-1].offset + 1, copy.topic.topic_id)
            count += len(records)
        if queue.empty():  # all that was read is written: markers and aborted records at the end count as mirrored
            for tp, offset in consumer.positions.items():
                copy = self._copies[tp]
                positions[copy.target] = Position(offset, copy.topic.topic_id)
        changed = {target: at for target, at in positions.items() if self._committed.get(target) != at}
        if changed or written:
            await self._write(producer, changed, written)
        self._records += count
        return ended

    async def _write(
        self, producer: TransactionalProducer, positions: dict[TopicPartition, Position], written: list[_Written]
    ) -> None:
        """Complete the transaction: wait for the records, add their runs and the positions, commit."""
        if not written:
            producer.begin()
        await producer.flush()
        runs: dict[TopicPartition, list[OffsetRun]] = {}
        for each in written:
            runs.setdefault(each.target, []).extend(each.runs())
        now_ms = self._clock.wall_ms()
        encoded = [
            encode_runs(target, found[at : at + _RUNS_PER_RECORD], now_ms)
            for target, found in runs.items()
            for at in range(0, len(found), _RUNS_PER_RECORD)
        ]
        if encoded:
            await producer.send_many(own_name(self._options.name), encoded, partitions=[0] * len(encoded))
        await producer.send_offsets(self._group, as_offsets(positions))
        await producer.commit()
        self._committed |= positions
        for target, offset_runs in runs.items():
            translation = self._translations.setdefault(target, OffsetTranslation())
            for run in offset_runs:
                translation.add(run)
        self._transactions += 1

    def _lag(self, consumer: Consumer) -> int:
        return sum(
            max(consumer.high_watermarks.get(tp, 0) - self._committed[copy.target].offset, 0)
            for tp, copy in self._copies.items()
            if copy.target in self._committed
        )

    def _progress(self, lag: int) -> Progress:
        topics = len({copy.topic.name for copy in self._copies.values()})
        return Progress(topics, self._records, self._transactions, lag, self._group_offsets)

    # ---- Groups

    async def _copy_groups_when_due(self) -> None:
        if self._clock.monotonic() >= self._groups_at:
            self._groups_at = self._clock.monotonic() + self._options.group_interval_s
            await self._copy_groups()

    async def _copy_groups(self) -> None:
        if self._options.groups:
            self._group_offsets += await copy_group_offsets(
                self._source,
                self._target,
                patterns=self._options.groups,
                copies={tp: copy.target for tp, copy in self._copies.items()},
                translations=self._translations,
            )


async def _read_into(queue: asyncio.Queue[tuple[TopicPartition, list[Record]] | None], consumer: Consumer) -> None:
    """Read ahead of the transaction at hand; None follows the last chunk."""
    try:
        async for tp, records in consumer.chunks():
            await queue.put((tp, records))
    finally:
        await queue.put(None)


async def _send(producer: TransactionalProducer, copy: _Copy, records: list[Record]) -> list[RecordGroup]:
    new = [NewRecord(record.key, record.value, record.timestamp_ms, record.headers) for record in records]
    return await producer.send_many(copy.target.topic, new, partitions=[copy.target.partition] * len(new))


async def _are_same(source: Cluster, target: Cluster) -> bool:
    return (await describe_cluster(source)).cluster_id == (await describe_cluster(target)).cluster_id != ""


def _check_names(topics: list[MirroredTopic], *, is_one_cluster: bool) -> None:
    names: dict[str, str] = {}
    for topic in topics:
        if is_one_cluster and topic.target == topic.name:
            raise SameCopy(f"source and target are the same cluster: topic {topic.name} would be copied into itself")
        other = names.setdefault(topic.target, topic.name)
        if other != topic.name:
            raise SameCopy(f"the copies of topics {other} and {topic.name} would both be named {topic.target}")


class PartitionLag(NamedTuple):
    """Compares a partition of the source with what was mirrored of it."""

    topic: str
    partition: int
    copy: str
    position: int  # the next offset to mirror; -1 if nothing was mirrored yet
    end_offset: int
    lag: int


async def mirror_lag(source: Cluster, target: Cluster, options: MirrorOptions) -> list[PartitionLag]:
    """Return how far each partition of the source is mirrored. Raises KafkaError."""
    copies = frozenset[str]() if options.includes_copies else await copies_in(source)
    topics = await selected_topics(source, options.topics, copies)
    positions = await read_positions(target, options.name)
    partitions = [TopicPartition(topic.name, index) for topic in topics for index in range(topic.partitions)]
    ends = await end_offsets(source, partitions, read_committed=True)
    rows = []
    for topic in topics:
        for index in range(topic.partitions):
            at = positions.get(TopicPartition(topic.target, index))
            end = ends[TopicPartition(topic.name, index)]
            position = at.offset if at is not None else -1
            rows.append(PartitionLag(topic.name, index, topic.target, position, end, max(end - max(position, 0), 0)))
    return rows
