"""DeleteRecords (key 21), versions 0 to 2.

What it does
  Moves the start of each partition forward: records before the offset are no longer served, and their segments are
  removed from the disk. -1 means up to the high watermark. Each partition by itself. The answer comes once the new
  starts are on the disk: what was deleted does not come back after a power cut.

What it does not do
  Delete from compacted topics (POLICY_VIOLATION) or from internal ones (INVALID_TOPIC_EXCEPTION), as in Kafka: there
  compaction decides.

Versions
  v2   flexible encoding
"""

from __future__ import annotations

from ottla.broker.context import RequestContext
from ottla.core.errors import InvalidTopic, KafkaError, PolicyViolation, error_code_for
from ottla.core.ids import INTERNAL_TOPICS, TopicPartition
from ottla.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

NO_WATERMARK = -1
DELETION_WORK = 5
"""Units of work of one partition, which may remove segments."""


async def handle(ctx: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Delete in each partition separately, then write one checkpoint for all."""
    each = ctx.services.slices.each
    response = DeleteRecordsResponse()
    done: dict[TopicPartition, DeleteRecordsPartitionResult] = {}
    async for topic in each(request.topics):
        results = [_partition(ctx, topic.name, asked) async for asked in each(topic.partitions, DELETION_WORK)]
        response.topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
        done |= {TopicPartition(topic.name, one.partition_index): one for one in results if not one.error_code}
    for where, error in (await ctx.services.replicas.note_log_starts(done)).items():
        done[where].error_code = error_code_for(error)
        done[where].low_watermark = NO_WATERMARK
    return response


def _partition(ctx: RequestContext, topic: str, asked: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
    answer = DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=NO_WATERMARK)
    try:
        if topic in INTERNAL_TOPICS:
            raise InvalidTopic(f"{topic} is internal: its records may not be deleted")
        partition = ctx.services.replicas.partition(TopicPartition(topic, asked.partition_index))
        partition.check_serving()
        if partition.log.config.is_compacted and not partition.log.config.deletes_by_retention:
            raise PolicyViolation(f"{topic} is compacted: its records cannot be deleted by offset")
        answer.low_watermark = partition.delete_records(asked.offset)
    except (KafkaError, OSError) as error:
        answer.error_code = error_code_for(error)
    return answer
