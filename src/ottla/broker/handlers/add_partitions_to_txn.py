"""AddPartitionsToTxn (key 24), versions 0 to 5.

What it does
  Adds partitions to a transaction of a producer, durably before it answers. From v4 on a broker asks for many
  transactions, or only verifies that partitions were added (KIP-890).

What it does not do
  Nothing is left out. While the previous transaction is being completed the request waits for a short time, where Kafka
  answers CONCURRENT_TRANSACTIONS at once.

Versions
  v2   PRODUCER_FENCED
  v3   flexible encoding
  v4   many transactions at once, sent by brokers, and verification
  v5   the producer speaks the second version of transactions
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.errors import ErrorCode, InvalidRequest
from ottla.core.ids import INTERNAL_TOPICS, TopicPartition
from ottla.transactions.metadata import TransactionVersion
from ottla.wire.messages.add_partitions_to_txn import (
    MESSAGES,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

PRODUCER_FENCED_SINCE, MANY_SINCE, SECOND_VERSION_SINCE = 2, 4, 5

Partitions = dict[TopicPartition, ErrorCode]


async def handle(request: Request, body: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
    """Handle each transaction separately."""
    if request.api_version < MANY_SINCE:
        old = AddPartitionsToTxnTransaction(
            transactional_id=body.v3_and_below_transactional_id,
            producer_id=body.v3_and_below_producer_id,
            producer_epoch=body.v3_and_below_producer_epoch,
            topics=body.v3_and_below_topics,
        )
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=await _transaction(request, old))
    response = AddPartitionsToTxnResponse()
    async for each in request.services.slices.each(body.transactions):
        results = await _transaction(request, each)
        response.results_by_transaction.append(
            AddPartitionsToTxnResult(transactional_id=each.transactional_id, topic_results=results)
        )
    return response


async def _transaction(
    request: Request, transaction: AddPartitionsToTxnTransaction
) -> list[AddPartitionsToTxnTopicResult]:
    asked = [
        TopicPartition(topic.name, index)
        async for topic in request.services.slices.each(transaction.topics)
        async for index in request.services.slices.each(topic.partitions)
    ]
    refused = await _refused(request, asked)
    if refused:  # one bad partition: none is added
        outcomes = {where: refused.get(where, ErrorCode.OPERATION_NOT_ATTEMPTED) for where in asked}
        return _results(transaction.topics, outcomes.items())
    error = await _add(request, transaction, frozenset(asked))
    return _results(transaction.topics, ((where, error) for where in asked))


async def _refused(request: Request, asked: list[TopicPartition]) -> Partitions:
    view = request.services.cluster.current
    refused: Partitions = {}
    async for where in request.services.slices.each(asked):
        if request.api_version < MANY_SINCE and where.topic in INTERNAL_TOPICS:
            refused[where] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif view.partition(where.topic, where.partition) is None:
            refused[where] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return refused


async def _add(
    request: Request, transaction: AddPartitionsToTxnTransaction, partitions: frozenset[TopicPartition]
) -> ErrorCode:
    if not transaction.transactional_id:
        return InvalidRequest.code
    is_second = request.api_version >= SECOND_VERSION_SINCE
    error = await request.services.coordinators.transactions.add_partitions(
        transaction.transactional_id,
        transaction.producer_id,
        transaction.producer_epoch,
        partitions,
        client_version=TransactionVersion.TV_2 if is_second else TransactionVersion.TV_0,
        verify_only=transaction.verify_only,
    )
    if error is ErrorCode.PRODUCER_FENCED and request.api_version < PRODUCER_FENCED_SINCE:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


def _results(
    topics: list[AddPartitionsToTxnTopic], outcomes: Iterable[tuple[TopicPartition, ErrorCode]]
) -> list[AddPartitionsToTxnTopicResult]:
    by_topic: dict[str, list[AddPartitionsToTxnPartitionResult]] = {topic.name: [] for topic in topics}
    for where, error in outcomes:
        by_topic[where.topic].append(
            AddPartitionsToTxnPartitionResult(partition_index=where.partition, partition_error_code=error)
        )
    return [AddPartitionsToTxnTopicResult(name=name, results_by_partition=found) for name, found in by_topic.items()]


HANDLER = Awaited(MESSAGES, handle, eager=True)
