"""DescribeTransactions (key 65), version 0.

What it does
  Describes transactional ids: state, producer, timeout, start, and the partitions of the open transaction.

What it does not do
  Nothing is left out.

Versions
  v0   flexible encoding
"""

from __future__ import annotations

from functools import partial

from ottla.broker.handler_parts.group_descriptions import named_work
from ottla.broker.requests.authorization import Access
from ottla.broker.requests.elements import Each, InParts
from ottla.broker.requests.handler import ElementWise
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation, ResourceType
from ottla.core.errors import KafkaError
from ottla.core.ids import TopicPartition
from ottla.metadata_store.cluster_view import ClusterView
from ottla.wire.generated.describe_transactions import (
    MESSAGES,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)

DESCRIBE = Access(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "each transactional id")
DESCRIBE_TOPIC = Access(
    AclOperation.DESCRIBE, ResourceType.TOPIC, "each topic of the open transaction", refusal="left out"
)


def answer(
    _request: Request, body: DescribeTransactionsRequest, _view: ClusterView
) -> InParts[DescribeTransactionsResponse]:
    """Describe each transactional id separately, as often as it is named."""
    response = DescribeTransactionsResponse()
    return InParts(
        response, Each(body.transactional_ids, _transaction, into=response.transaction_states, work=named_work)
    )


def _transaction(request: Request, transactional_id: str, _view: ClusterView) -> InParts[TransactionState]:
    try:
        if DESCRIBE.denies(request, transactional_id):
            raise DESCRIBE.error
        metadata = request.services.coordinators.transactions.describe(transactional_id)
    except KafkaError as error:
        return InParts(TransactionState(transactional_id=transactional_id, error_code=error.code))
    described = TransactionState(
        transactional_id=transactional_id,
        transaction_state=metadata.state.kafka_name,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_start_time_ms=metadata.started_wall_ms,
        producer_id=metadata.producer_id,
        producer_epoch=metadata.producer_epoch,
    )
    return InParts(described, Each(sorted(metadata.partitions), partial(_partition, described.topics)))


def _partition(topics: list[TopicData], request: Request, where: TopicPartition, _view: ClusterView) -> None:
    if DESCRIBE_TOPIC.denies(request, where.topic, log_if_denied=False):
        return
    if not topics or topics[-1].topic != where.topic:
        topics.append(TopicData(topic=where.topic))
    topics[-1].partitions.append(where.partition)


HANDLER = ElementWise(MESSAGES, answer, access=(DESCRIBE, DESCRIBE_TOPIC))
