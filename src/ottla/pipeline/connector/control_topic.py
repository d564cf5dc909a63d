"""Records the progress of every sink task in a compacted control topic, so that a retried task writes nothing twice.

Spark retries a failed task, and after a restart it repeats the last micro-batch. The new attempt must know what the
previous attempt has written, although that attempt may have died between any two batches. So an attempt records its
producer id and the end offsets of a topic's partitions *before* its first write to the topic, and at the end that it is
done:

    key    <query>/<task>
    value  {"epoch": 7, "done": false, "writers": [[4021, 0]], "starts": {"web": {"0": 512}}, "rows": 0}

A later attempt reads the log from `starts` on, selects the batches of `writers`, and compares them record by record
(`connector/already_written.py`). It writes its own entry with the same producer id and the next producer epoch, on the
partition where the earlier attempt would mark itself as done: from then on the brokers fence the earlier attempt.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from ottla.client.admin import NewTopic, create_topics
from ottla.client.cluster import Cluster
from ottla.client.consumer import Consumer
from ottla.client.offsets import EARLIEST, LATEST, list_offsets
from ottla.client.partitioner import partition_for_key
from ottla.core.errors import TopicAlreadyExists, UnknownTopicOrPartition
from ottla.core.ids import ProducerIdAndEpoch, TopicPartition
from ottla.records.builder import NewRecord
from ottla.records.record_reader import Record

CONTROL_TOPIC = "__ottla_sink_commits"
_PARTITIONS = 8
_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),  # only closed segments are compacted, and every task reads one partition whole
    "min.cleanable.dirty.ratio": "0.1",
}


@dataclass(frozen=True, slots=True)
class TaskId:
    """One task of one micro-batch; a batch write is epoch 0 of a query of its own."""

    query: str
    task: int
    epoch: int

    @property
    def key(self) -> bytes:
        """The entry's key: epochs of the same task replace one another."""
        return f"{self.query}/{self.task}".encode()


@dataclass(frozen=True, slots=True)
class ControlEntry:
    """The state of a write attempt, as stored in the control topic."""

    epoch: int
    done: bool = False
    writers: tuple[ProducerIdAndEpoch, ...] = ()
    starts: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    rows: int = 0

    def as_json(self) -> bytes:
        """Encode the entry as a record's value."""
        return json.dumps(
            {"epoch": self.epoch, "done": self.done, "writers": self.writers, "starts": self.starts, "rows": self.rows}
        ).encode()


def entry_from(value: bytes) -> ControlEntry:
    """Read a record's value.

    >>> entry_from(ControlEntry(3, writers=(ProducerIdAndEpoch(7, 0),), starts={"t": {0: 5}}).as_json()).starts
    {'t': {0: 5}}
    """
    document = json.loads(value)
    return ControlEntry(
        epoch=document["epoch"],
        done=document["done"],
        writers=tuple(ProducerIdAndEpoch(int(producer_id), int(epoch)) for producer_id, epoch in document["writers"]),
        starts={topic: {int(p): at for p, at in ends.items()} for topic, ends in document["starts"].items()},
        rows=document["rows"],
    )


def entry_record(task: TaskId, entry: ControlEntry | None) -> NewRecord:
    """Return an entry as a record; None removes it."""
    return NewRecord(task.key, None if entry is None else entry.as_json(), -1)


@dataclass(frozen=True, slots=True)
class ControlTopic:
    """The control topic as the brokers have it."""

    name: str
    partitions: int
    topic_id: UUID
    """Changes when the topic is deleted and made again; zero for brokers older than topic ids."""

    def partition_of(self, task: TaskId) -> TopicPartition:
        """Return the partition with a task's entries."""
        return TopicPartition(self.name, partition_for_key(task.key, self.partitions))


async def ensure_control_topic(cluster: Cluster, name: str) -> ControlTopic:
    """Create the topic unless it exists. Raises the broker's error."""

    async def find() -> ControlTopic:
        info = await cluster.topic(name, fresh=True)
        return ControlTopic(name, len(info.partitions), info.topic_id)

    try:
        return await find()
    except UnknownTopicOrPartition:
        ((made, _),) = await create_topics(cluster, [NewTopic(name, _PARTITIONS, configs=_CONFIG)])
        if made.error is not None and not isinstance(made.error, TopicAlreadyExists):
            raise made.error from None
        return await cluster.retrying(find)


async def last_entry(cluster: Cluster, control_topic: ControlTopic, task: TaskId) -> ControlEntry | None:
    """Return the entry of the task's last attempt; None if there is none."""
    tp = control_topic.partition_of(task)
    found: bytes | None = None
    async for record in _records(cluster, [tp]):
        if record.key == task.key:
            found = record.value
    return None if found is None else entry_from(found)


async def knows_query(cluster: Cluster, control_topic: ControlTopic, query: str) -> bool:
    """Return whether there is an entry of any task of a query."""
    start = f"{query}/".encode()
    tps = [TopicPartition(control_topic.name, number) for number in range(control_topic.partitions)]
    return any([(record.key or b"").startswith(start) async for record in _records(cluster, tps)])


async def _records(cluster: Cluster, tps: Sequence[TopicPartition]) -> AsyncIterator[Record]:
    """Yield the records of partitions, up to their ends now."""
    firsts = await list_offsets(cluster, dict.fromkeys(tps, EARLIEST))
    ends = await list_offsets(cluster, dict.fromkeys(tps, LATEST))
    starts = {tp: firsts[tp].offset for tp in tps}
    async with Consumer(cluster, starts, end={tp: ends[tp].offset for tp in tps}) as consumer:
        async for _, records in consumer.chunks():
            for record in records:
                yield record
