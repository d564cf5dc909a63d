"""Reads topics for Spark: a batch, and a stream.

A batch is planned when the query is planned. A stream's position is Spark's, in its checkpoint. Spark 4.2 and later
pass it where they ask how far the next micro-batch goes. Spark 4.0 and 4.1 do not, so the reader remembers the last
position that was passed for the ranges of a micro-batch, and once at a restart.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from ottla.client.errors import CannotConnect
from ottla.client.offsets import OffsetBounds
from ottla.core.clock import Clock, SystemClock
from ottla.core.errors import KafkaError
from ottla.core.ids import TopicPartition
from ottla.pipeline.connector import planning, spark_api
from ottla.pipeline.connector.brief_errors import brief
from ottla.pipeline.connector.decoding import decode
from ottla.pipeline.connector.filters import PushedFilters, split_filters
from ottla.pipeline.connector.offset_client import OffsetClient, Topics
from ottla.pipeline.connector.options import ReadOptions, SourceOptions
from ottla.pipeline.connector.range_reader import DataLoss, PartitionRange, RangeReader, TopicRecreated
from ottla.pipeline.connector.starting_offsets import AtOffsets, Latest
from ottla.pipeline.connector.stream_position import StreamPosition, position_from_json

log = logging.getLogger(__name__)
Offsets = Mapping[TopicPartition, int]
_ASK_AGAIN_S = 1.0


class RangePartition(InputPartition):
    """Holds the range of offsets of one task."""

    def __init__(self, wanted: PartitionRange) -> None:
        self.wanted = wanted


def read_range(read_options: ReadOptions, wanted: PartitionRange, names: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Yield a range as rows, as a task does. Raises what `RangeReader.batches` raises."""
    pa.set_cpu_count(1)  # Spark already runs a task per core
    reader = RangeReader(read_options, wanted)
    for batches in reader.batches():
        rows = 0
        for found in decode(
            batches,
            topic=wanted.topic,
            partition=wanted.partition,
            first_offset=wanted.first_offset,
            end_offset=wanted.end_offset,
            names=names,
        ):
            rows += found.num_rows
            yield found
        reader.count_decoded(batches, rows)
    if gaps := reader.offset_counts.gaps():
        log.info("%s offsets %d to %d: %s", wanted.topic_partition, wanted.first_offset, wanted.end_offset, gaps)


