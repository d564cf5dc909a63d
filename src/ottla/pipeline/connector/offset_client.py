"""Asks the brokers which partitions a subscription has, and resolves offset options and timestamps to offsets.

An `OffsetClient` holds one cluster connection, which is kept across the micro-batches of a stream. It owns an event
loop and is called from one thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ottla.client.admin import list_topics
from ottla.client.cluster import Cluster
from ottla.client.groups import commit_offsets
from ottla.client.metadata import TopicInfo
from ottla.client.offset_spec import OffsetSpec, resolve
from ottla.client.offsets import OffsetBounds, list_offsets, offset_bounds
from ottla.core.errors import ErrorCode, UnknownTopicOrPartition
from ottla.core.ids import NO_TOPIC_ID, TopicPartition, id_text
from ottla.pipeline.connector.options import BrokerOptions, InvalidOption, ReadOptions
from ottla.pipeline.connector.range_reader import first_connect
from ottla.pipeline.connector.starting_offsets import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    AtOffsets,
    AtTime,
    Earliest,
    Latest,
    OffsetOption,
)
from ottla.pipeline.connector.subscription import TopicSubscription, check_covers

T = TypeVar("T")


class NoSuchTopic(Exception):
    """A topic or partition that options name is not there. Asking again would not help soon enough."""


@dataclass(frozen=True, slots=True)
class Topics:
    """The partitions that a subscription selects at this moment."""

    partitions: frozenset[TopicPartition]
    ids: Mapping[str, str]
    """Kafka's text form of each topic's id; empty where the brokers have none."""


class OffsetClient:
    """Connects when first asked. Close it."""

    def __init__(self, read_options: ReadOptions) -> None:
        self._read_options = read_options
        self._runner = asyncio.Runner()
        self._cluster: Cluster | None = None

    def close(self) -> None:
        """Close the connections."""
        if self._cluster is not None:
            self._runner.run(self._cluster.close())
            self._cluster = None
        self._runner.close()

    def topics(self, subscription: TopicSubscription, *, missing_ok: bool = False) -> Topics:
        """Return the partitions to read. Raises NoSuchTopic for a named one that is not there, unless that is fine."""
        return self._call(lambda cluster: _topics(cluster, subscription, missing_ok=missing_ok))

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetBounds]:
        """Return the start and end offset of each partition now.

        The end is the last stable offset with read_committed.
        """
        wanted, committed = list(partitions), self._read_options.read_committed
        return self._call(lambda cluster: offset_bounds(cluster, wanted, read_committed=committed))

    def resolve(self, spec: OffsetSpec, bounds: Mapping[TopicPartition, OffsetBounds]) -> dict[TopicPartition, int]:
        """Return the offset that an expression (`client/offset_spec.py`) means in each partition."""
        return self._call(lambda cluster: resolve(cluster, spec, bounds))

    def offsets(self, spec: OffsetOption, bounds: Mapping[TopicPartition, OffsetBounds]) -> dict[TopicPartition, int]:
        """Resolve an offset option for each of the partitions. Raises InvalidOption."""
        match spec:
            case Earliest():
                return {tp: span.start_offset for tp, span in bounds.items()}
            case Latest():
                return {tp: span.end_offset for tp, span in bounds.items()}
            case AtOffsets(offsets, option):
                _check_covers(option, offsets, bounds)
                return {tp: _resolve_offset(offsets[tp], span) for tp, span in bounds.items()}
            case AtTime(None, times, option):
                _check_covers(option, times, bounds)
                return self._at_times(spec, times, bounds)
            case AtTime(int() as time_ms):
                return self._at_times(spec, dict.fromkeys(bounds, time_ms), bounds)
            case _:
                raise AssertionError(spec)

    def first_offsets(self, from_time_ms: int | None, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return each partition's first offset with this timestamp or a later one, or its end. None is offset 0."""
        if from_time_ms is None:
            return dict.fromkeys(ends, 0)
        timestamps = self._call(lambda cluster: list_offsets(cluster, dict.fromkeys(ends, from_time_ms)))
        return {tp: end if timestamps[tp].offset < 0 else timestamps[tp].offset for tp, end in ends.items()}

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Show how far a stream is, as an ordinary group's offsets: for people and lag monitors, never read back."""
        self._call(lambda cluster: commit_offsets(cluster, group, offsets))

    def _at_times(
        self, spec: AtTime, times: Mapping[TopicPartition, int], bounds: Mapping[TopicPartition, OffsetBounds]
    ) -> dict[TopicPartition, int]:
        timestamps = self._call(lambda cluster: list_offsets(cluster, times))
        if not spec.or_latest and (late := sorted(str(tp) for tp, at in timestamps.items() if at.offset < 0)):
            raise InvalidOption(
                f"{spec.option}: no record of {', '.join(late)} is that late "
                "(startingOffsetsByTimestampStrategy=latest begins at the end there)"
            )
        return {
            tp: span.end_offset if timestamps[tp].offset < 0 else min(timestamps[tp].offset, span.end_offset)
            for tp, span in bounds.items()
        }

    def _call(self, work: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
        async def asked() -> T:
            if self._cluster is None:
                self._cluster = await first_connect(self._read_options.connection)
            cluster = self._cluster
            return await cluster.retrying(lambda: work(cluster))

        return self._runner.run(asked())


def check_brokers(connection: BrokerOptions) -> None:
    """Connect once, so that absent brokers are reported before tasks try them. Raises CannotConnect or a KafkaError."""

    async def connect_once() -> None:
        cluster = await first_connect(connection)
        await cluster.close()

    asyncio.run(connect_once())


async def _topics(cluster: Cluster, subscription: TopicSubscription, *, missing_ok: bool) -> Topics:
    if subscription.pattern is not None:
        listed = await list_topics(cluster)
        infos = [info for info in listed if subscription.matches_topic(info.name, internal=info.internal)]
    else:
        infos = await _named(cluster, subscription.required_topics, missing_ok=missing_ok)
    partitions = {
        tp
        for info in infos
        if info.error_code == ErrorCode.NONE
        for tp in (TopicPartition(info.name, p.partition) for p in info.partitions)
        if subscription.includes_partition(tp)
    }
    topic_partitions = {
        TopicPartition(topic, number) for topic, numbers in subscription.partitions.items() for number in numbers
    }
    if not missing_ok and (gone := sorted(map(str, topic_partitions - partitions))):
        raise NoSuchTopic(f"assign: there is no partition {', '.join(gone)}")
    return Topics(frozenset(partitions), {info.name: _id(info) for info in infos})


async def _named(cluster: Cluster, names: Iterable[str], *, missing_ok: bool) -> list[TopicInfo]:
    infos = []
    for name in names:
        try:
            infos.append(await cluster.topic(name, fresh=True))
        except UnknownTopicOrPartition:
            if not missing_ok:
                raise NoSuchTopic(f"subscribe: there is no topic {name}") from None
    return infos


def _id(info: TopicInfo) -> str:
    return "" if info.topic_id == NO_TOPIC_ID else id_text(info.topic_id)


def _check_covers(option: str, given: Iterable[TopicPartition], bounds: Iterable[TopicPartition]) -> None:
    try:
        check_covers(option, given, bounds)
    except ValueError as error:
        raise InvalidOption(str(error)) from None


def _resolve_offset(offset: int, span: OffsetBounds) -> int:
    """Return the offset that a number means: -2 and -1 are the log's ends, other numbers are offsets."""
    return {EARLIEST_OFFSET: span.start_offset, LATEST_OFFSET: span.end_offset}.get(offset, offset)
