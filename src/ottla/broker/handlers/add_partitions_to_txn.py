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
from functools import partial

from ottla.broker.requests.authorization import Access
from ottla.broker.requests.elements import Each, InParts, collect, collect_awaited
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.acls import CLUSTER_NAME, AclOperation, ResourceType
from ottla.core.errors import ErrorCode, InvalidRequest
from ottla.core.ids import INTERNAL_TOPICS, TopicPartition
from ottla.metadata_store.cluster_view import ClusterView
from ottla.transactions.metadata import TransactionVersion
from ottla.wire.generated.add_partitions_to_txn import (
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

WRITE = Access(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, "the transactional id, up to version 3")
WRITE_TOPIC = Access(AclOperation.WRITE, ResourceType.TOPIC, "each topic, up to version 3")
CLUSTER_ACTION = Access(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, "the cluster, from version 4 on")

Outcomes = dict[TopicPartition, ErrorCode]


async def handle(request: Request, body: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
    """Handle each transaction separately."""
    if request.api_version >= MANY_SINCE:
        if CLUSTER_ACTION.denies(request, CLUSTER_NAME):
            return AddPartitionsToTxnResponse(error_code=CLUSTER_ACTION.error.code)
        results = await collect_awaited(request, body.transactions, _transaction)
        return AddPartitionsToTxnResponse(results_by_transaction=results)
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=body.v3_and_below_transactional_id,
        producer_id=body.v3_and_below_producer_id,
        producer_epoch=body.v3_and_below_producer_epoch,
        topics=body.v3_and_below_topics,
    )
    result = await _transaction(request, transaction, request.services.cluster.current)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=result.topic_results)


async def _transaction(
    request: Request, transaction: AddPartitionsToTxnTransaction, view: ClusterView
) -> AddPartitionsToTxnResult:
    partitions: list[TopicPartition] = []
    refused: Outcomes = {}
    is_denied = request.api_version < MANY_SINCE and WRITE.denies(request, transaction.transactional_id)
    one = partial(_check, partitions, refused, is_denied)
    checks: Each[AddPartitionsToTxnTopic, None] = Each(transaction.topics, one)
    await collect(request, checks, view)
    answered: Iterable[TopicPartition] = partitions
    if refused:  # one bad partition: none is added, and one that is named twice is answered once
        error = ErrorCode.OPERATION_NOT_ATTEMPTED
        answered = dict.fromkeys(partitions)
    else:
        error = await _add(request, transaction, frozenset(partitions))
    results = {topic.name: AddPartitionsToTxnTopicResult(name=topic.name) for topic in transaction.topics}
    await collect(request, Each(answered, partial(_partition, results, refused, error)), view)
    return AddPartitionsToTxnResult(transactional_id=transaction.transactional_id, topic_results=list(results.values()))


def _check(
    partitions: list[TopicPartition],
    refused: Outcomes,
    is_denied: bool,
    request: Request,
    topic: AddPartitionsToTxnTopic,
    _view: ClusterView,
) -> InParts[None]:
    error = None
    if is_denied:
        error = WRITE.error.code
    elif request.api_version < MANY_SINCE and (
        topic.name in INTERNAL_TOPICS or WRITE_TOPIC.denies(request, topic.name)
    ):
        error = WRITE_TOPIC.error.code
    return InParts(None, Each(topic.partitions, partial(_check_partition, partitions, refused, error, topic.name)))


def _check_partition(
    partitions: list[TopicPartition],
    refused: Outcomes,
    error: ErrorCode | None,
    topic: str,
    _request: Request,
    index: int,
    view: ClusterView,
) -> None:
    """Note a partition, and the error of one that cannot be added."""
    where = TopicPartition(topic, index)
    partitions.append(where)
    if error is not None:
        refused[where] = error
    elif view.partition(topic, index) is None:
        refused[where] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


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


def _partition(
    results: dict[str, AddPartitionsToTxnTopicResult],
    refused: Outcomes,
    otherwise: ErrorCode,
    _request: Request,
    where: TopicPartition,
    _view: ClusterView,
) -> None:
    """Add the outcome of a partition to its topic; of a topic that is named twice there is one result."""
    results[where.topic].results_by_partition.append(
        AddPartitionsToTxnPartitionResult(
            partition_index=where.partition, partition_error_code=refused.get(where, otherwise)
        )
    )


HANDLER = Awaited(MESSAGES, handle, access=(WRITE, WRITE_TOPIC, CLUSTER_ACTION), eager=True)
