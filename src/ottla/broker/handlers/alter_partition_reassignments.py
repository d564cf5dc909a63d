"""AlterPartitionReassignments (key 45), versions 0 to 1.

What it does
  Starts the move of partitions to other brokers, replaces a running move, or cancels it (no replicas). Each partition
  has its own outcome. The answer comes when the move has begun; ListPartitionReassignments shows its end.

What it does not do
  Move replicas between the log directories of one broker: AlterReplicaLogDirs does that.

Versions
  v0   the first, flexible (KIP-455)
  v1   whether the number of replicas may change (KIP-860)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial

from ottla.broker.handler_parts.admin_requests import error_fields, with_timeout
from ottla.broker.requests.authorization import on_cluster
from ottla.broker.requests.elements import Each, InParts, collect
from ottla.broker.requests.handler import ElementWiseAfter
from ottla.broker.requests.request import Request
from ottla.controller.reassignments import RequestedReassignment
from ottla.core.acls import AclOperation
from ottla.core.errors import KafkaError, NoReassignmentInProgress
from ottla.core.ids import TopicPartition
from ottla.metadata_store.cluster_view import ClusterView
from ottla.wire.generated.alter_partition_reassignments import (
    MESSAGES,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopic,
    ReassignableTopicResponse,
)


async def reassign(
    request: Request, body: AlterPartitionReassignmentsRequest
) -> Sequence[KafkaError | None] | KafkaError:
    """Begin or cancel reassignments; return the outcome of each partition."""
    if not body.topics:
        return ()
    reassignments: list[RequestedReassignment] = []
    await collect(request, Each[ReassignableTopic, None](body.topics, partial(_reassignments, reassignments)))
    work = request.services.controller.reassign(reassignments, allow_factor_change=_allows_factor_change(request, body))
    try:
        return await with_timeout(body.timeout_ms, work)
    except KafkaError as error:
        return error


def _allows_factor_change(request: Request, body: AlterPartitionReassignmentsRequest) -> bool:
    return request.api_version < 1 or body.allow_replication_factor_change


def _reassignments(
    reassignments: list[RequestedReassignment], _request: Request, topic: ReassignableTopic, _view: ClusterView
) -> InParts[None]:
    return InParts(None, Each(topic.partitions, partial(_reassignment, topic.name), into=reassignments))


def _reassignment(
    topic: str, _request: Request, partition: ReassignablePartition, _view: ClusterView
) -> RequestedReassignment:
    return RequestedReassignment(TopicPartition(topic, partition.partition_index), partition.replicas)


def answer(
    request: Request,
    body: AlterPartitionReassignmentsRequest,
    outcomes: Sequence[KafkaError | None] | KafkaError,
    _view: ClusterView,
) -> AlterPartitionReassignmentsResponse | InParts[AlterPartitionReassignmentsResponse]:
    """Return the outcome of each partition, in the order of the request."""
    if not body.topics:
        return AlterPartitionReassignmentsResponse()
    if isinstance(outcomes, KafkaError):
        code, message = error_fields(outcomes)
        return AlterPartitionReassignmentsResponse(error_code=code, error_message=message)
    response = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=_allows_factor_change(request, body), error_message=None
    )
    return InParts(response, Each(body.topics, partial(_topic, iter(outcomes)), into=response.responses))


def refuse(
    _request: Request, body: AlterPartitionReassignmentsRequest, error: KafkaError
) -> InParts[AlterPartitionReassignmentsResponse]:
    """Answer the request and each partition with an error."""
    response = AlterPartitionReassignmentsResponse(error_code=error.code, error_message=error.message)
    return InParts(response, Each(body.topics, partial(_topic, itertools.repeat(error)), into=response.responses))


def _topic(
    outcomes: Iterator[KafkaError | None], _request: Request, topic: ReassignableTopic, _view: ClusterView
) -> InParts[ReassignableTopicResponse]:
    result = ReassignableTopicResponse(name=topic.name)
    return InParts(result, Each(topic.partitions, partial(_result, outcomes), into=result.partitions))


def _result(
    outcomes: Iterator[KafkaError | None], _request: Request, partition: ReassignablePartition, _view: ClusterView
) -> ReassignablePartitionResponse:
    error = next(outcomes)
    code, message = error_fields(error)
    if isinstance(error, NoReassignmentInProgress):
        message = None  # as in Kafka
    return ReassignablePartitionResponse(
        partition_index=partition.partition_index, error_code=code, error_message=message
    )


HANDLER = ElementWiseAfter(
    MESSAGES, first=reassign, answer=answer, access=(on_cluster(AclOperation.ALTER),), refuse=refuse
)
