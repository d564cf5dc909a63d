"""InitProducerId (key 22), versions 0 to 5.

What it does
  Without a transactional id: allocates a producer id that was never used, with epoch 0. As in Kafka, a producer without
  transactions that sends its current id gets a new one too.
  With a transactional id: gives the id's producer the next epoch, which fences the producers before it, and aborts a
  transaction that one of them left open; the client retries after CONCURRENT_TRANSACTIONS.

What it does not do
  Version 6, two-phase commit (KIP-939), which Kafka 4.4 neither lists nor answers unless unstable APIs are switched on.

Versions
  v2   flexible encoding
  v3   the producer may show the id and epoch it has (KIP-360)
  v4   PRODUCER_FENCED; v5 TRANSACTION_ABORTABLE (KIP-890)
"""

from __future__ import annotations

from ottla.broker.context import RequestContext
from ottla.core.errors import ErrorCode, InvalidRequest, KafkaError, error_code_for
from ottla.core.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerIdAndEpoch
from ottla.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

PRODUCER_FENCED_SINCE = 4


async def handle(ctx: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    """Initialize a producer: return an id and its epoch, or why there is none."""
    try:
        return await _init(ctx, request)
    except KafkaError as error:
        return _refused(ctx, error_code_for(error))


async def _init(ctx: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    expected = None
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        raise InvalidRequest
    if request.producer_id != NO_PRODUCER_ID:
        expected = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    if request.transactional_id is None:
        return InitProducerIdResponse(producer_id=await ctx.services.producer_ids.allocate(), producer_epoch=0)
    answer = await ctx.services.coordinators.transactions.init_producer_id(
        request.transactional_id, request.transaction_timeout_ms, expected
    )
    if answer.error is not ErrorCode.NONE:
        return _refused(ctx, answer.error)
    return InitProducerIdResponse(producer_id=answer.producer_id, producer_epoch=answer.producer_epoch)


def _refused(ctx: RequestContext, error: ErrorCode) -> InitProducerIdResponse:
    if error is ErrorCode.PRODUCER_FENCED and ctx.api_version < PRODUCER_FENCED_SINCE:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return InitProducerIdResponse(error_code=error, producer_epoch=NO_PRODUCER_EPOCH)
