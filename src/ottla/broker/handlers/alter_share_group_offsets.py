"""AlterShareGroupOffsets (key 91), version 0.

What it does
  Sets the start offsets of a share group without members (KIP-932): everything from there on is delivered, again if
  it was before. A group that was never used is created, unless none of its partitions exist.

What it does not do
  Offsets outside of the log are accepted, as in Kafka: the share partition begins at the log's start or end.

Versions
  v0   the first, flexible (KIP-932)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple
from uuid import UUID

from ottla.broker.handler_parts.admin_requests import error_fields
from ottla.broker.requests.authorization import Access, on_group
from ottla.broker.requests.elements import Each, InParts, collect
from ottla.broker.requests.handler import ElementWiseAfter
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation, ResourceType
from ottla.core.errors import KafkaError, UnknownTopicOrPartition
from ottla.core.ids import NO_TOPIC_ID
from ottla.groups.share_group_coordinator import TopicPartitionId
from ottla.metadata_store.cluster_view import ClusterView, TopicView
from ottla.wire.generated.alter_share_group_offsets import (
    MESSAGES,
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)

WORK = 3
"""Units of work of one partition."""

UNKNOWN = UnknownTopicOrPartition("This server does not host this topic-partition.")


READ = Access(AclOperation.READ, ResourceType.TOPIC, "each topic")


class _Altered(NamedTuple):
    """The outcomes of the partitions that exist, by the ids that their topics had, and the topics that are denied."""

    outcomes: Mapping[TopicPartitionId, KafkaError | None]
    topic_ids: dict[str, UUID]
    denied: set[str]


async def alter(request: Request, body: AlterShareGroupOffsetsRequest) -> _Altered | KafkaError:
    """Alter the share partitions that exist."""
    offsets: dict[TopicPartitionId, int] = {}
    topic_ids: dict[str, UUID] = {}
    denied: set[str] = set()
    topics: Each[AlterShareGroupOffsetsRequestTopic, None] = Each(
        body.topics, partial(_find, topic_ids, offsets, denied)
    )
    await collect(request, topics)
    try:
        outcomes = await request.services.coordinators.share_groups.alter_offsets(body.group_id, offsets)
    except KafkaError as error:
        return error
    return _Altered(outcomes, topic_ids, denied)


def answer(
    _request: Request, body: AlterShareGroupOffsetsRequest, altered: _Altered | KafkaError, _view: ClusterView
) -> InParts[AlterShareGroupOffsetsResponse]:
    """Return the outcome of each partition."""
    if isinstance(altered, KafkaError):
        return InParts(AlterShareGroupOffsetsResponse(error_code=altered.code, error_message=altered.message))
    response = AlterShareGroupOffsetsResponse()
    return InParts(response, Each(body.topics, partial(_topic, altered), into=response.responses))


def _find(
    topic_ids: dict[str, UUID],
    offsets: dict[TopicPartitionId, int],
    denied: set[str],
    request: Request,
    asked: AlterShareGroupOffsetsRequestTopic,
    view: ClusterView,
) -> InParts[None] | None:
    if READ.denies(request, asked.topic_name):
        denied.add(asked.topic_name)
        return None
    topic = view.topics.get(asked.topic_name)
    if topic is None:
        return None
    topic_ids[topic.name] = topic.topic_id
    return InParts(None, Each(asked.partitions, partial(_find_partition, topic, offsets), work=WORK))


def _find_partition(
    topic: TopicView,
    offsets: dict[TopicPartitionId, int],
    _request: Request,
    asked: AlterShareGroupOffsetsRequestPartition,
    _view: ClusterView,
) -> None:
    if 0 <= asked.partition_index < len(topic.partitions):
        offsets[topic.topic_id, asked.partition_index] = asked.start_offset


def _topic(
    altered: _Altered, _request: Request, asked: AlterShareGroupOffsetsRequestTopic, _view: ClusterView
) -> InParts[AlterShareGroupOffsetsResponseTopic]:
    topic_id = altered.topic_ids.get(asked.topic_name, NO_TOPIC_ID)
    result = AlterShareGroupOffsetsResponseTopic(topic_name=asked.topic_name, topic_id=topic_id)
    one = partial(_partition, altered, topic_id, READ.error if asked.topic_name in altered.denied else UNKNOWN)
    return InParts(result, Each(asked.partitions, one, into=result.partitions, work=WORK))


def _partition(
    altered: _Altered,
    topic_id: UUID,
    otherwise: KafkaError,
    _request: Request,
    asked: AlterShareGroupOffsetsRequestPartition,
    _view: ClusterView,
) -> AlterShareGroupOffsetsResponsePartition:
    error = altered.outcomes.get((topic_id, asked.partition_index), otherwise)
    code, message = error_fields(error)
    return AlterShareGroupOffsetsResponsePartition(
        partition_index=asked.partition_index, error_code=code, error_message=message
    )


HANDLER = ElementWiseAfter(MESSAGES, first=alter, answer=answer, access=(on_group(AclOperation.READ), READ))
