"""AlterReplicaLogDirs (key 34), versions 1 to 2.

What it does
  Moves replicas of this broker to other log directories (KIP-113). Each partition has its own outcome; the answer comes
  when the move has begun, and DescribeLogDirs shows its progress. A replica is written and read meanwhile. A
  request for the directory where it is cancels a move. A replica that this broker does not have has
  REPLICA_NOT_AVAILABLE; if it comes later, it is created in the directory. No move begins while a directory is offline
  (KAFKA_STORAGE_ERROR), as in Kafka.

What it does not do
  Choose the directory of a partition that does not exist beyond this run of the broker, as in Kafka.

Versions
  v2   flexible encoding
"""

from __future__ import annotations

from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.errors import ErrorCode, KafkaError, error_code_for
from ottla.core.ids import TopicPartition
from ottla.replication.replicas import Replicas
from ottla.wire.messages.alter_replica_log_dirs import (
    MESSAGES,
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)

MOVE_WORK = 20
"""Units of work of one partition, for which files are created."""


async def handle(request: Request, body: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
    """Begin or cancel the move of each partition."""
    each, replicas = request.services.slices.each, request.services.replicas
    paths = {
        TopicPartition(topic.name, index): directory.path
        async for directory in each(body.dirs)
        async for topic in each(directory.topics)
        async for index in each(topic.partitions)
    }
    topics: dict[str, AlterReplicaLogDirTopicResult] = {}
    async for where in each(list(paths), MOVE_WORK):
        result = topics.setdefault(where.topic, AlterReplicaLogDirTopicResult(topic_name=where.topic))
        code = _begin(replicas, where, paths[where])
        result.partitions.append(AlterReplicaLogDirPartitionResult(partition_index=where.partition, error_code=code))
    return AlterReplicaLogDirsResponse(results=list(topics.values()))


def _begin(replicas: Replicas, topic_partition: TopicPartition, path: str) -> ErrorCode:
    try:
        replicas.alter_log_dir(topic_partition, path)
    except (KafkaError, OSError) as error:
        return error_code_for(error)
    return ErrorCode.NONE


HANDLER = Awaited(MESSAGES, handle)
