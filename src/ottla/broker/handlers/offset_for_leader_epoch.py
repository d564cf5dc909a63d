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

from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.errors import KafkaError, error_code_for
from ottla.wire.messages.offset_for_leader_epoch import (
    MESSAGES,
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

WORK = 3
"""Units of work of one partition."""


async def handle(request: Request, body: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
    """Look up each partition separately."""
    each = request.services.slices.each
    response = OffsetForLeaderEpochResponse()
    async for topic in each(body.topics):
        partitions = [_one(request, topic.topic, asked) async for asked in each(topic.partitions, WORK)]
        response.topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=partitions))
    return response


def _one(request: Request, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        partition = request.services.replicas.leader(topic, asked.partition, asked.current_leader_epoch)
        epoch, end_offset = partition.log.epoch_end_offset(asked.leader_epoch)
    except KafkaError as error:
        return EpochEndOffset(partition=asked.partition, error_code=error_code_for(error))
    return EpochEndOffset(partition=asked.partition, leader_epoch=epoch, end_offset=end_offset)


HANDLER = Awaited(MESSAGES, handle)
