"""ListOffsets (key 2), versions 1 to 11.

What it does
  Finds offsets by time: the first record whose timestamp is not below the one asked for, with the leader epoch it was
  written under; and the special times latest (-1; the last stable offset for read_committed), earliest (-2), the record
  with the largest timestamp (-3), earliest local (-4: the same as earliest, as nothing is tiered). A replica gets the
  log end as the latest offset. A new leader whose high watermark is below the start of its epoch answers
  OFFSET_NOT_AVAILABLE for what is above it.

What it does not do
  Tiered storage: latest tiered (-5) answers -1, as Kafka does when a topic has no remote log.

Versions
  v4   leader epochs in request (fence) and answer (KIP-320)
  v6   flexible encoding
  v7   -3 (KIP-734); v8 -4 (KIP-405); v9 -5 (KIP-1005); v10 timeout; v11 -6, earliest not yet tiered
"""

from __future__ import annotations

from functools import partial

from ottla.broker.requests.authorization import Access
from ottla.broker.requests.elements import Each, InParts, repeated
from ottla.broker.requests.handler import ElementWise
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation, ResourceType
from ottla.core.errors import (
    InvalidRequest,
    KafkaError,
    LeaderNotAvailable,
    OffsetNotAvailable,
    UnsupportedVersion,
    error_code_for,
)
from ottla.core.ids import TopicPartition
from ottla.metadata_store.cluster_view import ClusterView
from ottla.replication.partition import Partition
from ottla.storage.log.timestamp_lookup import TimedOffset
from ottla.wire.apis import READ_COMMITTED
from ottla.wire.generated.list_offsets import (
    MESSAGES,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
FIRST_VERSION = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
CONSUMER = -1  # as a replica id
FIRST_WITH_OFFSET_NOT_AVAILABLE = 5
WORK = 5
"""Units of work of one partition."""
UNKNOWN = -1

DESCRIBE = Access(AclOperation.DESCRIBE, ResourceType.TOPIC, "each topic")

Found = tuple[int, int, int]
"""Offset, timestamp in ms, leader epoch; -1 each where there is none."""


def answer(_request: Request, body: ListOffsetsRequest, _view: ClusterView) -> InParts[ListOffsetsResponse]:
    """Look up each partition separately, once."""
    response = ListOffsetsResponse()
    twice: set[TopicPartition] = set()
    return InParts(
        response,
        Each(body.topics, partial(_count, set(), twice)),
        Each(body.topics, partial(_topic, body, twice), into=response.topics),
    )


def _count(
    seen: set[TopicPartition],
    twice: set[TopicPartition],
    _request: Request,
    topic: ListOffsetsTopic,
    _view: ClusterView,
) -> InParts[None]:
    named = (TopicPartition(topic.name, asked.partition_index) for asked in topic.partitions)
    return InParts(None, repeated(named, twice, seen))


def _topic(
    body: ListOffsetsRequest, twice: set[TopicPartition], request: Request, topic: ListOffsetsTopic, _view: ClusterView
) -> InParts[ListOffsetsTopicResponse]:
    result = ListOffsetsTopicResponse(name=topic.name)
    if DESCRIBE.denies(request, topic.name):
        return InParts(result, Each(topic.partitions, _denied, into=result.partitions))
    one = partial(_partition, body, topic.name, twice)
    return InParts(result, Each(topic.partitions, one, into=result.partitions, key=_index, work=WORK))


def _denied(_request: Request, asked: ListOffsetsPartition, _view: ClusterView) -> ListOffsetsPartitionResponse:
    return _refusal(asked, DESCRIBE.error)


def _refusal(asked: ListOffsetsPartition, error: BaseException) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(
        partition_index=asked.partition_index, error_code=error_code_for(error), offset=-1, timestamp=-1
    )


def _index(asked: ListOffsetsPartition) -> int:
    return asked.partition_index


def _partition(
    body: ListOffsetsRequest,
    topic: str,
    twice: set[TopicPartition],
    request: Request,
    asked: ListOffsetsPartition,
    _view: ClusterView,
) -> ListOffsetsPartitionResponse:
    where = TopicPartition(topic, asked.partition_index)
    try:
        if where in twice:
            raise InvalidRequest(f"{where} is asked for twice")
        if request.api_version < FIRST_VERSION.get(asked.timestamp, 0) or asked.timestamp < EARLIEST_PENDING_UPLOAD:
            raise UnsupportedVersion
        partition = request.services.replicas.leader(topic, asked.partition_index, asked.current_leader_epoch)
        if body.replica_id != CONSUMER:
            offset, timestamp, epoch = _find(partition, asked.timestamp, partition.log.end_offset)
        else:
            committed_only = body.isolation_level == READ_COMMITTED
            end = partition.last_stable_offset if committed_only else partition.high_watermark
            offset, timestamp, epoch = _find(partition, asked.timestamp, end)
            if offset == UNKNOWN or asked.timestamp == LATEST:
                _check_available(request, partition, asked.timestamp)
    except (KafkaError, OSError) as error:
        return _refusal(asked, error)
    return ListOffsetsPartitionResponse(
        partition_index=asked.partition_index, offset=offset, timestamp=timestamp, leader_epoch=epoch
    )


def _check_available(request: Request, partition: Partition, timestamp: int) -> None:
    """Raise while a new leader does not know yet what is committed: an answer could be below an earlier one."""
    state = partition.leader_state
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD) or state is None:
        return
    if partition.high_watermark < state.term_start:
        if request.api_version < FIRST_WITH_OFFSET_NOT_AVAILABLE:
            raise LeaderNotAvailable
        raise OffsetNotAvailable(
            f"the high watermark {partition.high_watermark} is below {state.term_start}, where the leader epoch begins"
        )


def _find(partition: Partition, timestamp: int, end: int) -> Found:
    log = partition.log
    match timestamp:
        case -1:
            return end, UNKNOWN, partition.leader_epoch
        case -2 | -4:
            epoch = log.epochs.epoch_of(log.log_start_offset)
            return log.log_start_offset, UNKNOWN, partition.leader_epoch if epoch < 0 else epoch
        case -5 | -6:
            return UNKNOWN, UNKNOWN, UNKNOWN
        case _:
            return _by_time(partition, timestamp, end) or (UNKNOWN, UNKNOWN, UNKNOWN)


def _by_time(partition: Partition, timestamp: int, end: int) -> TimedOffset | None:
    """Search the segments by time. Raises StorageError."""
    try:
        if timestamp == MAX_TIMESTAMP:
            return partition.log.offset_of_max_timestamp(end)
        return partition.log.offset_for_timestamp(timestamp, end_offset=end)
    except OSError as error:
        raise partition.not_readable(error) from error


HANDLER = ElementWise(MESSAGES, answer, access=(DESCRIBE,))
