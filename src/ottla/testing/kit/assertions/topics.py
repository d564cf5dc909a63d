"""Reads topics for a test's assertions: all records, offsets, leaders and settings, without a client or a group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from ottla.broker.config_resources import topic_entries
from ottla.client.isolation import AbortedFilter, is_visible
from ottla.core.ids import TopicPartition
from ottla.records.batch import split
from ottla.records.record_reader import read_records
from ottla.replication.partition import Partition
from ottla.testing.cluster import TestCluster
from ottla.testing.kit.assertions.lookups import leader_of, partitions_of, running, topic_of
from ottla.testing.kit.assertions.waiting import observed

T = TypeVar("T")

Isolation = Literal["read_committed", "read_uncommitted"]
ISOLATIONS: tuple[Isolation, ...] = ("read_committed", "read_uncommitted")
_READ_BYTES = 1 << 20


class Call(Protocol):
    """Runs a coroutine function of the cluster on the loop of the brokers, from another thread."""

    def __call__(self, work: Callable[[TestCluster], Coroutine[Any, Any, T]]) -> T:
        """Return its result."""
        ...


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a topic. `timestamp_ms` is the broker's if the topic has `message.timestamp.type=LogAppendTime`."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Records(tuple[Record, ...]):
    """Records of a topic, by partition and offset."""

    __slots__ = ()

    def values(self) -> list[bytes | None]:
        """Return the values; None is a tombstone."""
        return [record.value for record in self]

    def keys(self) -> list[bytes | None]:
        """Return the keys."""
        return [record.key for record in self]

    def __repr__(self) -> str:
        return f"Records({len(self)}: [{', '.join(map(_short, self))}])"


def _short(record: Record) -> str:
    where = f"{record.topic}-{record.partition}@{record.offset}"
    return f"{where} {'' if record.key is None else f'{record.key!r}: '}{record.value!r}"


@dataclass(frozen=True, slots=True)
class Offsets:
    """The offsets of a partition: of its first record, after its last one that consumers see, and the last stable."""

    start: int
    end: int  # the high watermark
    last_stable: int  # below it every transaction has ended


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """The replicas of a partition, as the controller decided them."""

    topic: str
    partition: int
    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class Topic:
    """One topic, read again by each method. They raise UnknownTopic if it does not exist (any more)."""

    def __init__(self, name: str, call: Call) -> None:
        self.name, self._call = name, call

    def __repr__(self) -> str:
        return f"k.topic({self.name!r})"

    def records(self, partition: int | None = None, isolation: Isolation = "read_committed") -> Records:
        """Return the records that a consumer from the earliest offset would read, of all partitions or of one."""
        if isolation not in ISOLATIONS:
            raise ValueError(f"isolation={isolation!r}: it is one of {', '.join(ISOLATIONS)}")
        return self._ask(
            f"records({'' if partition is None else partition})",
            lambda cluster: read_topic(cluster, self.name, partition, isolation),
        )

    def offsets(self) -> dict[int, Offsets]:
        """Return the offsets of each partition."""
        return self._ask("offsets()", lambda cluster: read_offsets(cluster, self.name))

    def partitions(self) -> tuple[PartitionInfo, ...]:
        """Return the replicas of each partition."""
        return self._ask("partitions()", lambda cluster: describe_partitions(cluster, self.name))

    def leader(self, partition: int = 0) -> int | None:
        """Return the node id of a partition's leader; None if it has none."""
        return self._ask(f"leader({partition})", lambda cluster: _one(cluster, self.name, partition)).leader

    def isr(self, partition: int = 0) -> tuple[int, ...]:
        """Return the in-sync replicas of a partition, sorted."""
        return self._ask(f"isr({partition})", lambda cluster: _one(cluster, self.name, partition)).isr

    @property
    def config(self) -> dict[str, str | None]:
        """Return the settings of the topic with the values that apply, be they its own, the brokers' or defaults."""
        return self._ask("config", lambda cluster: read_config(cluster, self.name))

    def _ask(self, what: str, work: Callable[[TestCluster], Coroutine[Any, Any, T]]) -> T:
        return observed(f"{self!r}.{what}", lambda: self._call(work), topic=self.name)


# ---- On the loop of the brokers


async def read_topic(cluster: TestCluster, name: str, partition: int | None, isolation: Isolation) -> Records:
    """Read the records of a topic. Raises NotFound."""
    records: list[Record] = []
    for where in partitions_of(topic_of(cluster, name), partition):
        led = (await leader_of(cluster, where)).partition
        async for read in _read(led, read_committed=isolation == "read_committed"):
            records += read
    return Records(records)


async def _read(partition: Partition, *, read_committed: bool) -> AsyncIterator[list[Record]]:
    """Yield the records of a partition, in pieces between which the brokers go on."""
    offset = partition.log.log_start_offset
    end_offset = partition.last_stable_offset if read_committed else partition.high_watermark
    while offset < end_offset:
        found = partition.read(offset, max_bytes=_READ_BYTES, committed_only=read_committed, at_least_one=True)
        if found.region is None:
            return
        aborted = AbortedFilter((each.producer_id, each.first_offset) for each in found.aborted or ())
        start = max(offset, found.log_start_offset)
        before, view = offset, memoryview(found.region.read())
        for at, header in split(view, partial_tail=True):
            offset = header.last_offset + 1
            batch = view[at : at + header.size_bytes]
            if is_visible(header, batch, aborted, read_committed=read_committed):
                yield list(_records(partition.topic_partition, batch, start, end_offset))
        if offset <= before:
            return
        await asyncio.sleep(0)


def _records(where: TopicPartition, batch: memoryview, start: int, end: int) -> Iterator[Record]:
    for record in read_records(batch):
        if start <= record.offset < end:
            yield Record(
                topic=where.topic,
                partition=where.partition,
                offset=record.offset,
                timestamp_ms=record.timestamp_ms,
                key=record.key,
                value=record.value,
                headers=tuple(record.headers),
            )


async def read_offsets(cluster: TestCluster, name: str) -> dict[int, Offsets]:
    """Read the offsets of each partition at its leader. Raises NotFound."""
    offsets = {}
    for where in partitions_of(topic_of(cluster, name), None):
        led = (await leader_of(cluster, where)).partition
        offsets[where.partition] = Offsets(led.log.log_start_offset, led.high_watermark, led.last_stable_offset)
    return offsets


async def describe_partitions(cluster: TestCluster, name: str) -> tuple[PartitionInfo, ...]:
    """Describe the replicas of each partition. Raises UnknownTopic."""
    return tuple(
        PartitionInfo(
            topic=name,
            partition=view.index,
            leader=None if view.leader < 0 else view.leader,
            leader_epoch=view.leader_epoch,
            replicas=view.replicas,
            isr=tuple(sorted(view.isr)),
        )
        for view in topic_of(cluster, name).partitions
    )


async def _one(cluster: TestCluster, name: str, partition: int) -> PartitionInfo:
    ((_, index),) = partitions_of(topic_of(cluster, name), partition)
    return (await describe_partitions(cluster, name))[index]


async def read_config(cluster: TestCluster, name: str) -> dict[str, str | None]:
    """Read the settings of a topic. Raises UnknownTopic."""
    topic = topic_of(cluster, name)
    return {entry.name: entry.value for entry in topic_entries(running(cluster)[0], topic.config)}
