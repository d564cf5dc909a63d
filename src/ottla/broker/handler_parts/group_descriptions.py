"""Describes what groups of several types have in common: the loop over groups, the topics of a member's partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from ottla.broker.coordinators import naming_work
from ottla.broker.handler_parts.authorized_operations import OPERATIONS_OMITTED, authorized_operations
from ottla.broker.requests.authorization import Access
from ottla.broker.requests.elements import Each, InParts
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation, ResourceType
from ottla.core.errors import ErrorCode, error_for
from ottla.metadata_store.cluster_view import ClusterView

GroupT = TypeVar("GroupT")
TopicT = TypeVar("TopicT")

WORK = 3
"""Units of work of one group, transactional id or member."""


DESCRIBE = Access(AclOperation.DESCRIBE, ResourceType.GROUP, "each group")
DESCRIBE_TOPIC = Access(
    AclOperation.DESCRIBE,
    ResourceType.TOPIC,
    "each topic that is assigned to a member",
    refusal="the group has `TOPIC_AUTHORIZATION_FAILED` and no members",
)


DENIED_TOPIC = error_for(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "A member has a topic that the client may not describe.")


def named_work(name: str) -> int:
    """Return the units of work of one group or transactional id."""
    return WORK + naming_work(name)


def describe_groups(
    group_ids: list[str],
    one: Callable[[Request, str, ClusterView], InParts[GroupT]],
    *,
    into: list[GroupT],
    refused: Callable[..., GroupT],
) -> Each[str, GroupT]:
    """Describe each group separately, once; `refused` makes the result of one that the client may not describe."""
    return Each(group_ids, partial(_group, one, refused), into=into, key=str, work=named_work)


def _group(
    one: Callable[[Request, str, ClusterView], InParts[GroupT]],
    refused: Callable[..., GroupT],
    request: Request,
    group_id: str,
    view: ClusterView,
) -> InParts[GroupT]:
    if DESCRIBE.denies(request, group_id):
        return InParts(refused(group_id=group_id, error_code=DESCRIBE.error.code))
    return one(request, group_id, view)


def group_operations(request: Request, group_id: str, *, wanted: bool) -> int:
    """Return what the client may do with a group, if it wants to know."""
    return authorized_operations(request, ResourceType.GROUP, group_id) if wanted else OPERATIONS_OMITTED


def describes_denied_topic(request: Request, topic_ids: Iterable[UUID], view: ClusterView) -> bool:
    """Return whether one of the topics is one that the client may not describe."""
    if request.authorizer is None:
        return False
    topics = (view.topic_by_id.get(topic_id.bytes) for topic_id in topic_ids)
    return any(topic is not None and DESCRIBE_TOPIC.denies(request, topic.name) for topic in topics)


def describe_topics(
    partitions: Mapping[UUID, Iterable[int]], result: Callable[..., TopicT], *, into: list[TopicT]
) -> Each[Any, TopicT]:
    """Name the topics of a member's partitions; deleted ones are left out."""
    return Each(sorted(partitions.items()), partial(_topic, result), into=into)


def _topic(
    result: Callable[..., TopicT], _request: Request, assigned: tuple[UUID, Iterable[int]], view: ClusterView
) -> TopicT | None:
    topic_id, indexes = assigned
    topic = view.topic_by_id.get(topic_id.bytes)
    return None if topic is None else result(topic_id=topic_id, topic_name=topic.name, partitions=sorted(indexes))
