"""DescribeTransactions (key 65), version 0.

What it does
  Describes transactional ids: state, producer, timeout, start, and the partitions of the open transaction.

What it does not do
  Nothing is left out.

Versions
  v0   flexible encoding
"""

from __future__ import annotations

from ottla.broker.context import RequestContext
from ottla.broker.coordinators import naming_work
from ottla.core.errors import KafkaError
from ottla.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)

WORK = 3
"""Units of work of one transactional id."""


async def handle(ctx: RequestContext, request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
    """Describe each transactional id separately, as often as it is named."""
    slices = ctx.services.slices
    response = DescribeTransactionsResponse()
    async for transactional_id in slices.each(request.transactional_ids, WORK):
        slices.spend(naming_work(transactional_id))
        response.transaction_states.append(await _one(ctx, transactional_id))
    return response


async def _one(ctx: RequestContext, transactional_id: str) -> TransactionState:
    try:
        metadata = ctx.services.coordinators.transactions.describe(transactional_id)
    except KafkaError as error:
        return TransactionState(transactional_id=transactional_id, error_code=error.code)
    by_topic: dict[str, list[int]] = {}
    async for where in ctx.services.slices.each(sorted(metadata.partitions)):
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