class BatchReader(DataSourceReader):
    """From the options' start to their end, as of the planning of the query."""

    def __init__(self, options: SourceOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names
        self._pushed = PushedFilters()

    @brief
    def partitions(self) -> list[InputPartition]:
        """Return the ranges, cut as the options say."""
        options = self._options
        offset_client = OffsetClient(options.read_options)
        try:
            topics = offset_client.topics(options.subscription)
            bounds = offset_client.bounds(topics.partitions)
            start = offset_client.offsets(options.starting, bounds)
            end = offset_client.offsets(options.ending, bounds)
            first = offset_client.first_offsets(self._pushed.from_time_ms, end)
        finally:
            offset_client.close()
        for loss in beyond_end(start, bounds) if isinstance(options.starting, AtOffsets) else ():
            report(loss, options.read_options)
        start = {tp: max(offset, first[tp]) for tp, offset in start.items()}
        start, end = self._pushed.restrict(start, end)
        whole = planning.ranges(start, _within_log(start, end), topics.ids)
        pieces = planning.cut(
            whole, min_partitions=options.min_partitions, max_records=options.max_records_per_partition
        )
        return [RangePartition(piece) for piece in pieces]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range. Spark asks for None where there is none at all."""
        if isinstance(partition, RangePartition):
            yield from read_range(self._options.read_options, partition.wanted, self._names)


class FilteringBatchReader(BatchReader):
    """A `BatchReader` that applies filters of the query. Spark accepts one only where it passes filters."""

    def pushFilters(self, filters: list[Any]) -> list[Any]:  # noqa: N802 - Spark's name
        """Take the filters that restrict what is read; returns those that Spark has to apply."""
        self._pushed, rest = split_filters(filters)
        return rest


def _within_log(start: Offsets, end: Offsets) -> dict[TopicPartition, int]:
    """Return the ends, none before its start: a range that ends before it begins is empty.

    Two times or an end that was given may make such a range.
    """
    return {tp: max(start[tp], offset) for tp, offset in end.items()}


@dataclass(frozen=True, slots=True)
class Loss:
    """Records that were to be read and are gone."""

    what: str
    error: type[DataLoss | TopicRecreated] = DataLoss


class StreamReader(DataSourceStreamReader, spark_api.SupportsTriggerAvailableNow):
    """Reads a stream. Spark creates one for every run of a query, on the driver; `read` runs in the tasks."""

    def __init__(self, options: SourceOptions, names: tuple[str, ...], *, clock: Clock | None = None) -> None:
        self._options = options
        self._names = names
        self._clock = clock or SystemClock()
        self._offset_client: OffsetClient | None = None
        self._position: StreamPosition | None = None
        self._first: StreamPosition | None = None
        self._triggered_at: float | None = None
        self._available: dict[TopicPartition, int] | None = None
        self._latest: StreamPosition | None = None
        self._shown: StreamPosition | None = None

    # ---- Called on the driver

    @brief
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query begins: the same position on every call."""
        if self._first is None:
            offset_client = self._client()
            topics = offset_client.topics(self._options.subscription)
            offsets = offset_client.offsets(self._options.starting, offset_client.bounds(topics.partitions))
            self._first = StreamPosition(offsets, topics.ids)
        return self._first.as_json()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name, since 4.2
        """Return what the options limit each micro-batch to."""
        options = self._options
        return spark_api.read_limit(most=options.max_offsets_per_trigger, least=options.min_offsets_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name, since 4.2
        """Remember the ends of the log: a query with `Trigger.AvailableNow` reads up to there, and ends."""
        topics = self._topics()
        self._available = {tp: span.end_offset for tp, span in self._client().bounds(topics.partitions).items()}

    @brief
    def latestOffset(self, start: dict[str, Any] | None = None, limit: object = None) -> dict[str, Any]:  # noqa: N802
        """Return how far the next micro-batch goes: to the end of the log, or as far as a trigger's limit allows.

        `start` and `limit` are passed by Spark 4.2 and later. The options hold the same limit.
        """
        remembered = self._position if start is None else None
        position = remembered or position_from_json(start or self.initialOffset())
        self._show_position(position)  # Spark asks for the next micro-batch when the last one is done
        topics, bounds = self._now(position)
        begin = self._from_here(position, topics, bounds)
        if beyond_end(begin, bounds):  # asked again, for a new leader's high watermark may lag for a moment
            time.sleep(_ASK_AGAIN_S)
            bounds = self._client().bounds(topics.partitions)
        for loss in beyond_end(begin, bounds):
            self._report(loss)
        begin = {tp: min(begin[tp], span.end_offset) for tp, span in bounds.items()}
        end = self._up_to_available(position, begin, {tp: span.end_offset for tp, span in bounds.items()})
        self._latest = StreamPosition(end, topics.ids)
        if spark_api.ignores_options(limit):
            return self._latest.as_json()
        if self._options.min_offsets_per_trigger is not None and self._is_too_little(begin, end):
            return position.as_json()
        if self._options.max_offsets_per_trigger is not None:
            end = planning.bounded(begin, end, self._options.max_offsets_per_trigger)
        return StreamPosition(end, topics.ids).as_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name, since 4.2
        """Return the end of the log as of the last micro-batch, for the progress of the query."""
        return None if self._latest is None else self._latest.as_json()

    @brief
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of one micro-batch; at a restart Spark calls it with the checkpoint's position twice."""
        first, last = position_from_json(start), position_from_json(end)
        self._position = last
        if first == last:
            return []
        self._triggered_at = self._clock.monotonic()
        begin = self._begin(first, last)
        whole = planning.ranges(begin, last.offsets, last.ids)
        options = self._options
        pieces = planning.cut(
            whole, min_partitions=options.min_partitions, max_records=options.max_records_per_partition
        )
        return [RangePartition(piece) for piece in pieces]

    def commit(self, end: dict[str, Any]) -> None:
        """Note that a micro-batch is done. Spark calls it only when it has planned the next one."""
        self._show_position(position_from_json(end))

    def stop(self) -> None:
        """Close the connections at the end of the query."""
        if self._offset_client is not None:
            self._offset_client.close()
            self._offset_client = None

    # ---- Called in the tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range."""
        assert isinstance(partition, RangePartition)
        yield from read_range(self._options.read_options, partition.wanted, self._names)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a task needs, the options and names; a connection cannot be pickled."""
        return {**self.__dict__, "_offset_client": None}

    # ---- Earlier and current state

    def _client(self) -> OffsetClient:
        if self._offset_client is None:
            self._offset_client = OffsetClient(self._options.read_options)
        return self._offset_client

    def _show_position(self, position: StreamPosition) -> None:
        """Commit the position as the offsets of the group `lagGroup`, for lag monitors; nothing depends on that."""
        group = self._options.lag_group
        if group is None or position == self._shown:
            return
        self._shown = position
        try:
            self._client().commit(group, position.offsets)
        except (KafkaError, CannotConnect) as error:
            log.warning("the position of group %s is not shown: %s", group, error)

    def _now(self, position: StreamPosition) -> tuple[Topics, dict[TopicPartition, OffsetBounds]]:
        """Return the partitions of this moment and report losses; partitions that are gone keep their last position."""
        topics = self._topics()
        for loss in losses(position, topics):
            self._report(loss)
        return topics, self._client().bounds(topics.partitions)

    def _topics(self) -> Topics:
        return self._client().topics(
            self._options.subscription, missing_ok=not self._options.read_options.fail_on_data_loss
        )

    def _up_to_available(self, position: StreamPosition, begin: Offsets, end: Offsets) -> dict[TopicPartition, int]:
        """Return the ends as of the query's start with `Trigger.AvailableNow`; newer partitions are left out."""
        available = self._available
        if available is None:
            return dict(end)
        return {
            tp: max(begin[tp], min(offset, available.get(tp, 0)))
            for tp, offset in end.items()
            if tp in available or tp in position.offsets
        }

    def _from_here(
        self, position: StreamPosition, topics: Topics, bounds: Mapping[TopicPartition, OffsetBounds]
    ) -> dict[TopicPartition, int]:
        """Return the next offset of each partition: its position, or the log's start for a new partition or topic."""
        return {
            tp: span.start_offset if is_new(tp, position, topics.ids) else position.offsets[tp]
            for tp, span in bounds.items()
        }

    def _begin(self, first: StreamPosition, last: StreamPosition) -> dict[TopicPartition, int]:
        """Return where each range of a micro-batch begins; a new partition's at its start, which must be offset 0."""
        new = [tp for tp in last.offsets if is_new(tp, first, last.ids)]
        begin = {tp: first.offsets[tp] for tp in last.offsets if tp not in new}
        for tp, span in (self._client().bounds(new) if new else {}).items():
            begin[tp] = min(span.start_offset, last.offsets[tp])
            if span.start_offset > 0 and not isinstance(self._options.starting, Latest):
                self._report(Loss(f"the new partition {tp} begins at offset {span.start_offset}, not at 0"))
        return begin

    def _is_too_little(self, start: Offsets, end: Offsets) -> bool:
        """Return whether there are fewer offsets than wanted and the longest wait is not over.

        The first trigger of a run never waits, nor does one with `Trigger.AvailableNow`, for which nothing more is to
        come.
        """
        if self._triggered_at is None or self._available is not None:
            return False
        waiting = sum(end[tp] - start[tp] for tp in end)
        waited_s = self._clock.monotonic() - self._triggered_at
        return waiting < (self._options.min_offsets_per_trigger or 0) and waited_s < self._options.max_trigger_delay_s

    def _report(self, loss: Loss) -> None:
        report(loss, self._options.read_options)


def report(loss: Loss, options: ReadOptions) -> None:
    """Apply failOnDataLoss to a loss: raise its error, or log it."""
    if options.fail_on_data_loss:
        raise loss.error(f"{loss.what} ({options.loss_advice})")
    log.warning("%s", loss.what)


def beyond_end(start: Offsets, bounds: Mapping[TopicPartition, OffsetBounds]) -> list[Loss]:
    """Return the partitions whose position, or given starting offset, is beyond the end of the log."""
    return [
        Loss(
            f"{tp}: offset {start[tp]} is beyond the end of the log, {span.end_offset}; the log was truncated, or "
            "is another log"
        )
        for tp, span in sorted(bounds.items())
        if start[tp] > span.end_offset
    ]


def is_new(tp: TopicPartition, position: StreamPosition, ids: Mapping[str, str]) -> bool:
    """Return whether a partition was not there at that position, or belonged to another topic of the same name."""
    return tp not in position.offsets or _is_another(tp.topic, position.ids, ids)


def losses(position: StreamPosition, topics: Topics) -> list[Loss]:
    """Return the partitions that are gone and the topics that were recreated."""
    another = {tp.topic for tp in position.offsets if _is_another(tp.topic, position.ids, topics.ids)}
    found = [
        Loss(
            f"topic {name} had id {position.ids[name]} and has {topics.ids[name]} now: it was deleted and recreated",
            TopicRecreated,
        )
        for name in sorted(another)
    ]
    gone = sorted(str(tp) for tp in position.offsets if tp not in topics.partitions and tp.topic not in another)
    if gone:
        found.append(Loss(f"these partitions are gone: {', '.join(gone)}"))
    return found


def _is_another(topic: str, before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Return whether the ids differ; both must be known: a checkpoint of Spark's own source has none."""
    return bool(before.get(topic)) and bool(now.get(topic)) and before[topic] != now[topic]
