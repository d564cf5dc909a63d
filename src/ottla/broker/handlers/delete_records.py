"""DeleteRecords (key 21), versions 0 to 2.

What it does
  Moves the start of each partition forward: records before the offset are no longer served, and their segments are
  removed from the disk. -1 means up to the high watermark. Each partition by itself. The answer comes once the new
  starts are on the disk, and once every replica on a live broker has followed: what was deleted does not come back
  after a power cut or with another leader. REQUEST_TIMED_OUT if a replica does not follow in time.

What it does not do
  Delete from compacted topics (POLICY_VIOLATION) or from internal ones (INVALID_TOPIC_EXCEPTION), as in Kafka: there
  compaction decides.

Versions
  v2   flexible encoding
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial

from ottla.broker.requests.authorization import Access
from ottla.broker.requests.elements import Each, InParts, collect
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation, ResourceType
from ottla.core.errors import InvalidTopic, KafkaError, PolicyViolation, RequestTimedOut, error_code_for
from ottla.core.ids import INTERNAL_TOPICS, TopicPartition
from ottla.metadata_store.cluster_view import ClusterView
from ottla.replication.partition import Partition
from ottla.wire.generated.delete_records import (
    MESSAGES,
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteRecordsTopicResult,
)

NO_WATERMARK = -1
_LOOK_AGAIN_S = 0.5
DELETION_WORK = 5
"""Units of work of one partition, which may remove segments."""

DELETE = Access(AclOperation.DELETE, ResourceType.TOPIC, "each topic")


_Done = dict[TopicPartition, DeleteRecordsPartitionResult]
"""The results of the partitions that were not refused."""


async def delete(request: Request, body: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Delete in each partition separately, then write one checkpoint for all."""
    done: _Done = {}
    response = DeleteRecordsResponse()
    await collect(request, Each(body.topics, partial(_topic, done), into=response.topics))
    for where, error in (await request.services.replicas.note_log_starts(done)).items():
        _refuse(done[where], error)
    awaited = {
        where: one for where, one in done.items() if not one.error_code and not _is_followed(request, where, one)
    }
    if awaited:
        await _wait_for_replicas(request, awaited, body.timeout_ms / 1000)
    return response


class _Followed:
    """Watches partitions: completes `moved` when a replica has followed, or leadership has changed."""

    def __init__(self) -> None:
        self.moved = asyncio.Event()

    def partition_changed(self, partition: Partition) -> None:
        """Check again whether the replicas have the new start."""
        del partition
        self.moved.set()


async def _wait_for_replicas(request: Request, awaited: _Done, timeout_s: float) -> None:
    """Wait until every live replica begins where its leader does, or no longer can."""
    watcher, replicas, stopping = _Followed(), request.services.replicas, request.services.stopping
    watched = [replicas.partitions[where] for where in awaited if where in replicas.partitions]
    for partition in watched:
        partition.watch(watcher)
    try:
        async with asyncio.timeout(max(timeout_s, 0)):
            while awaited and not stopping.is_set():
                watcher.moved.clear()
                for where, answer in tuple(awaited.items()):
                    if _is_followed(request, where, answer):
                        del awaited[where]
                if awaited:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK_AGAIN_S):  # a broker may have died meanwhile
                            await watcher.moved.wait()
    except TimeoutError:
        pass
    finally:
        for partition in watched:
            partition.unwatch(watcher)
    for answer in awaited.values():
        _refuse(answer, RequestTimedOut())


def _is_followed(request: Request, where: TopicPartition, answer: DeleteRecordsPartitionResult) -> bool:
    """Return whether there is nothing to wait for; `answer` gets the lowest start of the live replicas, or an error."""
    try:
        low_watermark = request.services.replicas.leader(*where).low_watermark
    except KafkaError as error:
        _refuse(answer, error)
        return True
    if low_watermark < answer.low_watermark:
        return False
    answer.low_watermark = low_watermark
    return True


def _refuse(answer: DeleteRecordsPartitionResult, error: BaseException) -> None:
    answer.error_code, answer.low_watermark = error_code_for(error), NO_WATERMARK


def _topic(
    done: _Done, request: Request, topic: DeleteRecordsTopic, _view: ClusterView
) -> InParts[DeleteRecordsTopicResult]:
    result = DeleteRecordsTopicResult(name=topic.name)
    if DELETE.denies(request, topic.name):
        return InParts(result, Each(topic.partitions, _denied, into=result.partitions))
    one = partial(_partition, done, topic.name)
    return InParts(result, Each(topic.partitions, one, into=result.partitions, work=DELETION_WORK))


def _denied(_request: Request, asked: DeleteRecordsPartition, _view: ClusterView) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(
        partition_index=asked.partition_index, low_watermark=NO_WATERMARK, error_code=DELETE.error.code
    )


def _partition(
    done: _Done, topic: str, request: Request, asked: DeleteRecordsPartition, _view: ClusterView
) -> DeleteRecordsPartitionResult:
    result = DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=NO_WATERMARK)
    try:
        if topic in INTERNAL_TOPICS:
            raise InvalidTopic(f"{topic} is internal: its records may not be deleted")
        partition = request.services.replicas.leader(topic, asked.partition_index)
        if partition.log.config.is_compacted and not partition.log.config.deletes_by_retention:
            raise PolicyViolation(f"{topic} is compacted: its records cannot be deleted by offset")
        result.low_watermark = partition.delete_records(asked.offset)
    except (KafkaError, OSError) as error:
        result.error_code = error_code_for(error)
    else:
        done[TopicPartition(topic, asked.partition_index)] = result
    return result


HANDLER = Awaited(MESSAGES, delete, access=(DELETE,))
