"""Writes rows of a batch, or of a stream's micro-batches, as records, each once.

A row of a micro-batch is in its topic exactly once, whatever fails and is repeated, as long as a repeated task brings
the same rows, in any order (docs/spark.md). Rows become visible as they are written. Where a repeat does not bring the
same rows (a query with random values, another number of tasks after a restart), nothing is lost, and the difference is
an error or a warning (`onReplayMismatch`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from ottla.client.cluster import Cluster
from ottla.client.offsets import LATEST, list_offsets
from ottla.client.partitioner import StickyPartitions, partition_for_key
from ottla.core.clock import Clock, SystemClock
from ottla.core.ids import ProducerIdAndEpoch, TopicPartition
from ottla.core.runtime import new_uuid
from ottla.pipeline.connector.already_written import AlreadyWritten, find_already_written, fingerprint
from ottla.pipeline.connector.control_topic import (
    ControlEntry,
    ControlTopic,
    TaskId,
    ensure_control_topic,
    entry_record,
    knows_query,
    last_entry,
)
from ottla.pipeline.connector.options import ReadOptions
from ottla.pipeline.connector.range_reader import connect
from ottla.pipeline.connector.record_rows import InvalidRow, Row, RowReader
from ottla.pipeline.connector.sender import Sender, init_producer_id
from ottla.pipeline.connector.sink_options import SinkOptions
from ottla.pipeline.connector.spark_api import StreamArrowWriter
from ottla.records.builder import NewRecord

log = logging.getLogger(__name__)
_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
_ROW_OVERHEAD_BYTES = 32
_NO_TASK = -1


class ReplayMismatch(Exception):
    """A repeated task did not bring the rows that its first attempt wrote."""


class SinkCommitMessage(WriterCommitMessage):
    """The commit message of a task to the driver."""

    def __init__(self, task: TaskId, rows: int, repeated: int) -> None:
        self.task = task
        self.rows = rows
        self.repeated = repeated
        """Rows that an earlier attempt had written."""


@dataclass(frozen=True, slots=True)
class WriteJob:
    """Holds what every write task needs."""

    options: SinkOptions
    reader: RowReader
    write_id: str
    """Of this batch write; a stream's tasks take the query's id from Spark, for it outlives a restart."""
    control_topic: ControlTopic | None = None
    """As it was when the write was planned, so that a task notices if it was deleted since."""


class BatchWriter(DataSourceArrowWriter):
    """`df.write`."""

    def __init__(self, job: WriteJob) -> None:
        self.job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommitMessage:
        """Write one task's rows."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        return write_task(self.job, TaskId(self.job.write_id, context.partitionId(), 0), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove the entries of all tasks from the control topic: all are done, and none will be repeated."""
        done = [message.task for message in messages if isinstance(message, SinkCommitMessage)]
        if self.job.options.deduplicate and done:
            asyncio.run(_write_entries(self.job.options, dict.fromkeys(done)))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log that some tasks failed for good. What was written stays in the log."""
        log.warning("the write failed; records of %d finished tasks stay", sum(m is not None for m in messages))


class StreamWriter(StreamArrowWriter):
    """`df.writeStream`."""

    def __init__(self, job: WriteJob) -> None:
        self.job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommitMessage:
        """Write one task's rows of one micro-batch."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        query, epoch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        assert query is not None, "Spark names the query of a stream's task"
        assert epoch is not None, "Spark numbers a stream's micro-batches"
        return write_task(self.job, TaskId(query, context.partitionId(), int(epoch)), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int | None = None) -> None:  # noqa: ARG002, N803
        """Make the query known to the control topic if the first micro-batch had no rows, so that no task did it."""
        tasks = [message.task for message in messages if isinstance(message, SinkCommitMessage)]
        wrote = any(isinstance(message, SinkCommitMessage) and message.rows for message in messages)
        if self.job.options.deduplicate and tasks and tasks[0].epoch == 0 and not wrote:
            entries = {TaskId(tasks[0].query, _NO_TASK, 0): ControlEntry(0, done=True)}
            asyncio.run(_write_entries(self.job.options, entries))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int | None = None) -> None:  # noqa: N803
        """Keep the written records; the micro-batch is repeated, and skips the rows that are written already."""


def new_job(options: SinkOptions, reader: RowReader) -> WriteJob:
    """Create the control topic, on the driver, before tasks need it. Raises the broker's KafkaError."""

    async def prepare() -> ControlTopic:
        async with await connect(options.connection) as cluster:
            return await ensure_control_topic(cluster, options.control_topic)

    return WriteJob(options, reader, new_uuid().hex, asyncio.run(prepare()) if options.deduplicate else None)


