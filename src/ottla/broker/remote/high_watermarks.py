"""Reads the high watermarks of partitions with their leaders, on whichever brokers they are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ottla.broker.remote.node_channels import NodeChannels
from ottla.core.errors import ErrorCode, KafkaError
from ottla.core.ids import TopicPartition
from ottla.metadata_store.cluster_view import NO_LEADER, ClusterView
from ottla.metadata_store.metadata_cache import MetadataCache
from ottla.replication.replicas import Replicas
from ottla.wire.apis import ApiKey
from ottla.wire.generated.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

if TYPE_CHECKING:  # imported with the first connection: one broker alone has none
    from ottla.client.connection import ConnectTo

_CONSUMER, _LATEST = -1, -1


class HighWatermarks:
    """Asks the leader of each partition by ListOffsets. Call `follow` and `close`."""

    def __init__(self, replicas: Replicas, cluster: MetadataCache, *, node_id: int, connect_to: ConnectTo) -> None:
        self._replicas, self._cluster, self._node_id = replicas, cluster, node_id
        self._channels = NodeChannels(connect_to)

    def follow(self, old: ClusterView, new: ClusterView) -> None:
        """Give up the requests to brokers that are gone."""
        self._channels.follow(old, new)

    async def close(self) -> None:
        """Close the connections."""
        await self._channels.close()

    async def read(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the high watermarks; partitions whose leader does not answer are left out. Never raises KafkaError."""
        found: dict[TopicPartition, int] = {}
        remote: dict[int, list[TopicPartition]] = {}
        view = self._cluster.current
        for partition in partitions:
            state = view.partition(partition.topic, partition.partition)
            if state is None or state.leader == NO_LEADER:
                continue
            if state.leader != self._node_id:
                remote.setdefault(state.leader, []).append(partition)
            elif (own := self._replicas.partitions.get(partition)) is not None:
                found[partition] = own.high_watermark
        for answer in await asyncio.gather(*(self._ask(leader, wanted) for leader, wanted in remote.items())):
            found.update(answer)
        return found

    async def _ask(self, leader: int, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        topics: dict[str, ListOffsetsTopic] = {}
        for name, index in partitions:
            topic = topics.setdefault(name, ListOffsetsTopic(name=name))
            topic.partitions.append(ListOffsetsPartition(partition_index=index, timestamp=_LATEST))
        request = ListOffsetsRequest(replica_id=_CONSUMER, topics=list(topics.values()))
        try:
            response: ListOffsetsResponse = await self._channels.request(leader, ApiKey.LIST_OFFSETS, request)
        except KafkaError:
            return {}
        return {
            TopicPartition(topic.name, each.partition_index): each.offset
            for topic in response.topics
            for each in topic.partitions
            if each.error_code == ErrorCode.NONE
        }
