"""ListPartitionReassignments (key 46), version 0.

What it does
  Answers the partitions that are being moved, with their replicas, those to add and those to remove. As in Kafka,
  topics and partitions that do not exist, or are not moved, are left out.

What it does not do
  Show how far a move has got: DescribeLogDirs has the sizes of the replicas.

Versions
  v0   the first, flexible (KIP-455)
"""

from __future__ import annotations

from functools import partial

from ottla.broker.handler_parts.admin_requests import error_fields
from ottla.broker.requests.authorization import on_cluster
from ottla.broker.requests.elements import Each, InParts, collect
from ottla.broker.requests.handler import ElementWiseAfter
from ottla.broker.requests.request import Request
from ottla.controller.reassignments import RunningReassignment
from ottla.core.acls import AclOperation
from ottla.core.errors import KafkaError
from ottla.core.ids import TopicPartition
from ottla.metadata_store.cluster_view import ClusterView
from ottla.wire.generated.list_partition_reassignments import (
    MESSAGES,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


async def find(request: Request, body: ListPartitionReassignmentsRequest) -> list[RunningReassignment] | KafkaError:
    """Find the reassignments that are running."""
    asked: list[TopicPartition] | None = None
    if body.topics is not None:
        asked = []
        await collect(
            request, Each[ListPartitionReassignmentsTopics, None](body.topics, partial(_asked_of_topic, asked))
        )
    try:
        return request.services.controller.list_reassignments(asked)
    except KafkaError as error:
        return error


def _asked_of_topic(
    asked: list[TopicPartition], _request: Request, topic: ListPartitionReassignmentsTopics, _view: ClusterView
) -> InParts[None]:
    return InParts(None, Each(topic.partition_indexes, partial(_asked, topic.name), into=asked))


def _asked(topic: str, _request: Request, index: int, _view: ClusterView) -> TopicPartition:
    return TopicPartition(topic, index)


def answer(
    _request: Request,
    _body: ListPartitionReassignmentsRequest,
    running: list[RunningReassignment] | KafkaError,
    _view: ClusterView,
) -> ListPartitionReassignmentsResponse | InParts[ListPartitionReassignmentsResponse]:
    """Return the reassignments by topic."""
    if isinstance(running, KafkaError):
        code, message = error_fields(running)
        return ListPartitionReassignmentsResponse(error_code=code, error_message=message)
    response = ListPartitionReassignmentsResponse(error_message=None)
    topics: dict[str, OngoingTopicReassignment] = {}
    return InParts(response, Each(running, partial(_add, topics), into=response.topics))


def _add(
    topics: dict[str, OngoingTopicReassignment],
    _request: Request,
    reassignment: RunningReassignment,
    _view: ClusterView,
) -> OngoingTopicReassignment | None:
    """Add a partition to its topic; return the topic with its first partition."""
    name, index = reassignment.partition
    partition = OngoingPartitionReassignment(
        partition_index=index,
        replicas=list(reassignment.replicas),
        adding_replicas=list(reassignment.adding),
        removing_replicas=list(reassignment.removing),
    )
    if name in topics:
        topics[name].partitions.append(partition)
        return None
    topics[name] = OngoingTopicReassignment(name=name, partitions=[partition])
    return topics[name]


def refuse(
    _request: Request, body: ListPartitionReassignmentsRequest, error: KafkaError
) -> InParts[ListPartitionReassignmentsResponse]:
    """Answer the request with an error, and with the partitions that it names."""
    response = ListPartitionReassignmentsResponse(error_code=error.code, error_message=error.message)
    return InParts(response, Each(body.topics or (), _refused_topic, into=response.topics))


def _refused_topic(
    _request: Request, topic: ListPartitionReassignmentsTopics, _view: ClusterView
) -> InParts[OngoingTopicReassignment]:
    result = OngoingTopicReassignment(name=topic.name)
    return InParts(result, Each(topic.partition_indexes, _refused_partition, into=result.partitions))


def _refused_partition(_request: Request, index: int, _view: ClusterView) -> OngoingPartitionReassignment:
    return OngoingPartitionReassignment(partition_index=index)


HANDLER = ElementWiseAfter(
    MESSAGES, first=find, answer=answer, access=(on_cluster(AclOperation.DESCRIBE),), refuse=refuse
)
