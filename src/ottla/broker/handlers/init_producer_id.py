"""InitProducerId (key 22), versions 0 to 5.

What it does
  Allocates a producer id that was never used, with epoch 0. As in Kafka, a producer without transactions that sends its
  current id gets a new one too.

What it does not do
  Version 6, two-phase commit (KIP-939), which Kafka 4.3 neither lists nor answers unless unstable APIs are switched on.
  Transactions: a transactional id is refused with TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which every client reports at
  once and does not try again. This response has no message: FindCoordinator, which clients send first, has one.

Versions
  v2   flexible encoding
  v3   the producer may show the id and epoch it has (KIP-360)
  v4   PRODUCER_FENCED; v5 transactions of KIP-890
"""

from __future__ import annotations

from ottla.broker.context import RequestContext
from ottla.broker.handler_helpers import log_transactional_id
from ottla.core.errors import ErrorCode, KafkaError, error_code_for
from ottla.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

NO_PRODUCER = -1


async def handle(ctx: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    """An id, or why there is none."""
    try:
        error = _refusal(ctx, request)
        if error is not ErrorCode.NONE:
            return InitProducerIdResponse(error_code=error, producer_epoch=NO_PRODUCER)
        return InitProducerIdResponse(producer_id=await ctx.services.producer_ids.allocate(), producer_epoch=0)
    except KafkaError as error:
        return InitProducerIdResponse(error_code=error_code_for(error), producer_epoch=NO_PRODUCER)


def _refusal(ctx: RequestContext, request: InitProducerIdRequest) -> ErrorCode:
    if (request.producer_id == NO_PRODUCER) != (request.producer_epoch == NO_PRODUCER):
        return ErrorCode.INVALID_REQUEST
    if request.transactional_id is None:
        return ErrorCode.NONE
    if not request.transactional_id:
        return ErrorCode.INVALID_REQUEST
    log_transactional_id(ctx, request.transactional_id)
    return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
