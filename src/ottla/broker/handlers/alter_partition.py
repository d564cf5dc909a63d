"""AlterPartition (key 56), versions 2 to 3.

What it does
  Changes the in-sync replicas of partitions as their leader, another broker, proposes, and answers the new state of
  each. The active controller alone does so.

What it does not do
  Serve versions 0 and 1, which name topics by name.

Versions
  v2   topic ids; INELIGIBLE_REPLICA and NEW_LEADER_ELECTED (KIP-841)
  v3   the broker epoch of each replica (KIP-903)
"""

from __future__ import annotations

from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.controller.isr import AlterPartitionResult, ProposedIsr
from ottla.core.errors import KafkaError
from ottla.core.ids import UNKNOWN_BROKER_EPOCH
from ottla.wire.messages.alter_partition import (
    MESSAGES,
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)


async def handle(request: Request, body: AlterPartitionRequest) -> AlterPartitionResponse:
    """Commit the proposed changes; return the new state of each partition, or its error."""
    proposals = [
        _proposed(topic, partition)
        async for topic in request.services.slices.each(body.topics)
        for partition in topic.partitions
    ]
    try:
        outcomes = await request.services.controller.alter_partitions(body.broker_id, body.broker_epoch, proposals)
    except KafkaError as error:
        return AlterPartitionResponse(error_code=error.code)
    remaining = iter(outcomes)
    return AlterPartitionResponse(
        topics=[
            AlterPartitionResponseTopicData(
                topic_id=topic.topic_id,
                partitions=[_result(partition.partition_index, next(remaining)) for partition in topic.partitions],
            )
            async for topic in request.services.slices.each(body.topics)
        ]
    )


def _proposed(topic: AlterPartitionRequestTopicData, partition: AlterPartitionRequestPartitionData) -> ProposedIsr:
    known = [(each.broker_id, each.broker_epoch) for each in partition.new_isr_with_epochs]
    return ProposedIsr(
        topic.topic_id,
        partition.partition_index,
        partition.leader_epoch,
        partition.partition_epoch,
        known or [(node, UNKNOWN_BROKER_EPOCH) for node in partition.new_isr],
        partition.leader_recovery_state == 1,
    )


def _result(index: int, outcome: AlterPartitionResult | KafkaError) -> AlterPartitionResponsePartitionData:
    if isinstance(outcome, KafkaError):
        return AlterPartitionResponsePartitionData(partition_index=index, error_code=outcome.code)
    return AlterPartitionResponsePartitionData(
        partition_index=index,
        leader_id=outcome.leader,
        leader_epoch=outcome.leader_epoch,
        isr=list(outcome.isr),
        leader_recovery_state=int(outcome.is_recovering),
        partition_epoch=outcome.partition_epoch,
    )


HANDLER = Awaited(MESSAGES, handle)
