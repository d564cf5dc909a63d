"""Produces dead letters again to the topic that they came from: the load parses them like any other record.

A record that is refused again comes back to the dead-letter topic. So that none goes round for ever each carries in the
header `ottla.redrive.count` how often it was produced again, and stays where it is after `redrives_max` times. The
count is read from the record, so who may write to a topic may write it; a count that is none counts as the highest.

Each is produced once: in one transaction with the group's offsets in the dead-letter topic. Only the topic that the job
loads is written to, whatever a record's headers say.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ottla.client.consumer import Consumer, ConsumerOptions
from ottla.client.groups import OffsetAndMetadata, committed_offsets
from ottla.client.offsets import beginning_offsets, end_offsets
from ottla.client.transactions import ConsumerGroupMetadata, TransactionalProducer
from ottla.core.clock import SystemClock
from ottla.core.ids import TopicPartition
from ottla.pipeline.connector.range_reader import connect
from ottla.pipeline.lake.lake_table import AppTransaction, Change, LakeTable
from ottla.pipeline.loading.dead_letters import (
    NO_LEADER_EPOCH,
    ORIGIN_PARTITION,
    ORIGIN_TOPIC,
    DeadLetters,
    Headers,
    without_context,
)
from ottla.records.record_reader import Record

COUNT = "ottla.redrive.count"
REDRIVES_MAX = 3


@dataclass(slots=True)
class Redriven:
    """Counts the dead letters of one topic that a redrive read."""

    topic: str
    dead_letters: str
    redriven: int = 0
    given_up: int = 0
    """Records that were produced again as often as may be: they stay in the dead-letter topic."""
    of_others: int = 0
    """Records that came from another topic, or that do not say where from."""


def redrive(
    letters: DeadLetters, quarantine: LakeTable, *, redrives_max: int = REDRIVES_MAX, dry_run: bool = False
) -> Redriven:
    """Produce the dead letters of one topic again that were not yet. Raises KafkaError or CannotConnect.

    Calling it again is safe after an error or a kill. A dry run counts only.
    """
    return asyncio.run(_redrive(letters, quarantine, redrives_max, dry_run=dry_run))


async def _redrive(letters: DeadLetters, quarantine: LakeTable, redrives_max: int, *, dry_run: bool) -> Redriven:
    counts = Redriven(letters.topic, letters.to)
    group = f"{letters.load}-redrive"
    async with await connect(letters.brokers.read_options.connection) as cluster:
        info = await cluster.topic(letters.to, fresh=True)
        partitions = [TopicPartition(letters.to, p.partition) for p in info.partitions]
        marks = {tp: f"redrive/{letters.topic}/{tp.topic}/{tp.partition}" for tp in partitions}
        kept = {tp: quarantine.transaction_version(name) for tp, name in marks.items()}
        starts, ends = await beginning_offsets(cluster, partitions), await end_offsets(cluster, partitions)
        of_group = await committed_offsets(cluster, group, partitions)
        positions = {tp: max(kept[tp], starts[tp], of_group[tp].offset if tp in of_group else 0) for tp in partitions}
        options = ConsumerOptions(read_committed=True)
        async with (
            Consumer(cluster, positions, end=ends, options=options) as consumer,
            TransactionalProducer(cluster, group, clock=SystemClock()) as producer,
        ):
            there = len((await cluster.topic(letters.topic)).partitions)
            async for tp, records in consumer.chunks():
                again = [(r, count) for r in records if (count := _count(r, letters.topic, redrives_max, counts))]
                counts.redriven += len(again)
                if not dry_run:
                    offset = OffsetAndMetadata(records[-1].offset + 1, NO_LEADER_EPOCH, "")
                    await _produce(producer, letters.topic, again, there, group, {tp: offset})
    if not dry_run and (moved := [tp for tp in partitions if ends[tp] > kept[tp]]):
        transactions = [AppTransaction(marks[tp], kept[tp], ends[tp]) for tp in moved]
        quarantine.commit(Change("redrive", letters.topic, transactions=transactions))
    return counts


def _count(record: Record, topic: str, redrives_max: int, counts: Redriven) -> int:
    """Return the number of the redrive that a record is due for; 0 if it is none of ours, or was often enough."""
    if _last(record.headers, ORIGIN_TOPIC) != topic.encode():
        counts.of_others += 1
        return 0
    before = _last(record.headers, COUNT)
    count = 0 if before is None else _number(before, otherwise=redrives_max)
    if count >= redrives_max:
        counts.given_up += 1
        return 0
    return count + 1


async def _produce(
    producer: TransactionalProducer,
    topic: str,
    again: list[tuple[Record, int]],
    partitions: int,
    group: str,
    offsets: dict[TopicPartition, OffsetAndMetadata],
) -> None:
    producer.begin()
    sent = []
    for record, count in again:
        own = [(name, value) for name, value in without_context(record.headers) if name != COUNT]
        partition = _number(_last(record.headers, ORIGIN_PARTITION) or b"", otherwise=partitions)
        sent.append(
            await producer.send(
                topic,
                key=record.key,
                value=record.value,
                headers=[*own, (COUNT, b"%d" % count)],
                timestamp_ms=record.timestamp_ms,
                partition=partition if partition < partitions else None,
            )
        )
    await producer.send_offsets(ConsumerGroupMetadata(group), offsets)
    await producer.commit()
    await asyncio.gather(*sent)


def _last(headers: Headers, name: str) -> bytes | None:
    return next((value for header_name, value in reversed(headers) if header_name == name), None)


def _number(text: bytes, *, otherwise: int) -> int:
    """Return a whole number from 0 on that a header holds, or another one.

    >>> _number(b"7", otherwise=3), _number(b"-1", otherwise=3), _number(b"x", otherwise=3)
    (7, 3, 3)
    """
    return int(text) if text.isdigit() and len(text) < 10 else otherwise
