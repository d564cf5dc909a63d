"""Asks other brokers for the ends of the partitions that they lead, and for the first unread records of groups.

A group's coordinator serves its lag, and other brokers lead some of its partitions. One broker alone asks no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.remote.node_channels import NodeChannels
from ottla.core.error_codes import ErrorCode
from ottla.core.errors import KafkaError
from ottla.core.ids import TopicPartition
from ottla.metadata_store.cluster_view import NO_LEADER, ClusterView
from ottla.metrics.first_record import READ_BYTES, first_timestamp
from ottla.wire.apis import ApiKey

if TYPE_CHECKING:
    from ottla.client.connection import ConnectTo

_LATEST, _EARLIEST, _CONSUMER = -1, -2, -1
_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1
_WITHIN_S = 2.0
"""A broker that does not answer in this time holds up no scrape: the lag of its partitions is left out."""

_PARTITIONS_AT_ONCE = 1_000


class Ends(NamedTuple):
    """Holds what a group can read of a partition."""

    log_start: int
    end: int  # the last stable offset
    high_watermark: int  # for share groups, which read what is not committed, too


class RemotePartitions:
    """Holds connections to other brokers. Call `follow` with each new snapshot of the cluster."""

    def __init__(self, connect_to: ConnectTo) -> None:
        self._channels = NodeChannels(connect_to)

    def follow(self, old: ClusterView, new: ClusterView) -> None:
        """Give up the requests to brokers that are gone."""
        self._channels.follow(old, new)

    async def close(self) -> None:
        """Close the connections."""
        await self._channels.close()

    async def ends(
        self, view: ClusterView, partitions: Iterable[TopicPartition], of_shares: set[str]
    ) -> dict[TopicPartition, Ends]:
        """Return the ends of those whose leader answers; the high watermark is asked for topics of share groups."""
        by_leader = _by_leader(view, partitions)
        ends: dict[TopicPartition, Ends] = {}
        asking = [self._ends_of(leader, asked, of_shares) for leader, asked in by_leader]
        for answer in await asyncio.gather(*asking):
            ends.update(answer)
        return ends

    async def timestamps(
        self, view: ClusterView, positions: Mapping[TopicPartition, int], *, committed_only: bool
    ) -> dict[TopicPartition, int]:
        """Return the timestamps of the first records at or after these offsets, of those that were found."""
        timestamps: dict[TopicPartition, int] = {}
        asking = [
            self._timestamps_of(
                view, leader, {partition: positions[partition] for partition in asked}, committed_only=committed_only
            )
            for leader, asked in _by_leader(view, positions)
        ]
        for answer in await asyncio.gather(*asking):
            timestamps.update(answer)
        return timestamps

    async def _ends_of(
        self, leader: int, partitions: list[TopicPartition], of_shares: set[str]
    ) -> dict[TopicPartition, Ends]:
        try:
            async with asyncio.timeout(_WITHIN_S):
                starts = await self._offsets(leader, partitions, _EARLIEST)
                ends = await self._offsets(leader, partitions, _LATEST)
                shared = [partition for partition in partitions if partition.topic in of_shares]
                marks = await self._offsets(leader, shared, _LATEST, _READ_UNCOMMITTED) if shared else {}
        except (KafkaError, TimeoutError):
            return {}
        return {
            partition: Ends(starts[partition], end, marks.get(partition, end))
            for partition, end in ends.items()
            if partition in starts
        }

    async def _offsets(
        self, leader: int, partitions: list[TopicPartition], at: int, isolation_level: int = _READ_COMMITTED
    ) -> dict[TopicPartition, int]:
        from ottla.wire.generated.list_offsets import (
            ListOffsetsPartition,
            ListOffsetsRequest,
            ListOffsetsResponse,
            ListOffsetsTopic,
        )

        topics: dict[str, ListOffsetsTopic] = {}
        for name, index in partitions:
            topic = topics.setdefault(name, ListOffsetsTopic(name=name))
            topic.partitions.append(ListOffsetsPartition(partition_index=index, timestamp=at))
        request = ListOffsetsRequest(
            replica_id=_CONSUMER, isolation_level=isolation_level, topics=list(topics.values())
        )
        response: ListOffsetsResponse = await self._channels.request(leader, ApiKey.LIST_OFFSETS, request)
        return {
            TopicPartition(topic.name, partition.partition_index): partition.offset
            for topic in response.topics
            for partition in topic.partitions
            if partition.error_code == ErrorCode.NONE
        }

    async def _timestamps_of(
        self, view: ClusterView, leader: int, positions: Mapping[TopicPartition, int], *, committed_only: bool
    ) -> dict[TopicPartition, int]:
        from ottla.wire.generated.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic

        topics: dict[str, FetchTopic] = {}
        for (name, index), offset in positions.items():
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = FetchTopic(topic=name, topic_id=view.topics[name].topic_id, partitions=[])
            topic.partitions.append(
                FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=READ_BYTES)
            )
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=READ_BYTES * len(positions),
            isolation_level=_READ_COMMITTED if committed_only else _READ_UNCOMMITTED,
            topics=list(topics.values()),
        )
        try:
            async with asyncio.timeout(_WITHIN_S):
                response: FetchResponse = await self._channels.request(leader, ApiKey.FETCH, request)
        except (KafkaError, TimeoutError):
            return {}
        timestamps: dict[TopicPartition, int] = {}
        for answered in response.responses:
            by_id = view.topic_by_id.get(answered.topic_id.bytes)
            name = answered.topic or (by_id.name if by_id else "")
            for data in answered.partitions:
                where = TopicPartition(name, data.partition_index)
                aborted = [
                    (transaction.producer_id, transaction.first_offset)
                    for transaction in data.aborted_transactions or ()
                ]
                assert data.records is None or isinstance(data.records, bytes | bytearray | memoryview)
                if data.records and where in positions:
                    timestamp_ms, _ = first_timestamp(
                        data.records, positions[where], aborted, committed_only=committed_only
                    )
                    if timestamp_ms is not None:
                        timestamps[where] = timestamp_ms
        return timestamps


def _by_leader(view: ClusterView, partitions: Iterable[TopicPartition]) -> list[tuple[int, list[TopicPartition]]]:
    """Return the partitions by their leader, so many at once that an answer is not too large."""
    by_leader: dict[int, list[TopicPartition]] = {}
    for partition in partitions:
        state = view.partition(partition.topic, partition.partition)
        if state is not None and state.leader != NO_LEADER:
            by_leader.setdefault(state.leader, []).append(partition)
    return [
        (leader, asked[first : first + _PARTITIONS_AT_ONCE])
        for leader, asked in by_leader.items()
        for first in range(0, len(asked), _PARTITIONS_AT_ONCE)
    ]
