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

from ottla.broker.handler_parts.admin_requests import check_topic_name
from ottla.broker.handler_parts.authorized_operations import ALL_TOPIC_OPERATIONS
from ottla.broker.handler_parts.partition_states import reachable_leader, replica_states
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.coordination.view import PartitionView, TopicView
from ottla.core.errors import ErrorCode, InvalidTopic
from ottla.core.ids import INTERNAL_TOPICS
from ottla.wire.messages.describe_topic_partitions import (
    MESSAGES,
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

PARTITIONS_PER_ANSWER_MAX = 2000
"""`max.request.partition.size.limit` of Kafka, at its default."""


WORK = 3
"""The share of a slice of work of one topic, and of one partition."""


async def handle(request: Request, body: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
    """Return one page of topics."""
    each = request.services.slices.each
    topics = request.services.cluster.current.topics
    names = sorted({topic.name async for topic in each(body.topics)} if body.topics else topics)
    cursor = body.cursor
    if cursor is not None:
        if cursor.partition_index < 0 or (body.topics and cursor.topic_name not in names):
            return DescribeTopicPartitionsResponse(
                topics=[
                    DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name=topic.name)
                    async for topic in each(body.topics)
                ]
            )
        names = [name for name in names if name >= cursor.topic_name]
    left = max(1, min(body.response_partition_limit, PARTITIONS_PER_ANSWER_MAX))
    answer = DescribeTopicPartitionsResponse()
    async for name in each(names, WORK):
        topic = topics.get(name)
        if topic is None:
            answer.topics.append(_unknown(name))
            continue
        first = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
        if left == 0:
            answer.next_cursor = Cursor(topic_name=name, partition_index=first)
            break
        page = topic.partitions[first : first + left]
        answer.topics.append(await _topic(request, topic, page))
        left -= len(page)
        if first + len(page) < len(topic.partitions):
            answer.next_cursor = Cursor(topic_name=name, partition_index=first + len(page))
            break
    return answer


def _unknown(name: str) -> DescribeTopicPartitionsResponseTopic:
    try:
        check_topic_name(name)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    except InvalidTopic:
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    return DescribeTopicPartitionsResponseTopic(
        error_code=code,
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=ALL_TOPIC_OPERATIONS,
    )


async def _topic(
    request: Request, topic: TopicView, page: tuple[PartitionView, ...]
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[
            _partition(request, topic.name, partition) async for partition in request.services.slices.each(page, WORK)
        ],
        topic_authorized_operations=ALL_TOPIC_OPERATIONS,
    )


def _partition(request: Request, topic: str, partition: PartitionView) -> DescribeTopicPartitionsResponsePartition:
    isr, offline, eligible = replica_states(request.services, request.services.cluster.current, topic, partition)
    _, leader = reachable_leader(request.services.cluster.current, partition, offline, request.listener)
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


HANDLER = Awaited(MESSAGES, handle)
