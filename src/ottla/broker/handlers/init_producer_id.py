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

from ottla.broker.requests.authorization import Access
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation, ResourceType
from ottla.core.errors import ErrorCode, InvalidRequest, KafkaError, error_code_for, error_for
from ottla.core.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerIdAndEpoch
from ottla.wire.generated.init_producer_id import MESSAGES, InitProducerIdRequest, InitProducerIdResponse

PRODUCER_FENCED_SINCE = 4
WRITE = Access(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, "the transactional id, where there is one")
WRITE_ANY_TOPIC = Access(
    AclOperation.WRITE,
    ResourceType.TOPIC,
    "any topic, without a transactional id",
    or_cluster=AclOperation.IDEMPOTENT_WRITE,
    refusal="`CLUSTER_AUTHORIZATION_FAILED`",
)


async def handle(request: Request, body: InitProducerIdRequest) -> InitProducerIdResponse:
    """Initialize a producer: return an id and its epoch, or why there is none."""
    try:
        return await _init(request, body)
    except KafkaError as error:
        return _refused(request, error_code_for(error))


async def _init(request: Request, body: InitProducerIdRequest) -> InitProducerIdResponse:
    if body.transactional_id is not None and WRITE.denies(request, body.transactional_id):
        raise WRITE.error
    if body.transactional_id is None and WRITE_ANY_TOPIC.denies_any(request):
        raise error_for(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    expected = None
    if (body.producer_id == NO_PRODUCER_ID) != (body.producer_epoch == NO_PRODUCER_EPOCH):
        raise InvalidRequest
    if body.producer_id != NO_PRODUCER_ID:
        expected = ProducerIdAndEpoch(body.producer_id, body.producer_epoch)
    if body.transactional_id is None:
        return InitProducerIdResponse(producer_id=await request.services.producer_ids.allocate(), producer_epoch=0)
    answer = await request.services.coordinators.transactions.init_producer_id(
        body.transactional_id, body.transaction_timeout_ms, expected
    )
    if answer.error is not ErrorCode.NONE:
        return _refused(request, answer.error)
    return InitProducerIdResponse(producer_id=answer.producer_id, producer_epoch=answer.producer_epoch)


def _refused(request: Request, error: ErrorCode) -> InitProducerIdResponse:
    if error is ErrorCode.PRODUCER_FENCED and request.api_version < PRODUCER_FENCED_SINCE:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return InitProducerIdResponse(error_code=error, producer_epoch=NO_PRODUCER_EPOCH)


HANDLER = Awaited(MESSAGES, handle, access=(WRITE, WRITE_ANY_TOPIC))
