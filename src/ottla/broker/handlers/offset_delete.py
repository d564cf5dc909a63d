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
from typing import NamedTuple

from ottla.broker.requests.authorization import Access, on_group
from ottla.broker.requests.elements import Each, InParts, collect
from ottla.broker.requests.handler import ElementWiseAfter
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation, ResourceType
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

READ = Access(AclOperation.READ, ResourceType.TOPIC, "each topic")


class _Deleted(NamedTuple):
    """The outcomes of the partitions that exist, and the topics that are denied."""

    outcomes: Mapping[TopicPartition, ErrorCode]
    denied: set[str]


async def delete(request: Request, body: OffsetDeleteRequest) -> _Deleted | KafkaError:
    """Delete offsets; all that may be deleted goes into one write."""
    partitions: list[TopicPartition] = []
    denied: set[str] = set()
    try:
        if not body.group_id:
            raise InvalidGroupId
        topics: Each[OffsetDeleteRequestTopic, None] = Each(body.topics, partial(_name_known, partitions, denied))
        await collect(request, topics)
        outcomes = await request.services.coordinators.groups.delete_offsets(body.group_id, partitions)
        return _Deleted(outcomes, denied)
    except KafkaError as error:
        return error


def answer(
    _request: Request, body: OffsetDeleteRequest, deleted: _Deleted | KafkaError, _view: ClusterView
) -> InParts[OffsetDeleteResponse]:
    """Return the outcome of each partition."""
    if isinstance(deleted, KafkaError):
        return InParts(OffsetDeleteResponse(error_code=deleted.code))
    response = OffsetDeleteResponse()
    return InParts(response, Each(body.topics, partial(_topic, deleted), into=response.topics))


def _name_known(
    partitions: list[TopicPartition],
    denied: set[str],
    request: Request,
    topic: OffsetDeleteRequestTopic,
    _view: ClusterView,
) -> InParts[None] | None:
    if READ.denies(request, topic.name):
        denied.add(topic.name)
        return None
    return InParts(None, Each(topic.partitions, partial(_known_partition, topic.name), into=partitions))


def _known_partition(
    topic: str, _request: Request, asked: OffsetDeleteRequestPartition, view: ClusterView
) -> TopicPartition | None:
    is_known = view.partition(topic, asked.partition_index) is not None
    return TopicPartition(topic, asked.partition_index) if is_known else None


def _topic(
    deleted: _Deleted, _request: Request, topic: OffsetDeleteRequestTopic, _view: ClusterView
) -> InParts[OffsetDeleteResponseTopic]:
    result = OffsetDeleteResponseTopic(name=topic.name)
    return InParts(result, Each(topic.partitions, partial(_partition, topic.name, deleted), into=result.partitions))


def _partition(
    topic: str, deleted: _Deleted, _request: Request, asked: OffsetDeleteRequestPartition, _view: ClusterView
) -> OffsetDeleteResponsePartition:
    otherwise = READ.error.code if topic in deleted.denied else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    error = deleted.outcomes.get(TopicPartition(topic, asked.partition_index), otherwise)
    return OffsetDeleteResponsePartition(partition_index=asked.partition_index, error_code=error)


HANDLER = ElementWiseAfter(MESSAGES, first=delete, answer=answer, access=(on_group(AclOperation.DELETE), READ))
