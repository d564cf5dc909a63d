"""DeleteShareGroupOffsets (key 92), version 0.

What it does
  Deletes the states of a share group's partitions of some topics (KIP-932); the group must have no members. A later
  member begins where the group's setting determines.

What it does not do
  Nothing is left out.

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
from ottla.metadata_store.cluster_view import ClusterView
from ottla.wire.generated.delete_share_group_offsets import (
    MESSAGES,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)

UNKNOWN = UnknownTopicOrPartition("This server does not host this topic-partition.")


READ = Access(AclOperation.READ, ResourceType.TOPIC, "each topic")


class _Deleted(NamedTuple):
    """The topics that exist, those that are denied, and the errors of those whose states could not be deleted."""

    topic_ids: dict[str, UUID]
    denied: set[str]
    errors: Mapping[UUID, KafkaError | None]


async def delete(request: Request, body: DeleteShareGroupOffsetsRequest) -> _Deleted | KafkaError:
    """Delete each topic's states separately."""
    topic_ids: dict[str, UUID] = {}
    denied: set[str] = set()
    await collect(request, Each(body.topics, partial(_find, topic_ids, denied)))
    try:
        errors = await request.services.coordinators.share_groups.delete_offsets(body.group_id, [*topic_ids.values()])
    except KafkaError as error:
        return error
    return _Deleted(topic_ids, denied, errors)


def answer(
    _request: Request, body: DeleteShareGroupOffsetsRequest, deleted: _Deleted | KafkaError, _view: ClusterView
) -> InParts[DeleteShareGroupOffsetsResponse]:
    """Return the outcome of each topic."""
    if isinstance(deleted, KafkaError):
        return InParts(DeleteShareGroupOffsetsResponse(error_code=deleted.code, error_message=deleted.message))
    response = DeleteShareGroupOffsetsResponse()
    return InParts(response, Each(body.topics, partial(_topic, deleted), into=response.responses))


def _find(
    topic_ids: dict[str, UUID],
    denied: set[str],
    request: Request,
    asked: DeleteShareGroupOffsetsRequestTopic,
    view: ClusterView,
) -> None:
    if READ.denies(request, asked.topic_name):
        denied.add(asked.topic_name)
        return
    topic = view.topics.get(asked.topic_name)
    if topic is not None:
        topic_ids[topic.name] = topic.topic_id


def _topic(
    deleted: _Deleted, _request: Request, asked: DeleteShareGroupOffsetsRequestTopic, _view: ClusterView
) -> DeleteShareGroupOffsetsResponseTopic:
    topic_id = deleted.topic_ids.get(asked.topic_name)
    otherwise = READ.error if asked.topic_name in deleted.denied else UNKNOWN
    code, message = error_fields(otherwise if topic_id is None else deleted.errors.get(topic_id))
    return DeleteShareGroupOffsetsResponseTopic(
        topic_name=asked.topic_name,
        topic_id=NO_TOPIC_ID if topic_id is None else topic_id,
        error_code=code,
        error_message=message,
    )


HANDLER = ElementWiseAfter(MESSAGES, first=delete, answer=answer, access=(on_group(AclOperation.DELETE), READ))