def write_task(
    job: WriteJob, task: TaskId, batches: Iterator[pa.RecordBatch], *, clock: Clock | None = None
) -> SinkCommitMessage:
    """Write a task's rows; what a task does. Raises KafkaError, CannotConnect, InvalidRow, ReplayMismatch.

    A task without rows (there are many after a shuffle) sends no request and writes no entry to the control topic.
    """
    batches = (batch for batch in batches if batch.num_rows)
    first = next(batches, None)
    if first is None:
        return SinkCommitMessage(task, 0, 0)
    with asyncio.Runner() as runner:
        cluster = runner.run(connect(job.options.connection))
        writer = _TaskWriter(job, task, runner, cluster, clock or SystemClock())
        try:
            return writer.write(itertools.chain((first,), batches))
        finally:
            runner.run(writer.close())
            runner.run(cluster.close())


class _TaskWriter:
    """Writes the rows of one attempt of a task."""

    def __init__(self, job: WriteJob, task: TaskId, runner: asyncio.Runner, cluster: Cluster, clock: Clock) -> None:
        self._job, self._task, self._runner, self._cluster, self._clock = job, task, runner, cluster, clock
        self._entry = ControlEntry(task.epoch)
        self._already_written = AlreadyWritten()
        self._control_partition = TopicPartition(job.options.control_topic, 0)
        self._sender: Sender | None = None
        self._buffers: dict[TopicPartition, list[NewRecord]] = {}
        self._buffered: dict[TopicPartition, int] = {}
        self._partitions: dict[str, int] = {}
        self._sticky: dict[str, StickyPartitions] = {}

    def write(self, batches: Iterator[pa.RecordBatch]) -> SinkCommitMessage:
        rows = repeated = 0
        if self._begin():
            rows = repeated = sum(batch.num_rows for batch in batches)
            if rows != self._entry.rows:
                self._mismatch(f"it brings {rows} rows, and {self._entry.rows} were written")
            return SinkCommitMessage(self._task, rows, repeated)
        for batch in batches:
            for row in self._job.reader.rows(batch):
                rows += 1
                repeated += self._queue_row(row)
        self._run(self._flush())
        if self._already_written.left:
            self._mismatch(
                f"{self._already_written.left} records of an earlier attempt are among none of its {rows} rows"
            )
        self._write_entry(replace(self._entry, done=True, rows=rows))
        return SinkCommitMessage(self._task, rows, repeated)

    async def close(self) -> None:
        if self._sender is not None:
            await self._sender.close()

    def _begin(self) -> bool:
        """Read the entry of the last attempt, and fence its producer. True if the task is done."""
        options, task = self._job.options, self._task
        if not options.deduplicate:
            self._sender = self._sender_of(self._run(init_producer_id(self._cluster)))
            return False
        control_topic: ControlTopic = self._run(ensure_control_topic(self._cluster, options.control_topic))
        self._control_partition = control_topic.partition_of(task)
        before: ControlEntry | None = self._run(last_entry(self._cluster, control_topic, task))
        self._check_control_topic(control_topic, known=before is not None)
        if before is not None and before.epoch > task.epoch:
            self._mismatch(
                f"the control topic is at epoch {before.epoch}: the checkpoint is older than what was written"
            )
        if before is None or before.epoch != task.epoch:
            identity = self._run(init_producer_id(self._cluster))
            self._sender, self._entry = self._sender_of(identity), ControlEntry(task.epoch, writers=(identity,))
            return False
        self._entry = before
        if before.done:
            return True
        last = before.writers[-1]
        identity = ProducerIdAndEpoch(last.producer_id, last.epoch + 1)
        self._sender = self._sender_of(identity)
        # With this entry the brokers fence the producer of the last attempt.
        self._write_entry(replace(before, writers=(*before.writers, identity)))
        self._already_written = self._find_written_rows()
        return False

    def _check_control_topic(self, control_topic: ControlTopic, *, known: bool) -> None:
        """Refuse to write if the entries of earlier attempts are gone: what these have written is unknown then."""
        planned, task = self._job.control_topic, self._task
        if planned is not None and planned.topic_id != control_topic.topic_id:
            why = "was deleted and made again since this write was planned"
        elif not known and task.epoch > 0 and not self._run(knows_query(self._cluster, control_topic, task.query)):
            why = (
                f"has no entry of this query, which is at micro-batch {task.epoch}: it was deleted or made again, or "
                "the query had another sink or another controlTopic before"
            )
        else:
            return
        self._mismatch(
            f"the control topic {control_topic.name} {why}. Rows of this micro-batch may be in their topic already. "
            "Look there first"
        )

    def _find_written_rows(self) -> AlreadyWritten:
        """Find the rows that earlier attempts have written."""
        starts = {TopicPartition(t, p): at for t, ends in self._entry.starts.items() for p, at in ends.items()}
        ends = self._run(list_offsets(self._cluster, dict.fromkeys(starts, LATEST)))
        ranges = {tp: (at, max(at, ends[tp].offset)) for tp, at in starts.items()}
        ids = {writer.producer_id for writer in self._entry.writers}
        return find_already_written(
            ReadOptions(self._job.options.connection), ids, ranges, timed=self._job.reader.timed
        )

    def _queue_row(self, row: Row) -> bool:
        """Queue a row, unless an earlier attempt wrote it (True)."""
        count = self._partitions.get(row.topic) or self._open_topic(row.topic)
        number = row.partition
        if number is not None and number >= count:
            raise InvalidRow(f"a row is for partition {number} of topic {row.topic}, which has {count}")
        if number is None and row.record.key is not None:
            number = partition_for_key(row.record.key, count)
        if self._already_written.found and self._claim_written_row(row, number, count):
            return True
        record = row.record
        if record.timestamp_ms < 0:
            record = record._replace(timestamp_ms=self._clock.wall_ms())
        size = _ROW_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
        if number is None:
            number = self._sticky[row.topic].choose(count, size)
        tp = TopicPartition(row.topic, number)
        buffer = self._buffers.setdefault(tp, [])
        if buffer and self._buffered[tp] + size > self._job.options.batch_bytes:
            self._run(self._send(tp))
            buffer = self._buffers.setdefault(tp, [])
        buffer.append(record)
        self._buffered[tp] = self._buffered.get(tp, 0) + size
        return False

    def _claim_written_row(self, row: Row, number: int | None, count: int) -> bool:
        """Claim a row that an earlier attempt wrote; return whether there is one.

        A row without a partition of its own may be in any: by chance, or because there were fewer.
        """
        record = row.record
        bare = fingerprint(record.key, record.value, record.headers)
        fingerprints: tuple[bytes, ...] = (bare,)
        if self._job.reader.timed and record.timestamp_ms >= 0:
            fingerprints = (fingerprint(record.key, record.value, record.headers, record.timestamp_ms), bare)
        numbers = (number,) if row.partition is not None and number is not None else range(count)
        return self._already_written.claim((TopicPartition(row.topic, n) for n in numbers), *fingerprints)

    def _open_topic(self, topic: str) -> int:
        """Open a topic that the task writes to for the first time; return its number of partitions.

        The control topic first records where its partitions end.
        """
        info = self._run(self._cluster.topic(topic, fresh=True, allow_auto_topic_creation=True))
        count = self._partitions[topic] = len(info.partitions)
        chance = random.Random()
        self._sticky[topic] = StickyPartitions(batch_bytes=self._job.options.batch_bytes, rng=chance)
        if self._job.options.deduplicate and topic not in self._entry.starts:
            tps = [TopicPartition(topic, number) for number in range(count)]
            ends = self._run(list_offsets(self._cluster, dict.fromkeys(tps, LATEST)))
            starts = {topic: {tp.partition: ends[tp].offset for tp in tps}}
            self._write_entry(replace(self._entry, starts={**self._entry.starts, **starts}))
        return count

    def _write_entry(self, entry: ControlEntry) -> None:
        """Write an entry to the control topic; nothing else is written before it is acknowledged."""
        self._entry = entry
        if self._job.options.deduplicate:
            assert self._sender is not None
            record = entry_record(self._task, entry)._replace(timestamp_ms=self._clock.wall_ms())
            self._run(self._sender.send(self._control_partition, [record]))
            self._run(self._sender.finish())

    async def _send(self, tp: TopicPartition) -> None:
        assert self._sender is not None
        records = self._buffers.pop(tp)
        self._buffered[tp] = 0
        await self._sender.send(tp, records)

    async def _flush(self) -> None:
        for tp in list(self._buffers):
            await self._send(tp)
        if self._sender is not None:
            await self._sender.finish()

    def _sender_of(self, identity: ProducerIdAndEpoch) -> Sender:
        options = self._job.options
        return Sender(
            self._cluster, identity, codec=options.codec, acks=options.acks, patience_s=options.delivery_timeout_s
        )

    def _mismatch(self, why: str) -> None:
        message = f"micro-batch {self._task.epoch}, task {self._task.task} of query {self._task.query}: {why}"
        if self._job.options.fail_on_mismatch:
            raise ReplayMismatch(f"{message} (onReplayMismatch=warn goes on, and writes what it does not know of)")
        log.warning("%s", message)

    def _run(self, work: Any) -> Any:
        return self._runner.run(work)


async def _write_entries(options: SinkOptions, entries: Mapping[TaskId, ControlEntry | None]) -> None:
    """Write entries from the driver; None removes an entry, which no task will read again."""
    async with await connect(options.connection) as cluster:
        control_topic = await ensure_control_topic(cluster, options.control_topic)
        sender = Sender(
            cluster, await init_producer_id(cluster), codec=0, acks=-1, patience_s=options.delivery_timeout_s
        )
        by_partition: dict[TopicPartition, list[NewRecord]] = {}
        for task, entry in entries.items():
            record = entry_record(task, entry)._replace(timestamp_ms=SystemClock().wall_ms())
            by_partition.setdefault(control_topic.partition_of(task), []).append(record)
        for tp, records in by_partition.items():
            await sender.send(tp, records)
        await sender.finish()
