"""WriteTxnMarkers (key 27), versions 1 to 2.

What it does
  Appends the markers of transactions to the partitions that this broker leads. A coordinator on another broker sends
  it, and an administrator who ends a hanging transaction.

What it does not do
  Nothing is left out.

Versions
  v1   flexible encoding
  v2   the version of the transaction (KIP-1228)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ottla.broker.requests.authorization import on_cluster
from ottla.broker.requests.elements import Each, InParts, collect, collect_awaited
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation
from ottla.core.errors import ErrorCode, KafkaError
from ottla.core.ids import TopicPartition
from ottla.metadata_store.cluster_view import ClusterView
from ottla.transactions.marker_port import TransactionMarker
from ottla.transactions.metadata import TransactionVersion
from ottla.wire.generated.write_txn_markers import (
    MESSAGES,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


async def handle(request: Request, body: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    """Write the markers in order; the results of one producer id are one element."""
    results: dict[int, WritableTxnMarkerResult] = {}
    await collect_awaited(request, body.markers, partial(_write, results))
    return WriteTxnMarkersResponse(markers=list(results.values()))


async def _write(
    results: dict[int, WritableTxnMarkerResult], request: Request, asked: WritableTxnMarker, view: ClusterView
) -> None:
    partitions: list[TopicPartition] = []
    named: Each[WritableTxnMarkerTopic, None] = Each(asked.topics, partial(_name_partitions, partitions))
    await collect(request, named, view)
    is_second = asked.transaction_version >= TransactionVersion.TV_2
    marker = TransactionMarker(
        producer_id=asked.producer_id,
        producer_epoch=asked.producer_epoch,
        committed=asked.transaction_result,
        coordinator_epoch=asked.coordinator_epoch,
        version=TransactionVersion.TV_2 if is_second else TransactionVersion.TV_0,
    )
    outcomes = await request.services.coordinators.transaction_marker_writer.send(marker, partitions)
    topics = {topic.name: WritableTxnMarkerTopicResult(name=topic.name) for topic in asked.topics}
    await collect(request, Each(partitions, partial(_partition, topics, outcomes)), view)
    result = results.setdefault(asked.producer_id, WritableTxnMarkerResult(producer_id=asked.producer_id))
    result.topics += topics.values()


def _name_partitions(
    partitions: list[TopicPartition], _request: Request, topic: WritableTxnMarkerTopic, _view: ClusterView
) -> InParts[None]:
    one = partial(_name_partition, topic.name)
    return InParts(None, Each(topic.partition_indexes, one, into=partitions, key=int))


def _name_partition(topic: str, _request: Request, index: int, _view: ClusterView) -> TopicPartition:
    return TopicPartition(topic, index)


def _partition(
    topics: dict[str, WritableTxnMarkerTopicResult],
    outcomes: Mapping[TopicPartition, ErrorCode],
    _request: Request,
    where: TopicPartition,
    _view: ClusterView,
) -> None:
    """Add the outcome of a partition to its topic; of a topic that is named twice there is one result."""
    topics[where.topic].partitions.append(
        WritableTxnMarkerPartitionResult(partition_index=where.partition, error_code=outcomes[where])
    )


def refuse(_request: Request, body: WriteTxnMarkersRequest, error: KafkaError) -> InParts[WriteTxnMarkersResponse]:
    """Answer each partition with an error."""
    response = WriteTxnMarkersResponse()
    return InParts(response, Each(body.markers, partial(_refused_marker, error), into=response.markers))


def _refused_marker(
    error: KafkaError, _request: Request, marker: WritableTxnMarker, _view: ClusterView
) -> InParts[WritableTxnMarkerResult]:
    result = WritableTxnMarkerResult(producer_id=marker.producer_id)
    return InParts(result, Each(marker.topics, partial(_refused_topic, error), into=result.topics))


def _refused_topic(
    error: KafkaError, _request: Request, topic: WritableTxnMarkerTopic, _view: ClusterView
) -> InParts[WritableTxnMarkerTopicResult]:
    result = WritableTxnMarkerTopicResult(name=topic.name)
    return InParts(result, Each(topic.partition_indexes, partial(_refused_partition, error), into=result.partitions))


def _refused_partition(
    error: KafkaError, _request: Request, index: int, _view: ClusterView
) -> WritableTxnMarkerPartitionResult:
    return WritableTxnMarkerPartitionResult(partition_index=index, error_code=error.code)


HANDLER = Awaited(
    MESSAGES, handle, access=(on_cluster(AclOperation.CLUSTER_ACTION, or_cluster=AclOperation.ALTER),), refuse=refuse
)
