"""Sends the markers of transactions to the leaders of their partitions, on this broker and on others.

Implements the port `MarkerSender` of `transactions`. The markers for one broker share requests (WriteTxnMarkers), one
at a time. A marker that fails is reported to the transaction coordinator, which sends it again, to the leader of then,
until it is written or the partition is deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.remote.node_channels import BatchingQueues, NodeChannels
from ottla.core.errors import ErrorCode, error_code_for
from ottla.core.ids import TopicPartition
from ottla.metadata_store.cluster_view import NO_LEADER, ClusterView
from ottla.metadata_store.metadata_cache import MetadataCache
from ottla.transactions.marker_port import MarkerSender, TransactionMarker
from ottla.wire.apis import ApiKey
from ottla.wire.generated.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:  # imported with the first connection: one broker alone has none
    from ottla.client.connection import ConnectTo


Results = Mapping[TopicPartition, ErrorCode]


class _Sent(NamedTuple):
    """Holds a marker and those of its partitions that one broker leads."""

    marker: TransactionMarker
    partitions: tuple[TopicPartition, ...]


class TransactionMarkerChannelManager:
    """Writes markers where this broker leads, and has the other leaders write theirs. Call `follow` and `close`."""

    def __init__(self, local: MarkerSender, cluster: MetadataCache, *, node_id: int, connect_to: ConnectTo) -> None:
        self._local, self._cluster, self._node_id = local, cluster, node_id
        self._channels = NodeChannels(connect_to)
        self._queues = BatchingQueues[_Sent, Results](self._exchange, lambda sent: sent.marker.producer_id)

    def follow(self, old: ClusterView, new: ClusterView) -> None:
        """Give up the requests to brokers that are gone: their partitions get other leaders."""
        self._channels.follow(old, new)

    async def close(self) -> None:
        """Cancel what is not sent, and close the connections."""
        await self._queues.close()
        await self._channels.close()

    async def send(self, marker: TransactionMarker, partitions: Collection[TopicPartition]) -> Results:
        """Write the marker to these partitions; returns once each is replicated or has failed. Never raises."""
        leaders = {self._leader_of(where) for where in partitions}
        if len(leaders) == 1:
            return await self._send(leaders.pop(), _Sent(marker, tuple(partitions)))
        by_leader: dict[int, list[TopicPartition]] = {}
        for where in sorted(partitions):
            by_leader.setdefault(self._leader_of(where), []).append(where)
        results: dict[TopicPartition, ErrorCode] = {}
        for found in await asyncio.gather(
            *(self._send(leader, _Sent(marker, tuple(led))) for leader, led in by_leader.items())
        ):
            results.update(found)
        return results

    def _leader_of(self, where: TopicPartition) -> int:
        """Return the leader; for a partition that this broker does not know, this broker itself."""
        view = self._cluster.current.partition(where.topic, where.partition)
        return self._node_id if view is None else view.leader

    async def _send(self, leader: int, sent: _Sent) -> Results:
        if leader == self._node_id:
            return await self._local.send(sent.marker, sent.partitions)
        if leader == NO_LEADER:
            return dict.fromkeys(sent.partitions, ErrorCode.LEADER_NOT_AVAILABLE)
        try:
            return await self._queues.send(leader, sent)
        except Exception as error:  # noqa: BLE001  # the coordinator sends the marker again
            return dict.fromkeys(sent.partitions, error_code_for(error))

    async def _exchange(self, node_id: int, batch: Sequence[_Sent]) -> Sequence[Results]:
        request = WriteTxnMarkersRequest(markers=[_encoded(sent) for sent in batch])
        response: WriteTxnMarkersResponse = await self._channels.request(node_id, ApiKey.WRITE_TXN_MARKERS, request)
        found: dict[int, dict[TopicPartition, ErrorCode]] = {}
        for result in response.markers:
            of_producer = found.setdefault(result.producer_id, {})
            for topic in result.topics:
                for partition in topic.partitions:
                    of_producer[TopicPartition(topic.name, partition.partition_index)] = _error(partition.error_code)
        return [
            {
                where: found.get(sent.marker.producer_id, {}).get(where, ErrorCode.UNKNOWN_SERVER_ERROR)
                for where in sent.partitions
            }
            for sent in batch
        ]


def _error(code: int) -> ErrorCode:
    """Return the result of a marker on another broker.

    That broker may not know a new topic yet. Only the snapshot of this one decides that a partition is deleted, so that
    it needs no marker: see `TransactionMarkerChannelManager._leader_of`.
    """
    try:
        error = ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else error


def _encoded(sent: _Sent) -> WritableTxnMarker:
    marker, by_topic = sent.marker, dict[str, list[int]]()
    for where in sent.partitions:
        by_topic.setdefault(where.topic, []).append(where.partition)
    return WritableTxnMarker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transaction_result=marker.committed,
        topics=[WritableTxnMarkerTopic(name=name, partition_indexes=found) for name, found in by_topic.items()],
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=marker.version,
    )
