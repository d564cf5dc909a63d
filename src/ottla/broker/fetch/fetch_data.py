"""Makes the parts of Fetch responses that consumers and replicas share."""

from __future__ import annotations

from ottla.broker.sessions.fetch_sessions import FetchSessionPartition
from ottla.core.errors import InconsistentTopicId, UnknownTopicId, UnknownTopicOrPartition, error_code_for
from ottla.core.files import FileRegion
from ottla.metadata_store.cluster_view import ClusterView
from ottla.replication.fetch_data_info import FetchDataInfo
from ottla.replication.partition import Partition
from ottla.storage.state.leader_epochs import EpochEnd
from ottla.wire.generated.fetch import AbortedTransaction, EpochEndOffset, LeaderIdAndEpoch
from ottla.wire.hot.fetch import JOIN_BYTES_MAX, NO_LEADER, NO_TOPIC_ID, PartitionData
from ottla.wire.schema import RecordBytes


def data_of(
    partition: Partition, found: FetchDataInfo, aborted: list[AbortedTransaction] | None = None
) -> PartitionData:
    """Return what was read of a partition. Raises StorageError.

    It has a small region's bytes, so that one system call sends the response, and a large region as it is.
    """
    region = found.region
    records: RecordBytes | None = region
    if region is not None and region.size <= JOIN_BYTES_MAX:
        try:
            content = region.file.read_at(region.position, region.size)
        except OSError as error:
            raise partition.not_readable(error) from error
        if len(content) == region.size:  # to send a region beyond the file's end fails
            records = content
    return PartitionData(
        partition.topic_partition.partition,
        found.high_watermark,
        found.last_stable_offset,
        found.log_start_offset,
        aborted_transactions=aborted,
        records=records,
    )


def size_of(records: RecordBytes) -> int:
    """Return the number of bytes."""
    return records.size if isinstance(records, FileRegion) else len(records)


def refusal(index: int, error: BaseException, leader: LeaderIdAndEpoch = NO_LEADER) -> PartitionData:
    """Return a partition with an error."""
    data = PartitionData(index, -1, error_code=error_code_for(error))
    data.current_leader = leader
    return data


def divergence(partition: Partition, end: EpochEnd) -> PartitionData:
    """Return where an epoch of the reader ended in this log: the reader has to truncate its own there (KIP-595)."""
    data = offsets_of(partition)
    data.diverging_epoch = EpochEndOffset(epoch=end.epoch, end_offset=end.end_offset)
    return data


def offsets_of(partition: Partition) -> PartitionData:
    """Return a partition's offsets without records."""
    return PartitionData(
        partition.topic_partition.partition,
        partition.high_watermark,
        partition.last_stable_offset,
        partition.log.log_start_offset,
    )


def current_name(view: ClusterView, each: FetchSessionPartition) -> str:
    """Return the name of the topic of a fetch's partition, which the partition remembers.

    Raises UnknownTopicId for an id that this fetch or its session never found, and for one that it did find
    UnknownTopicOrPartition after the topic was deleted, and InconsistentTopicId after it was created again.
    """
    if each.topic_id == NO_TOPIC_ID and each.topic:
        return each.topic
    topic = view.topic_by_id.get(each.topic_id)
    if topic is not None:
        each.name = topic.name
    elif not each.name:
        raise UnknownTopicId
    elif view.partition(each.name, each.asked.partition) is None:
        raise UnknownTopicOrPartition
    else:
        raise InconsistentTopicId
    return each.name


def topic_name(view: ClusterView, name: str, topic_id: bytes) -> str:
    """Return the name of a topic that a request names, or whose id it has. Raises UnknownTopicId."""
    if topic_id == NO_TOPIC_ID and name:
        return name
    topic = view.topic_by_id.get(topic_id)
    if topic is None:
        raise UnknownTopicId
    return topic.name
