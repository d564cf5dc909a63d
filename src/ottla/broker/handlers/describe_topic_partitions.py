"""DescribeTopicPartitions (key 75), version 0.

What it does
  Describes topics partition by partition, in the order of their names, a page at a time: at most
  `response_partition_limit` partitions and never more than 2,000, then a cursor with which to ask for the rest.

  The eligible leader replicas (KIP-966) are those of the partition's state.

What it does not do
  Nothing is left out.

Versions
  v0   flexible encoding
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from itertools import takewhile

from ottla.broker.handler_parts.admin_requests import check_topic_name
from ottla.broker.handler_parts.authorized_operations import authorized_operations
from ottla.broker.handler_parts.partition_states import reachable_leader, replica_states
from ottla.broker.requests.authorization import Access
from ottla.broker.requests.elements import Each, InParts
from ottla.broker.requests.handler import ElementWise
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation, ResourceType
from ottla.core.errors import ErrorCode, InvalidTopic
from ottla.core.ids import INTERNAL_TOPICS
from ottla.metadata_store.cluster_view import ClusterView, PartitionView, TopicView
from ottla.wire.generated.describe_topic_partitions import (
    MESSAGES,
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    TopicRequest,
)

PARTITIONS_PER_ANSWER_MAX = 2000
"""`max.request.partition.size.limit` of Kafka, at its default."""

WORK = 3
"""The share of a slice of work of one topic, and of one partition."""


DESCRIBE = Access(
    AclOperation.DESCRIBE,
    ResourceType.TOPIC,
    "each topic",
    refusal="`TOPIC_AUTHORIZATION_FAILED`; left out where none are named",
)


class _Page:
    """The partitions that one response holds, of all that are requested."""

    def __init__(self, body: DescribeTopicPartitionsRequest, response: DescribeTopicPartitionsResponse) -> None:
        self.response = response
        self.names_topics = bool(body.topics)
        self._begin = body.cursor
        self._left = max(1, min(body.response_partition_limit, PARTITIONS_PER_ANSWER_MAX))

    def is_open(self, _name: str) -> bool:
        """Return whether another topic may be added."""
        return self.response.next_cursor is None

    def partitions_of(self, topic: TopicView) -> Sequence[PartitionView] | None:
        """Return those partitions of a topic that are on the page; None if the page is full."""
        begin, left = self._begin, self._left
        first = begin.partition_index if begin is not None and topic.name == begin.topic_name else 0
        partitions = topic.partitions[first : first + left]
        end = first + len(partitions)
        if left == 0 or end < len(topic.partitions):
            self.response.next_cursor = Cursor(topic_name=topic.name, partition_index=end)
        self._left -= len(partitions)
        return partitions if left else None


def answer(
    _request: Request, body: DescribeTopicPartitionsRequest, view: ClusterView
) -> InParts[DescribeTopicPartitionsResponse]:
    """Return one page of topics."""
    response = DescribeTopicPartitionsResponse()
    if not body.topics:
        return _page(body, view.topics, response)
    names: list[str] = []
    return InParts(
        response, Each(body.topics, _requested, into=names), Each([response], partial(_requested_page, body, names))
    )


def _requested(_request: Request, topic: TopicRequest, _view: ClusterView) -> str:
    return topic.name


def _requested_page(
    body: DescribeTopicPartitionsRequest,
    names: list[str],
    _request: Request,
    response: DescribeTopicPartitionsResponse,
    _view: ClusterView,
) -> InParts[DescribeTopicPartitionsResponse]:
    if body.cursor is not None and body.cursor.topic_name not in names:
        return _refused(body, response)
    return _page(body, set(names), response)


def _page(
    body: DescribeTopicPartitionsRequest, names: Collection[str], response: DescribeTopicPartitionsResponse
) -> InParts[DescribeTopicPartitionsResponse]:
    cursor = body.cursor
    if cursor is not None:
        if cursor.partition_index < 0:
            return _refused(body, response)
        names = [name for name in names if name >= cursor.topic_name]
    page = _Page(body, response)
    return InParts(
        response, Each(takewhile(page.is_open, sorted(names)), partial(_topic, page), into=response.topics, work=WORK)
    )


def _refused(
    body: DescribeTopicPartitionsRequest, response: DescribeTopicPartitionsResponse
) -> InParts[DescribeTopicPartitionsResponse]:
    return InParts(response, Each(body.topics, _refused_topic, into=response.topics))


def _refused_topic(_request: Request, topic: TopicRequest, _view: ClusterView) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name=topic.name)


def _topic(
    page: _Page, request: Request, name: str, view: ClusterView
) -> InParts[DescribeTopicPartitionsResponseTopic] | None:
    if DESCRIBE.denies(request, name, log_if_denied=page.names_topics):
        if not page.names_topics:
            return None
        return InParts(DescribeTopicPartitionsResponseTopic(error_code=DESCRIBE.error.code, name=name))
    topic = view.topics.get(name)
    if topic is None:
        return InParts(_unknown(request, name))
    partitions = page.partitions_of(topic)
    if partitions is None:
        return None
    result = DescribeTopicPartitionsResponseTopic(
        name=name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        topic_authorized_operations=authorized_operations(request, ResourceType.TOPIC, name),
    )
    return InParts(result, Each(partitions, partial(_partition, name), into=result.partitions, work=WORK))


def _unknown(request: Request, name: str) -> DescribeTopicPartitionsResponseTopic:
    try:
        check_topic_name(name)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    except InvalidTopic:
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    return DescribeTopicPartitionsResponseTopic(
        error_code=code,
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=authorized_operations(request, ResourceType.TOPIC, name),
    )


def _partition(
    topic: str, request: Request, partition: PartitionView, view: ClusterView
) -> DescribeTopicPartitionsResponsePartition:
    isr, offline, eligible = replica_states(request.services, view, topic, partition)
    _, leader = reachable_leader(view, partition, offline, request.listener)
    return DescribeTopicPartitionsResponsePartition(
        partition_index=partition.index,  # without an error even if there is no leader, as in Kafka
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=isr,
        eligible_leader_replicas=eligible,
        last_known_elr=list(partition.last_known_elr or eligible),
        offline_replicas=offline,
    )


HANDLER = ElementWise(MESSAGES, answer, access=(DESCRIBE,))
