"""Describes what groups of several types have in common: the loop over groups, the topics of a member's partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from ottla.broker.coordinators import naming_work
from ottla.broker.handler_parts.authorized_operations import ALL_GROUP_OPERATIONS, OPERATIONS_OMITTED
from ottla.broker.requests.elements import Each, InParts
from ottla.broker.requests.request import Request
from ottla.metadata_store.cluster_view import ClusterView

GroupT = TypeVar("GroupT")
TopicT = TypeVar("TopicT")

WORK = 3
"""Units of work of one group, transactional id or member."""


def named_work(name: str) -> int:
    """Return the units of work of one group or transactional id."""
    return WORK + naming_work(name)


def describe_groups(
    group_ids: list[str],
    one: Callable[[int, Request, str, ClusterView], InParts[GroupT]],
    *,
    into: list[GroupT],
    with_operations: bool,
) -> Each[str, GroupT]:
    """Describe each group separately, once; `one` gets the authorized operations first."""
    operations = ALL_GROUP_OPERATIONS if with_operations else OPERATIONS_OMITTED
    return Each(group_ids, partial(one, operations), into=into, key=str, work=named_work)


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
