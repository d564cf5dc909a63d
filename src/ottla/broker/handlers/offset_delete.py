"""OffsetDelete (key 47), version 0.

What it does
  Deletes a group's committed offsets in given partitions. While the group has members only those of topics that none
  of them subscribes to (KIP-496).

What it does not do
  Nothing is left out.

Versions
  v0   the only one
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ottla.broker.requests.elements import Each, InParts, collect
from ottla.broker.requests.handler import ElementWiseAfter
from ottla.broker.requests.request import Request
from ottla.core.errors import ErrorCode, InvalidGroupId, KafkaError
from ottla.core.ids import TopicPartition
from ottla.metadata_store.cluster_view import ClusterView
from ottla.wire.generated.offset_delete import (
    MESSAGES,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

_Outcomes = Mapping[TopicPartition, ErrorCode]


async def delete(request: Request, body: OffsetDeleteRequest) -> _Outcomes | KafkaError:
    """Delete offsets; all that may be deleted goes into one write."""
    partitions: list[TopicPartition] = []
    try:
        if not body.group_id:
            raise InvalidGroupId
        topics: Each[OffsetDeleteRequestTopic, None] = Each(body.topics, partial(_name_known, partitions))
        await collect(request, topics)
        return await request.services.coordinators.groups.delete_offsets(body.group_id, partitions)
    except KafkaError as error:
        return error


def answer(
    _request: Request, body: OffsetDeleteRequest, outcomes: _Outcomes | KafkaError, _view: ClusterView
) -> InParts[OffsetDeleteResponse]:
    """Return the outcome of each partition."""
    if isinstance(outcomes, KafkaError):
        return InParts(OffsetDeleteResponse(error_code=outcomes.code))
    response = OffsetDeleteResponse()
    return InParts(response, Each(body.topics, partial(_topic, outcomes), into=response.topics))


def _name_known(
    partitions: list[TopicPartition], _request: Request, topic: OffsetDeleteRequestTopic, _view: ClusterView
) -> InParts[None]:
    return InParts(None, Each(topic.partitions, partial(_known_partition, topic.name), into=partitions))


def _known_partition(
    topic: str, _request: Request, asked: OffsetDeleteRequestPartition, view: ClusterView
) -> TopicPartition | None:
    is_known = view.partition(topic, asked.partition_index) is not None
    return TopicPartition(topic, asked.partition_index) if is_known else None


def _topic(
    outcomes: _Outcomes, _request: Request, topic: OffsetDeleteRequestTopic, _view: ClusterView
) -> InParts[OffsetDeleteResponseTopic]:
    result = OffsetDeleteResponseTopic(name=topic.name)
    return InParts(result, Each(topic.partitions, partial(_partition, topic.name, outcomes), into=result.partitions))


def _partition(
    topic: str, outcomes: _Outcomes, _request: Request, asked: OffsetDeleteRequestPartition, _view: ClusterView
) -> OffsetDeleteResponsePartition:
    error = outcomes.get(TopicPartition(topic, asked.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return OffsetDeleteResponsePartition(partition_index=asked.partition_index, error_code=error)


HANDLER = ElementWiseAfter(MESSAGES, first=delete, answer=answer)
