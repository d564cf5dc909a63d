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

from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.ids import TopicPartition
from ottla.transactions.marker_port import TransactionMarker
from ottla.transactions.metadata import TransactionVersion
from ottla.wire.messages.write_txn_markers import (
    MESSAGES,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


async def handle(request: Request, body: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    """Write the markers in order; the results of one producer id are one element."""
    results: dict[int, WritableTxnMarkerResult] = {}
    async for marker in request.services.slices.each(body.markers):
        found = results.setdefault(marker.producer_id, WritableTxnMarkerResult(producer_id=marker.producer_id))
        found.topics += await _write(request, marker)
    return WriteTxnMarkersResponse(markers=list(results.values()))


async def _write(request: Request, asked: WritableTxnMarker) -> list[WritableTxnMarkerTopicResult]:
    each = request.services.slices.each
    partitions = [
        TopicPartition(topic.name, index)
        async for topic in each(asked.topics)
        async for index in each(dict.fromkeys(topic.partition_indexes))
    ]
    is_second = asked.transaction_version >= TransactionVersion.TV_2
    marker = TransactionMarker(
        producer_id=asked.producer_id,
        producer_epoch=asked.producer_epoch,
        committed=asked.transaction_result,
        coordinator_epoch=asked.coordinator_epoch,
        version=TransactionVersion.TV_2 if is_second else TransactionVersion.TV_0,
    )
    outcomes = await request.services.coordinators.transaction_marker_writer.send(marker, partitions)
    by_topic: dict[str, list[WritableTxnMarkerPartitionResult]] = {topic.name: [] for topic in asked.topics}
    async for where in each(partitions):
        by_topic[where.topic].append(
            WritableTxnMarkerPartitionResult(partition_index=where.partition, error_code=outcomes[where])
        )
    return [WritableTxnMarkerTopicResult(name=name, partitions=found) for name, found in by_topic.items()]


HANDLER = Awaited(MESSAGES, handle)
