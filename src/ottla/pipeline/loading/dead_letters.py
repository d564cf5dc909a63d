"""Produces the quarantined records of a load to a dead-letter topic, each once, with headers that say why.

The quarantine table is the truth: it is committed with the load, and this reads from it what the topic does not have.
How far the topic is, is the committed offset of a group, for it is committed in one transaction with the records; and
it is kept in the quarantine too, for a broker forgets the offsets of a group that commits nothing for a week.

The headers are those that users of Kafka Connect know (`errors.deadletterqueue.context.headers.enable`), as texts; key,
value, timestamp and the record's own headers are the record's. `redrive.py` produces such records again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ottla.client.admin import NewTopic, create_topics
from ottla.client.cluster import Cluster
from ottla.client.groups import OffsetAndMetadata, committed_offsets
from ottla.client.transactions import ConsumerGroupMetadata, TransactionalProducer
from ottla.core.clock import SystemClock
from ottla.core.errors import TopicAlreadyExists
from ottla.core.ids import TopicPartition
from ottla.pipeline.connector.range_reader import connect
from ottla.pipeline.lake.lake_table import AppTransaction, Change, LakeTable
from ottla.pipeline.lake.parquet_files import in_table_types
from ottla.pipeline.offset_range import OffsetRange
from ottla.pipeline.source import Brokers

CONTEXT = "__connect.errors."
"""The prefix of the names of the context's headers."""
ORIGIN_TOPIC, ORIGIN_PARTITION = f"{CONTEXT}topic", f"{CONTEXT}partition"
NO_LEADER_EPOCH = -1
_STAGE = "VALUE_CONVERTER"
_EXCEPTION = "org.apache.kafka.connect.errors.DataException"
"""The exception that Connect names where a value is not of its format."""
_RECORDS_PER_TRANSACTION = 10_000
_COLUMNS = ("topic", "partition", "offset", "record_time", "reason", "key", "raw", "headers")

_CONFIG = {"retention.ms": "-1"}
"""Of a topic that is created here: the records keep their times, and old ones would be deleted at once otherwise."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Headers = list[tuple[str, bytes | None]]


class DeadLetter(NamedTuple):
    """A quarantined record."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    reason: str


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The destination of the quarantined records of one topic."""

    brokers: Brokers
    topic: str
    """The topic that is loaded."""
    to: str
    """The dead-letter topic."""
    load: str
    """The name of the load's group of positions: `LoadSpec.group_of`, or that of its table."""

    @property
    def group(self) -> str:
        """The group whose offsets of the loaded topic show up to where its dead letters were produced."""
        return f"{self.load}-dead-letters"

    def context(self, record: DeadLetter) -> Headers:
        """Return the record's own headers, and those that say where it is from and why it is here."""
        context = {
            "topic": self.topic,
            "partition": str(record.partition),
            "offset": str(record.offset),
            "connector.name": self.load,
            "task.id": "0",
            "stage": _STAGE,
            "exception.class.name": _EXCEPTION,
            "exception.message": record.reason,
        }
        return [
            *without_context(record.headers),
            *((f"{CONTEXT}{name}", text.encode()) for name, text in context.items()),
        ]


def without_context(headers: Headers) -> Headers:
    """Return the headers that are the record's own."""
    return [(name, value) for name, value in headers if not name.startswith(CONTEXT)]


def send_dead_letters(
    letters: DeadLetters, quarantine: LakeTable, positions: Mapping[int, OffsetRange], partitions: int
) -> int:
    """Produce the quarantined records that the dead-letter topic does not have; return how many.

    `positions` are the table's: later rows of the quarantine belong to a load that is not complete. Raises KafkaError
    or CannotConnect; calling it again is safe then, and after a kill.
    """
    return asyncio.run(_send(letters, quarantine, positions, partitions))


async def _send(
    letters: DeadLetters, quarantine: LakeTable, positions: Mapping[int, OffsetRange], partitions: int
) -> int:
    marks = {p: f"dead-letters/{letters.to}/{letters.topic}/{p}" for p in positions}
    kept = {p: quarantine.transaction_version(name) for p, name in marks.items()}
    sent = 0
    async with await connect(letters.brokers.read_options.connection) as cluster:
        firsts = await _first_offsets(cluster, letters, kept)
        ranges = [OffsetRange(p, firsts[p], held.end_offset) for p, held in sorted(positions.items())]
        pieces = [piece for r in ranges for piece in _pieces(quarantine, letters.topic, r)]
        if pieces:
            there = await _ensure_topic(cluster, letters.to, partitions)
            async with TransactionalProducer(cluster, letters.group, clock=SystemClock()) as producer:
                for piece in pieces:
                    sent += await _produce(producer, letters, quarantine, piece, there)
    if sent:
        moved = [AppTransaction(marks[r.partition], kept[r.partition], r.end_offset) for r in ranges]
        quarantine.commit(Change("dead letters", letters.topic, transactions=moved))
    return sent


