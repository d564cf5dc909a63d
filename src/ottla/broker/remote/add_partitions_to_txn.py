"""Adds partitions to transactions, or verifies that they were added, with the coordinator on whichever broker it is.

Implements the port `PartitionAdder`. A leader of partitions asks the transaction coordinator by AddPartitionsToTxn:
many transactions share a request, one at a time to each broker (KIP-890).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.remote.node_channels import BatchingQueues, NodeChannels
from ottla.broker.remote.transaction_verification import PartitionAdder
from ottla.core.errors import ErrorCode, RequestTimedOut, error_code_for
from ottla.core.ids import TRANSACTIONS_TOPIC, TopicPartition
from ottla.internal_topics.partitioning import partition_of
from ottla.metadata_store.cluster_view import NO_LEADER, ClusterView
from ottla.metadata_store.metadata_cache import MetadataCache
from ottla.transactions.metadata import TransactionVersion
from ottla.wire.apis import ApiKey
from ottla.wire.generated.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

if TYPE_CHECKING:  # imported with the first connection: one broker alone has none
    from ottla.client.connection import ConnectTo


class _Asked(NamedTuple):
    """Holds the partitions of one producer that are to be added or verified."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    verify_only: bool


class AddPartitionsToTxnManager:
    """Asks the coordinator of each transactional id. Call `follow` and `close`."""

    def __init__(
        self, local: Callable[[], PartitionAdder], cluster: MetadataCache, *, node_id: int, connect_to: ConnectTo
    ) -> None:
        self._local, self._cluster, self._node_id = local, cluster, node_id
        self._channels = NodeChannels(connect_to)
        self._queues = BatchingQueues[_Asked, ErrorCode](self._exchange, lambda asked: asked.transactional_id)

    def follow(self, old: ClusterView, new: ClusterView) -> None:
        """Give up the requests to brokers that are gone."""
        self._channels.follow(old, new)

    async def close(self) -> None:
        """Cancel what is not sent, and close the connections."""
        await self._queues.close()
        await self._channels.close()

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: frozenset[TopicPartition],
        *,
        client_version: TransactionVersion,
        verify_only: bool,
    ) -> ErrorCode:
        """Add partitions to a transaction, or verify that they were added; returns one error for all. Never raises.

        Another broker adds them for the second version of transactions, the only one in which leaders add partitions.
        """
        coordinator = self._coordinator_of(transactional_id)
        if coordinator == self._node_id:
            return await self._local().add_partitions(
                transactional_id,
                producer_id,
                producer_epoch,
                partitions,
                client_version=client_version,
                verify_only=verify_only,
            )
        if coordinator == NO_LEADER:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert verify_only or client_version >= TransactionVersion.TV_2, client_version
        asked = _Asked(transactional_id, producer_id, producer_epoch, tuple(sorted(partitions)), verify_only)
        try:
            return await self._queues.send(coordinator, asked)
        except RequestTimedOut:
            return ErrorCode.NETWORK_EXCEPTION
        except Exception as error:  # noqa: BLE001  # the batch gets the error
            return error_code_for(error)

    def _coordinator_of(self, transactional_id: str) -> int:
        """Return the leader of the id's partition; this broker itself before the topic exists."""
        view = self._cluster.current
        topic = view.topics.get(TRANSACTIONS_TOPIC)
        if topic is None:
            return self._node_id
        return topic.partitions[partition_of(transactional_id, len(topic.partitions))].leader

    async def _exchange(self, node_id: int, batch: Sequence[_Asked]) -> Sequence[ErrorCode]:
        request = AddPartitionsToTxnRequest(transactions=[_encoded(asked) for asked in batch])
        response: AddPartitionsToTxnResponse = await self._channels.request(
            node_id, ApiKey.ADD_PARTITIONS_TO_TXN, request
        )
        if response.error_code != ErrorCode.NONE:
            return [ErrorCode(response.error_code)] * len(batch)
        found = {
            result.transactional_id: [
                ErrorCode(partition.partition_error_code)
                for topic in result.topic_results
                for partition in topic.results_by_partition
            ]
            for result in response.results_by_transaction
        }
        return [_combined(found.get(asked.transactional_id, [])) for asked in batch]


def _combined(errors: Sequence[ErrorCode]) -> ErrorCode:
    """Return one error for all partitions: that of a bad partition, not of those that were left out because of it."""
    if not errors:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    failed = [error for error in errors if error not in {ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED}]
    return failed[0] if failed else errors[0]


def _encoded(asked: _Asked) -> AddPartitionsToTxnTransaction:
    by_topic: dict[str, list[int]] = {}
    for where in asked.partitions:
        by_topic.setdefault(where.topic, []).append(where.partition)
    return AddPartitionsToTxnTransaction(
        transactional_id=asked.transactional_id,
        producer_id=asked.producer_id,
        producer_epoch=asked.producer_epoch,
        verify_only=asked.verify_only,
        topics=[AddPartitionsToTxnTopic(name=name, partitions=found) for name, found in by_topic.items()],
    )
