"""Answers the heartbeats of members of consumer groups and share groups: their responses have the same fields."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar
from uuid import UUID

from ottla.broker.requests.authorization import Access
from ottla.broker.requests.elements import Each, InParts, collect
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation, ResourceType
from ottla.core.errors import ErrorCode, error_for
from ottla.groups.modern.events import HeartbeatAnswer
from ottla.metadata_store.cluster_view import ClusterView


class _Assignment(Protocol):
    topic_partitions: list[Any]


class _Response(Protocol):
    error_code: int
    error_message: str | None
    member_id: str | None
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: Any


DESCRIBE = Access(
    AclOperation.DESCRIBE,
    ResourceType.TOPIC,
    "each topic that the member subscribes to",
    refusal="`TOPIC_AUTHORIZATION_FAILED` for the request; a pattern does not match it",
)

ResponseT = TypeVar("ResponseT", bound=_Response)
TopicT = TypeVar("TopicT")


async def check_subscription(request: Request, topics: list[str]) -> None:
    """Raise the error of a subscription to a topic that the client may not describe."""
    denied: Each[str, str] = Each(topics, _denied, key=str)
    if await collect(request, denied):
        raise DESCRIBE.error


def _denied(request: Request, topic: str, _view: ClusterView) -> str | None:
    return topic if DESCRIBE.denies(request, topic) else None


class DescribableTopics:
    """The topics that a client may describe. It outlives the request: a group resolves its patterns later."""

    __slots__ = ("authorizer", "client_host", "client_id", "header", "identity", "listener")

    def __init__(self, request: Request) -> None:
        self.authorizer, self.identity, self.client_host = request.authorizer, request.identity, request.client_host
        self.header, self.client_id, self.listener = request.header, request.client_id, request.listener

    def has(self, topic: str) -> bool:
        """Return whether the client may describe a topic."""
        return not DESCRIBE.denies(self, topic, log_if_denied=False)


def answer_heartbeat(
    response: ResponseT,
    answer: HeartbeatAnswer,
    assignment_type: Callable[[], _Assignment],
    topic_partitions: Callable[..., TopicT],
) -> ResponseT | InParts[ResponseT]:
    """Complete the response with the coordinator's answer, and with the assignment if there is one."""
    if answer.error is not ErrorCode.NONE:
        response.error_code = answer.error
        response.error_message = answer.message or error_for(answer.error).message
        return response
    response.member_id, response.member_epoch = answer.member_id, answer.member_epoch
    response.heartbeat_interval_ms = answer.heartbeat_interval_ms
    if answer.assignment is None:
        return response
    response.assignment = assignment = assignment_type()
    topics = sorted(answer.assignment.items())
    return InParts(response, Each(topics, partial(_topic, topic_partitions), into=assignment.topic_partitions))


def _topic(
    topic_partitions: Callable[..., TopicT], _request: Request, topic: tuple[UUID, frozenset[int]], _view: ClusterView
) -> TopicT:
    topic_id, indexes = topic
    return topic_partitions(topic_id=topic_id, partitions=sorted(indexes))