def _pieces(quarantine: LakeTable, topic: str, offsets: OffsetRange) -> Iterator[OffsetRange]:
    """Yield the parts of a range, each with the records of one transaction; none without a record."""
    offset_arrays = [
        rows["offset"].to_numpy() for rows in _quarantined(quarantine, topic, offsets, ("topic", "partition", "offset"))
    ]
    at = np.unique(np.concatenate(offset_arrays)) if offset_arrays else np.zeros(0, np.int64)
    for n in range(0, len(at), _RECORDS_PER_TRANSACTION):
        end = n + _RECORDS_PER_TRANSACTION
        yield OffsetRange(offsets.partition, int(at[n]), int(at[end]) if end < len(at) else offsets.end_offset)


async def _first_offsets(cluster: Cluster, letters: DeadLetters, kept: Mapping[int, int]) -> dict[int, int]:
    """Return where to begin: after what the group or the table says that was produced, whichever is later."""
    of_group = await committed_offsets(cluster, letters.group, [TopicPartition(letters.topic, p) for p in kept])
    committed = {tp.partition: group_offset.offset for tp, group_offset in of_group.items()}
    return {p: max(offset, committed.get(p, 0)) for p, offset in kept.items()}


async def _produce(
    producer: TransactionalProducer, letters: DeadLetters, quarantine: LakeTable, piece: OffsetRange, partitions: int
) -> int:
    """Produce the records of a range, in one transaction with the offset up to which they are produced then."""
    producer.begin()
    sent = [
        await producer.send(
            letters.to,
            key=record.key,
            value=record.value,
            headers=letters.context(record),
            timestamp_ms=record.timestamp_ms,
            partition=record.partition if record.partition < partitions else None,
        )
        for record in quarantined_records(quarantine, letters.topic, piece)
    ]
    done = {TopicPartition(letters.topic, piece.partition): OffsetAndMetadata(piece.end_offset, NO_LEADER_EPOCH, "")}
    await producer.send_offsets(ConsumerGroupMetadata(letters.group), done)
    await producer.commit()
    await asyncio.gather(*sent)
    return len(sent)


async def _ensure_topic(cluster: Cluster, topic: str, partitions: int) -> int:
    """Create the dead-letter topic unless it is there, with some partitions; return how many it has."""
    ((created, _),) = await create_topics(cluster, [NewTopic(topic, partitions, configs=_CONFIG)])
    if created.error is not None and not isinstance(created.error, TopicAlreadyExists):
        raise created.error

    async def look() -> int:
        return len((await cluster.topic(topic, fresh=True)).partitions)

    return await cluster.retrying(look)  # a new topic may take a moment to be known


def quarantined_records(quarantine: LakeTable, topic: str, offsets: OffsetRange) -> Iterator[DeadLetter]:
    """Yield the quarantined records of a range, in the order of their offsets."""
    tables = list(_quarantined(quarantine, topic, offsets, _COLUMNS))
    for row in pa.concat_tables(tables).sort_by("offset").to_pylist() if tables else ():
        headers = [(one["key"], one["value"]) for one in row["headers"] or ()]
        time = row["record_time"]
        time_ms = -1 if time is None else (time - _EPOCH) // timedelta(milliseconds=1)
        yield DeadLetter(row["partition"], row["offset"], time_ms, row["key"], row["raw"], headers, row["reason"])


def _quarantined(quarantine: LakeTable, topic: str, offsets: OffsetRange, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the rows of a range, file by file; row groups that cannot hold any are not read."""
    row_filter: Any = (pc.field("topic") == topic) & (pc.field("partition") == offsets.partition)
    row_filter &= (pc.field("offset") >= offsets.first_offset) & (pc.field("offset") < offsets.end_offset)
    for file in quarantine.files():
        with quarantine.store.input(file.path) as source:
            rows = pq.read_table(source, columns=list(columns), filters=row_filter)
        if len(rows):
            yield in_table_types(rows).select(columns)
