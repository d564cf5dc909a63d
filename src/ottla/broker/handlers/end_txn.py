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

from ottla.broker.requests.authorization import on_transactional_id
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation
from ottla.core.errors import ErrorCode, KafkaError
from ottla.transactions.metadata import TransactionVersion
from ottla.wire.generated.end_txn import MESSAGES, EndTxnRequest, EndTxnResponse

PRODUCER_FENCED_SINCE, SECOND_VERSION_SINCE = 2, 5


async def handle(request: Request, body: EndTxnRequest) -> EndTxnResponse:
    """End the transaction."""
    is_second = request.api_version >= SECOND_VERSION_SINCE
    try:
        answer = await request.services.coordinators.transactions.end(
            body.transactional_id,
            body.producer_id,
            body.producer_epoch,
            committed=body.committed,
            client_version=TransactionVersion.TV_2 if is_second else TransactionVersion.TV_0,
        )
    except KafkaError as error:
        return EndTxnResponse(error_code=error.code)
    if answer.error is ErrorCode.PRODUCER_FENCED and request.api_version < PRODUCER_FENCED_SINCE:
        return EndTxnResponse(error_code=ErrorCode.INVALID_PRODUCER_EPOCH)
    return EndTxnResponse(error_code=answer.error, producer_id=answer.producer_id, producer_epoch=answer.producer_epoch)


HANDLER = Awaited(MESSAGES, handle, eager=True, access=(on_transactional_id(AclOperation.WRITE),))
