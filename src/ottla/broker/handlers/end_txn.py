"""EndTxn (key 26), versions 0 to 5.

What it does
  Commits or aborts a transaction. The answer means that the outcome is durable; the markers follow it.

What it does not do
  Nothing is left out.

Versions
  v2   PRODUCER_FENCED
  v3   flexible encoding
  v4   TRANSACTION_ABORTABLE (KIP-890)
  v5   the producer id and epoch of the next transaction (KIP-890)
"""

from __future__ import annotations

from ottla.broker.context import RequestContext
from ottla.core.errors import ErrorCode, KafkaError
from ottla.transactions.metadata import TransactionVersion
from ottla.wire.messages.end_txn import EndTxnRequest, EndTxnResponse

PRODUCER_FENCED_SINCE, SECOND_VERSION_SINCE = 2, 5


async def handle(ctx: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
    """End the transaction."""
    is_second = ctx.api_version >= SECOND_VERSION_SINCE
    try:
        answer = await ctx.services.coordinators.transactions.end(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            committed=request.committed,
            client_version=TransactionVersion.TV_2 if is_second else TransactionVersion.TV_0,
        )
    except KafkaError as error:
        return EndTxnResponse(error_code=error.code)
    if answer.error is ErrorCode.PRODUCER_FENCED and ctx.api_version < PRODUCER_FENCED_SINCE:
        return EndTxnResponse(error_code=ErrorCode.INVALID_PRODUCER_EPOCH)
    return EndTxnResponse(error_code=answer.error, producer_id=answer.producer_id, producer_epoch=answer.producer_epoch)
