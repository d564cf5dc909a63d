"""OffsetForLeaderEpoch (key 23), versions 2 to 4.

What it does
  Returns the end of an epoch in this leader's log: the largest epoch not above the requested one, and its end offset
  (KIP-279). A follower whose own end of that epoch is higher truncates its log to it; a consumer whose position is
  higher has read records that are lost.

What it does not do
  Nothing is left out.

Versions
  v2   current_leader_epoch fences
  v3   replica id; -2 is a debugger, -1 a consumer
  v4   flexible encoding
"""

from __future__ import annotations

from functools import partial

from ottla.broker.requests.authorization import Access
from ottla.broker.requests.elements import Each, InParts
from ottla.broker.requests.handler import ElementWise
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation, ResourceType
from ottla.core.errors import KafkaError, error_code_for
from ottla.metadata_store.cluster_view import ClusterView
from ottla.wire.generated.offset_for_leader_epoch import (
    MESSAGES,
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
    OffsetForLeaderTopicResult,
)

WORK = 3
"""Units of work of one partition."""

DESCRIBE = Access(AclOperation.DESCRIBE, ResourceType.TOPIC, "each topic", or_cluster=AclOperation.CLUSTER_ACTION)


def answer(
    _request: Request, body: OffsetForLeaderEpochRequest, _view: ClusterView
) -> InParts[OffsetForLeaderEpochResponse]:
    """Look up each partition separately."""
    response = OffsetForLeaderEpochResponse()
    return InParts(response, Each(body.topics, _topic, into=response.topics))


def _topic(request: Request, topic: OffsetForLeaderTopic, _view: ClusterView) -> InParts[OffsetForLeaderTopicResult]:
    result = OffsetForLeaderTopicResult(topic=topic.topic)
    if DESCRIBE.denies(request, topic.topic):
        return InParts(result, Each(topic.partitions, _denied, into=result.partitions))
    one = partial(_partition, topic.topic)
    return InParts(result, Each(topic.partitions, one, into=result.partitions, work=WORK))


def _denied(_request: Request, asked: OffsetForLeaderPartition, _view: ClusterView) -> EpochEndOffset:
    return EpochEndOffset(partition=asked.partition, error_code=DESCRIBE.error.code)


def _partition(topic: str, request: Request, asked: OffsetForLeaderPartition, _view: ClusterView) -> EpochEndOffset:
    try:
        partition = request.services.replicas.leader(topic, asked.partition, asked.current_leader_epoch)
        epoch, end_offset = partition.log.epoch_end_offset(asked.leader_epoch)
    except KafkaError as error:
        return EpochEndOffset(partition=asked.partition, error_code=error_code_for(error))
    return EpochEndOffset(partition=asked.partition, leader_epoch=epoch, end_offset=end_offset)


HANDLER = ElementWise(MESSAGES, answer, access=(DESCRIBE,))
