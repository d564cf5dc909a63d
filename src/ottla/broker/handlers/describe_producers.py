"""DescribeProducers (key 61), version 0.

What it does
  For each partition of which this broker has a replica: the producers that the replica remembers, with epoch, last
  sequence, time of the last write and the start of an open transaction.

What it does not do
  Nothing is left out.

Versions
  v0   flexible encoding
"""

from __future__ import annotations

from ottla.broker.context import RequestContext
from ottla.broker.handler_parts.admin_requests import check_topic_name, error_fields
from ottla.core.errors import KafkaError, UnknownTopicOrPartition
from ottla.core.ids import TopicPartition
from ottla.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

WORK = 3
"""Units of work of one partition."""


async def handle(ctx: RequestContext, request: DescribeProducersRequest) -> DescribeProducersResponse:
    """Describe each partition separately, once."""
    each = ctx.services.slices.each
    response = DescribeProducersResponse()
    async for topic in each(request.topics):
        partitions = [
            await _partition(ctx, TopicPartition(topic.name, index))
            async for index in each(dict.fromkeys(topic.partition_indexes), WORK)
        ]
        response.topics.append(TopicResponse(name=topic.name, partitions=partitions))
    return response


async def _partition(ctx: RequestContext, where: TopicPartition) -> PartitionResponse:
    answer = PartitionResponse(partition_index=where.partition)
    try:
        check_topic_name(where.topic)
        if where.topic not in ctx.services.cluster.current.topics:
            raise UnknownTopicOrPartition
        partition = ctx.services.replicas.partition(where)
        answer.active_producers = [
            ProducerState(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.current_txn_start_offset,
            )
            async for producer in ctx.services.slices.each(partition.log.producers.describe())
        ]
    except KafkaError as error:
        answer.error_code, answer.error_message = error_fields(error)
    return answer
