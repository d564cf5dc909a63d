"""DeleteTopics (key 20), versions 1 to 6.

What it does
  Deletes topics by name or by id, records and settings included, unless `delete.topic.enable` is false. The answer
  comes when the snapshot has no such topic and its directories are renamed; the files are removed a little later.

What it does not do
  Protect internal topics: as in Kafka only the client tools do.

Versions
  v3   TOPIC_DELETION_DISABLED instead of INVALID_REQUEST where deletion is not enabled
  v4   flexible encoding
  v5   error messages, THROTTLING_QUOTA_EXCEEDED (KIP-599); before, topics are deleted and the client waits
  v6   by topic id
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple
from uuid import UUID

from ottla.broker.handler_parts.admin_requests import error_fields, with_timeout
from ottla.broker.handler_parts.mutation_quotas import mutation_quota, within_quota
from ottla.broker.requests.authorization import Access
from ottla.broker.requests.elements import Each, InParts, collect, repeated
from ottla.broker.requests.handler import ElementWiseAfter
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation, ResourceType
from ottla.core.errors import InvalidRequest, KafkaError, TopicDeletionDisabled, UnknownTopicId, UnknownTopicOrPartition
from ottla.core.ids import NO_TOPIC_ID
from ottla.metadata_store.cluster_view import ClusterView
from ottla.wire.generated.delete_topics import (
    MESSAGES,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

FIRST_VERSION_DISABLED_CODE = 3
FIRST_WITH_STRICT_QUOTA = 5


DELETE = Access(AclOperation.DELETE, ResourceType.TOPIC, "each topic", or_cluster=AclOperation.DELETE)
DESCRIBE = Access(
    AclOperation.DESCRIBE,
    ResourceType.TOPIC,
    "each topic",
    or_cluster=AclOperation.DELETE,
    refusal="`TOPIC_AUTHORIZATION_FAILED`, without its name where it was named by its id",
)


class _Deleted(NamedTuple):
    """The topics that were not refused, with the ids to answer with, and the outcome of each."""

    refused: list[DeletableTopicResult]
    topics: dict[str, UUID]
    outcomes: Sequence[KafkaError | None]


async def delete(request: Request, body: DeleteTopicsRequest) -> _Deleted:
    """Check each topic separately, and delete the valid ones in one commit."""
    asked = body.topics or await collect(request, Each(body.topic_names, _state_of))
    resolved = await _resolved(request, asked)
    topics: dict[str, UUID] = {}
    refused = await collect(request, Each(resolved.items(), partial(_refused, topics)))
    names, outcomes = list(topics), dict[str, KafkaError | None]()
    if (quota := mutation_quota(request, strict_since=FIRST_WITH_STRICT_QUOTA)) is not None:
        present = request.services.cluster.current.topics
        partitions = [len(present[name].partitions) if name in present else 0 for name in names]
        refusals: dict[str, KafkaError] = {}
        names = within_quota(quota, names, partitions, refusals)
        outcomes |= refusals
    try:
        deleted = await with_timeout(body.timeout_ms, request.services.controller.delete_topics(names))
        outcomes |= zip(names, deleted, strict=True)
    except KafkaError as error:
        outcomes |= dict.fromkeys(names, error)
    return _Deleted(refused, topics, [outcomes[name] for name in topics])


def answer(
    _request: Request, _body: DeleteTopicsRequest, deleted: _Deleted, _view: ClusterView
) -> InParts[DeleteTopicsResponse]:
    """Return the outcome of each topic."""
    response = DeleteTopicsResponse(responses=deleted.refused)
    outcomes = zip(deleted.topics.items(), deleted.outcomes, strict=True)
    return InParts(response, Each(outcomes, _outcome, into=response.responses))


def _state_of(_request: Request, name: str, _view: ClusterView) -> DeleteTopicState:
    return DeleteTopicState(name=name)


_Resolved = dict[tuple[str | None, UUID], KafkaError | None]
"""Name and id of each topic, once, with the error of an ambiguous request."""


async def _resolved(request: Request, asked: list[DeleteTopicState]) -> _Resolved:
    names_twice: set[str] = set()
    ids_twice: set[UUID] = set()
    await collect(request, repeated((topic.name for topic in asked if topic.name is not None), names_twice))
    await collect(request, repeated((topic.topic_id for topic in asked if topic.topic_id != NO_TOPIC_ID), ids_twice))
    resolved: _Resolved = {}
    one = partial(_resolve, resolved, {topic.name for topic in asked}, names_twice, ids_twice)
    await collect(request, Each(asked, one, key=_identity))
    return resolved


def _identity(asked: DeleteTopicState) -> tuple[str | None, UUID]:
    return asked.name, asked.topic_id


def _resolve(
    resolved: _Resolved,
    names: set[str | None],
    names_twice: set[str],
    ids_twice: set[UUID],
    request: Request,
    asked: DeleteTopicState,
    view: ClusterView,
) -> None:
    name, topic_id = asked.name, asked.topic_id
    by_id = view.topic_by_id.get(topic_id.bytes)
    if name is None and topic_id == NO_TOPIC_ID:
        resolved[name, topic_id] = InvalidRequest("Neither topic name nor id were specified.")
    elif name is not None and topic_id != NO_TOPIC_ID:
        resolved[name, topic_id] = InvalidRequest("You may not specify both topic name and topic id.")
    elif name in names_twice:
        resolved[name, topic_id] = InvalidRequest("Duplicate topic name.")
    elif topic_id in ids_twice:
        resolved[name, topic_id] = InvalidRequest("Duplicate topic id.")
    elif name is not None and (refusal := _refusal(request, name, view)) is not None:
        resolved[name, topic_id] = refusal
    elif name is not None:
        topic = view.topics.get(name)
        # The answer to a name carries the topic's id, too, from version 6 on.
        resolved[name, topic.topic_id if topic else NO_TOPIC_ID] = None
    elif by_id is None:
        resolved[name, topic_id] = UnknownTopicId("This server does not host this topic ID.")
    elif DELETE.denies(request, by_id.name):
        shown = None if DESCRIBE.denies(request, by_id.name, log_if_denied=False) else by_id.name
        resolved[shown, topic_id] = DELETE.error
    elif by_id.name in names:
        resolved[by_id.name, topic_id] = InvalidRequest(
            "The provided topic name maps to an ID that was already supplied."
        )
    else:
        resolved[by_id.name, topic_id] = None


def _refusal(request: Request, topic: str, view: ClusterView) -> KafkaError | None:
    """Return the error of a topic that is named and may not be deleted; who may not describe it learns no more."""
    if DESCRIBE.denies(request, topic):
        return DESCRIBE.error
    if DELETE.denies(request, topic):
        return DELETE.error if topic in view.topics else UnknownTopicOrPartition()
    return None


def _refused(
    topics: dict[str, UUID],
    _request: Request,
    resolved: tuple[tuple[str | None, UUID], KafkaError | None],
    _view: ClusterView,
) -> DeletableTopicResult | None:
    """Return the answer to a topic that is refused; note another as one to delete."""
    (name, topic_id), error = resolved
    if error is not None or name is None:
        return _result(name, topic_id, error)
    topics[name] = topic_id
    return None


def _outcome(
    request: Request, deleted: tuple[tuple[str, UUID], KafkaError | None], _view: ClusterView
) -> DeletableTopicResult:
    (name, topic_id), error = deleted
    if isinstance(error, TopicDeletionDisabled) and request.api_version < FIRST_VERSION_DISABLED_CODE:
        error = InvalidRequest("Topic deletion is disabled.")
    return _result(name, topic_id, error)


def _result(name: str | None, topic_id: UUID, error: KafkaError | None) -> DeletableTopicResult:
    code, message = error_fields(error)
    return DeletableTopicResult(name=name, topic_id=topic_id, error_code=code, error_message=message)


HANDLER = ElementWiseAfter(MESSAGES, first=delete, answer=answer, access=(DELETE, DESCRIBE))
