"""DescribeTransactions (key 65), version 0.

What it does
  Describes transactional ids: state, producer, timeout, start, and the partitions of the open transaction.

What it does not do
  Nothing is left out.

Versions
  v0   flexible encoding
"""

from __future__ import annotations

from ottla.broker.coordinators import naming_work
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.errors import KafkaError
from ottla.wire.messages.describe_transactions import (
    MESSAGES,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)

WORK = 3
"""Units of work of one transactional id."""


async def handle(request: Request, body: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
    """Describe each transactional id separately, as often as it is named."""
    slices = request.services.slices
    response = DescribeTransactionsResponse()
    async for transactional_id in slices.each(body.transactional_ids, WORK):
        slices.spend(naming_work(transactional_id))
        response.transaction_states.append(await _one(request, transactional_id))
    return response


async def _one(request: Request, transactional_id: str) -> TransactionState:
    try:
        metadata = request.services.coordinators.transactions.describe(transactional_id)
    except KafkaError as error:
        return TransactionState(transactional_id=transactional_id, error_code=error.code)
    by_topic: dict[str, list[int]] = {}
    async for where in request.services.slices.each(sorted(metadata.partitions)):
        by_topic.setdefault(where.topic, []).append(where.partition)
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=metadata.state.kafka_name,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_start_time_ms=metadata.started_wall_ms,
        producer_id=metadata.producer_id,
        producer_epoch=metadata.producer_epoch,
        topics=[TopicData(topic=topic, partitions=found) for topic, found in by_topic.items()],
    )


HANDLER = Awaited(MESSAGES, handle)
