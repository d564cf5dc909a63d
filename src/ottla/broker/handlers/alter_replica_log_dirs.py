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

from functools import partial

from ottla.broker.requests.authorization import on_cluster
from ottla.broker.requests.elements import Each, InParts
from ottla.broker.requests.handler import ElementWise
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation
from ottla.core.errors import ErrorCode, KafkaError, error_code_for
from ottla.core.ids import TopicPartition
from ottla.metadata_store.cluster_view import ClusterView
from ottla.wire.generated.alter_replica_log_dirs import (
    MESSAGES,
    AlterReplicaLogDir,
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
    AlterReplicaLogDirTopicResult,
)

MOVE_WORK = 20
"""Units of work of one partition, for which files are created."""


_Paths = dict[TopicPartition, str]
"""The directory for each partition."""


def answer(
    _request: Request, body: AlterReplicaLogDirsRequest, _view: ClusterView
) -> InParts[AlterReplicaLogDirsResponse]:
    """Begin or cancel the move of each partition."""
    response = AlterReplicaLogDirsResponse()
    paths: _Paths = {}
    topics: dict[str, AlterReplicaLogDirTopicResult] = {}
    return InParts(
        response,
        Each(body.dirs, partial(_directory, paths)),
        Each(paths.items(), partial(_begin, topics), into=response.results, work=MOVE_WORK),
    )


def _directory(paths: _Paths, _request: Request, directory: AlterReplicaLogDir, _view: ClusterView) -> InParts[None]:
    return InParts(None, Each(directory.topics, partial(_topic, paths, directory.path)))


def _topic(
    paths: _Paths, path: str, _request: Request, topic: AlterReplicaLogDirTopic, _view: ClusterView
) -> InParts[None]:
    return InParts(None, Each(topic.partitions, partial(_partition, paths, path, topic.name)))


def _partition(paths: _Paths, path: str, topic: str, _request: Request, index: int, _view: ClusterView) -> None:
    paths[TopicPartition(topic, index)] = path


def _begin(
    topics: dict[str, AlterReplicaLogDirTopicResult],
    request: Request,
    move: tuple[TopicPartition, str],
    _view: ClusterView,
) -> AlterReplicaLogDirTopicResult | None:
    """Begin or cancel a move; return the result of the topic, with its first partition."""
    where, path = move
    code = ErrorCode.NONE
    try:
        request.services.replicas.alter_log_dir(where, path)
    except (KafkaError, OSError) as error:
        code = error_code_for(error)
    result = AlterReplicaLogDirPartitionResult(partition_index=where.partition, error_code=code)
    if where.topic in topics:
        topics[where.topic].partitions.append(result)
        return None
    topics[where.topic] = AlterReplicaLogDirTopicResult(topic_name=where.topic, partitions=[result])
    return topics[where.topic]


def refuse(
    _request: Request, body: AlterReplicaLogDirsRequest, error: KafkaError
) -> InParts[AlterReplicaLogDirsResponse]:
    """Answer each partition with an error."""
    response = AlterReplicaLogDirsResponse()
    return InParts(response, Each(body.dirs, partial(_refused_directory, response, error)))


def _refused_directory(
    response: AlterReplicaLogDirsResponse,
    error: KafkaError,
    _request: Request,
    directory: AlterReplicaLogDir,
    _view: ClusterView,
) -> InParts[None]:
    return InParts(None, Each(directory.topics, partial(_refused_topic, error), into=response.results))


def _refused_topic(
    error: KafkaError, _request: Request, topic: AlterReplicaLogDirTopic, _view: ClusterView
) -> InParts[AlterReplicaLogDirTopicResult]:
    result = AlterReplicaLogDirTopicResult(topic_name=topic.name)
    return InParts(result, Each(topic.partitions, partial(_refused_partition, error), into=result.partitions))


def _refused_partition(
    error: KafkaError, _request: Request, index: int, _view: ClusterView
) -> AlterReplicaLogDirPartitionResult:
    return AlterReplicaLogDirPartitionResult(partition_index=index, error_code=error.code)


HANDLER = ElementWise(MESSAGES, answer, access=(on_cluster(AclOperation.ALTER),), refuse=refuse)
