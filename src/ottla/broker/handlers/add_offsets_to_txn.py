"""AddOffsetsToTxn (key 25), versions 0 to 4.

What it does
  Adds a group's partition of `__consumer_offsets` to a transaction, durably before it answers. The producer commits the
  group's offsets as part of the transaction next (TxnOffsetCommit).

What it does not do
  Nothing is left out.

Versions
  v2   PRODUCER_FENCED
  v3   flexible encoding
  v4   TRANSACTION_ABORTABLE (KIP-890)
"""

from __future__ import annotations

from ottla.broker.internal_topic_creation import create_if_absent
from ottla.broker.requests.authorization import on_group, on_transactional_id
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation
from ottla.core.errors import ErrorCode, KafkaError
from ottla.core.ids import OFFSETS_TOPIC, TopicPartition
from ottla.wire.generated.add_offsets_to_txn import MESSAGES, AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

PRODUCER_FENCED_SINCE = 2


async def handle(request: Request, body: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse:
    """Add the partition of the group."""
    services = request.services
    if not body.transactional_id:
        return AddOffsetsToTxnResponse(error_code=ErrorCode.INVALID_REQUEST)
    try:
        await create_if_absent(services, OFFSETS_TOPIC)
        partition = TopicPartition(OFFSETS_TOPIC, services.coordinators.groups.led.partition_for(body.group_id))
    except KafkaError as error:
        return AddOffsetsToTxnResponse(error_code=error.code)
    error_code = await services.coordinators.transactions.add_partitions(
        body.transactional_id, body.producer_id, body.producer_epoch, frozenset({partition})
    )
    if error_code is ErrorCode.PRODUCER_FENCED and request.api_version < PRODUCER_FENCED_SINCE:
        error_code = ErrorCode.INVALID_PRODUCER_EPOCH
    return AddOffsetsToTxnResponse(error_code=error_code)


HANDLER = Awaited(MESSAGES, handle, access=(on_transactional_id(AclOperation.WRITE), on_group(AclOperation.READ)))
