"""Reads Fetch requests (key 1, versions 4 to 18) and writes the responses, with file regions left unread.

Small records are joined with the bytes around them; large ones and file regions are parts of their own, which the
connection sends from where they are. Null records are written as empty ones: several clients take a null for an error.
The shapes replace the generated ones: they are compiled, and a topic id is 16 raw bytes. A test holds both functions
equal, byte for byte and field for field, to the plans in `wire/compiled_codec.py` and to kio.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final
from uuid import UUID

from ottla.core.errors import UnsupportedVersion
from ottla.core.files import FileRegion
from ottla.core.ids import NO_TOPIC_ID as NO_DIRECTORY_ID
from ottla.core.settings import LONG_MAX
from ottla.wire.compiled_codec import ELEMENTS_MAX, skip_tags, tag_count
from ottla.wire.errors import MalformedRequest
from ottla.wire.generated.fetch import AbortedTransaction, EpochEndOffset, LeaderIdAndEpoch, NodeEndpoint, SnapshotId
from ottla.wire.hot.reading import (
    AT_ONCE,
    BAD_BYTES,
    SHORT_ELEMENTS_MAX,
    TAGS_MAX,
    after_tags,
    count_at,
    name_at,
    refuse_elements,
    string_at,
    uuid_at,
)
from ottla.wire.hot.writing import string_bytes, write_endpoints, write_leader_tag
from ottla.wire.primitives import read_uvarint, write_length
from ottla.wire.schema import RecordBytes

FIRST: Final = 4
LAST: Final = 18
_LOG_START_SINCE: Final = 5
_SESSION_SINCE: Final = 7
_LEADER_EPOCH_SINCE: Final = 9
_RACK_SINCE: Final = 11
_FLEXIBLE_SINCE: Final = 12
FIRST_WITH_TOPIC_IDS: Final = 13  # in place of topic names (KIP-516)
_REPLICA_STATE_SINCE: Final = 15
FIRST_WITH_LEADERS: Final = 16
_DIRECTORY_SINCE: Final = 17
_HIGH_WATERMARK_SINCE: Final = 18

JOIN_BYTES_MAX: Final = 16 << 10
"""Up to this size a copy of the records costs less than another system call to send them."""

NO_TOPIC_ID: Final = bytes(16)
NO_EPOCH_END: Final = EpochEndOffset()  # these three are shared, because nothing changes them
NO_LEADER: Final = LeaderIdAndEpoch()
NO_SNAPSHOT: Final = SnapshotId()

_INT32: Final = struct.Struct(">i").unpack_from
_INT64: Final = struct.Struct(">q").unpack_from
_LIMITS: Final = struct.Struct(">iiib").unpack_from  # max wait, min bytes, max bytes, isolation level
_SESSION: Final = struct.Struct(">ii").unpack_from
_REPLICA_STATE: Final = struct.Struct(">iqB").unpack_from
_PARTITION_4: Final = struct.Struct(">iqi").unpack_from  # partition, offset, max bytes
_PARTITION_5: Final = struct.Struct(">iqqi").unpack_from  # and log start before the last
_PARTITION_9: Final = struct.Struct(">iiqqi").unpack_from  # and leader epoch after the first
_PARTITION_12: Final = struct.Struct(">iiqiqi").unpack_from  # and last fetched epoch after the offset

_INT32_BYTES: Final = struct.Struct(">i").pack
_RESPONSE_HEADER: Final = struct.Struct(">ii").pack  # length of the frame, correlation id
_RESPONSE_HEADER_WITH_TAGS: Final = struct.Struct(">iiB").pack
_INT32_INTO: Final = struct.Struct(">i").pack_into
_HEAD_7: Final = struct.Struct(">ihi").pack  # throttle time, error, session
_DATA_4: Final = struct.Struct(">ihqq").pack  # partition, error, high watermark, last stable offset
_DATA_5: Final = struct.Struct(">ihqqq").pack  # and log start
_ABORTED: Final = struct.Struct(">qq").pack
_EPOCH_TAG: Final = struct.Struct(">BBiqB").pack  # tag 0: size, epoch, end offset, no tags inside
_SNAPSHOT_TAG: Final = struct.Struct(">BBqiB").pack  # tag 2: size, end offset, epoch, no tags inside
_EPOCH_TAG_BYTES: Final = 13
_ONLY_HIGH_WATERMARK: Final = bytes((1, 1, 8))  # one tag: its number, its size
_ONLY_REPLICA_STATE: Final = bytes((1, 1, 13))


class FetchPartition:
    """One partition of a request. Fields that its version lacks have the defaults of Kafka's messages."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "high_watermark",
        "last_fetched_epoch",
        "log_start_offset",
        "partition",
        "partition_max_bytes",
        "replica_directory_id",
    )

    def __init__(
        self,
        partition: int,
        fetch_offset: int = 0,
        partition_max_bytes: int = 0,
        current_leader_epoch: int = -1,
        last_fetched_epoch: int = -1,
        log_start_offset: int = -1,
        high_watermark: int = LONG_MAX,
    ) -> None:
        self.partition = partition
        self.current_leader_epoch = current_leader_epoch
        self.fetch_offset = fetch_offset
        self.last_fetched_epoch = last_fetched_epoch
        self.log_start_offset = log_start_offset
        self.partition_max_bytes = partition_max_bytes
        self.replica_directory_id: UUID = NO_DIRECTORY_ID
        self.high_watermark = high_watermark  # that a follower knows


class FetchTopic:
    """One topic of a request."""

    __slots__ = ("partitions", "topic", "topic_id")

    def __init__(self, topic: str, topic_id: bytes, partitions: list[FetchPartition]) -> None:
        self.topic = topic  # empty from version 13 on
        self.topic_id = topic_id  # zero before version 13
        self.partitions = partitions


class ForgottenTopic:
    """Partitions of one topic that leave the session."""

    __slots__ = ("partitions", "topic", "topic_id")

    def __init__(self, topic: str, topic_id: bytes, partitions: list[int]) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partitions = partitions


class ReplicaState:
    """The follower that sent a request."""

    __slots__ = ("replica_epoch", "replica_id")

    def __init__(self, replica_id: int, replica_epoch: int) -> None:
        self.replica_id = replica_id
        self.replica_epoch = replica_epoch


NO_REPLICA: Final = ReplicaState(-1, -1)  # shared, because nothing changes it


class FetchRequest:
    """A request, and how much of it has been read."""

    __slots__ = (
        "cluster_id",
        "elements",
        "elements_max",
        "forgotten_left",
        "forgotten_topics_data",
        "isolation_level",
        "max_bytes",
        "max_wait_ms",
        "min_bytes",
        "partitions_left",
        "position",
        "rack_id",
        "replica_id",
        "replica_state",
        "session_epoch",
        "session_id",
        "topics",
        "topics_left",
    )

    def __init__(self) -> None:
        self.cluster_id: str | None = None
        self.replica_state = NO_REPLICA
        self.replica_id = -1
        self.max_wait_ms = 0
        self.min_bytes = 0
        self.max_bytes = 0x7FFFFFFF
        self.isolation_level = 0
        self.session_id = 0
        self.session_epoch = -1
        self.topics: list[FetchTopic] = []
        self.forgotten_topics_data: list[ForgottenTopic] = []
        self.rack_id = ""
        self.topics_left = self.elements = 0  # to be read; announced so far, with the partitions
        self.forgotten_left = -1  # topics to be read; -1: their number is not read yet
        self.partitions_left = 0  # of the last topic
        self.elements_max = SHORT_ELEMENTS_MAX
        self.position = 0  # in the frame, of what is to be read next


class PartitionData:
    """One partition of a response."""

    __slots__ = (
        "aborted_transactions",
        "current_leader",
        "diverging_epoch",
        "error_code",
        "high_watermark",
        "last_stable_offset",
        "log_start_offset",
        "partition_index",
        "preferred_read_replica",
        "records",
        "snapshot_id",
    )

    def __init__(
        self,
        partition_index: int,
        high_watermark: int,
        last_stable_offset: int = -1,
        log_start_offset: int = -1,
        *,
        error_code: int = 0,
        aborted_transactions: list[AbortedTransaction] | None = None,
        records: RecordBytes | None = None,
    ) -> None:
        self.partition_index = partition_index
        self.error_code = error_code
        self.high_watermark = high_watermark
        self.last_stable_offset = last_stable_offset
        self.log_start_offset = log_start_offset
        self.diverging_epoch = NO_EPOCH_END
        self.current_leader = NO_LEADER
        self.snapshot_id = NO_SNAPSHOT
        self.aborted_transactions = aborted_transactions
        self.preferred_read_replica = -1
        self.records = records


class FetchedTopic:
    """One topic of a response."""

    __slots__ = ("partitions", "topic", "topic_id")

    def __init__(self, topic: str, topic_id: bytes, partitions: list[PartitionData]) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partitions = partitions


def decode_fetch_request(body: memoryview, version: int, at: int = 0, *, is_long: bool = False) -> FetchRequest:
    """Decode the request whose body begins at `at`.

    Raises LongRequest if it has more than `SHORT_ELEMENTS_MAX` topics and partitions, MalformedRequest if the bytes are
    anything else. With `is_long` the topics and what follows are left to `read_topics`, which reads some at a time.
    """
    if not FIRST <= version <= LAST:
        raise UnsupportedVersion(f"no Fetch version {version}")
    request = FetchRequest()
    try:
        if version < _REPLICA_STATE_SINCE:
            request.replica_id = _INT32(body, at)[0]
            at += 4
        request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level = _LIMITS(body, at)
        at += 13
        if version >= _SESSION_SINCE:
            request.session_id, request.session_epoch = _SESSION(body, at)
            at += 8
        request.topics_left, request.position = count_at(body, at, version >= _FLEXIBLE_SINCE)
    except BAD_BYTES as error:
        raise MalformedRequest(f"Fetch version {version}: {error}") from error
    request.elements = request.topics_left
    if is_long:
        request.elements_max = ELEMENTS_MAX
    else:
        read_topics(body, version, request, SHORT_ELEMENTS_MAX)
    return request


def read_topics(body: memoryview, version: int, request: FetchRequest, elements_max: int) -> bool:
    """Read so many topics and partitions of a request, or fewer; returns whether the whole request is read.

    A topic of more partitions becomes several. Raises what `decode_fetch_request` does.
    """
    flexible = version >= _FLEXIBLE_SINCE
    at, left = request.position, elements_max
    try:
        while request.topics_left and left > 0:
            topic_id, name = NO_TOPIC_ID, ""
            if request.partitions_left:
                topic_id, name = request.topics[-1].topic_id, request.topics[-1].topic
            else:
                if version >= FIRST_WITH_TOPIC_IDS:
                    topic_id, at = bytes(body[at : at + 16]), at + 16
                else:
                    name, at = name_at(body, at, flexible)
                request.partitions_left, at = count_at(body, at, flexible)
                request.elements += request.partitions_left
                if request.elements > request.elements_max:
                    refuse_elements(body, request.elements)
            few = min(request.partitions_left, left)
            partitions: list[FetchPartition] = []
            for _ in range(few):
                if flexible:
                    partition, at = _flexible_partition_at(body, at, version)
                else:
                    partition, at = _partition_at(body, at, version)
                partitions.append(partition)
            request.topics.append(FetchTopic(name, topic_id, partitions))
            request.partitions_left -= few
            left -= few + 1
            if not request.partitions_left:
                request.topics_left -= 1
                at = at + 1 if flexible and body[at] == 0 else after_tags(body, at, flexible)
        request.position = at
        return not request.topics_left and _read_rest(body, version, flexible, request, left)
    except BAD_BYTES as error:
        raise MalformedRequest(f"Fetch version {version}: {error}") from error


def _read_rest(body: memoryview, version: int, flexible: bool, request: FetchRequest, left: int) -> bool:
    """Read so many forgotten topics, or fewer, and what follows all of them; returns whether all is read."""
    at = request.position
    if request.forgotten_left < 0:
        request.forgotten_left = 0
        if version >= _SESSION_SINCE:
            request.forgotten_left, at = count_at(body, at, flexible)
            request.elements += request.forgotten_left
    while request.forgotten_left and left > 0:
        before = request.elements
        at = _read_forgotten(body, at, version, flexible, request)
        request.forgotten_left -= 1
        left -= 1 + request.elements - before
    request.position = at
    if request.forgotten_left:
        return False
    if flexible and body[at] == 1:  # most clients have no rack
        at += 1
    elif version >= _RACK_SINCE:
        request.rack_id, at = name_at(body, at, flexible)
    if flexible and body[at] != 0:
        _read_request_tags(body, at, version, request)
    return True


def _partition_at(body: memoryview, at: int, version: int) -> tuple[FetchPartition, int]:
    if version >= _LEADER_EPOCH_SINCE:
        partition, epoch, offset, log_start, max_bytes = _PARTITION_9(body, at)
        at += 28
    elif version >= _LOG_START_SINCE:
        partition, offset, log_start, max_bytes = _PARTITION_5(body, at)
        epoch, at = -1, at + 24
    else:
        partition, offset, max_bytes = _PARTITION_4(body, at)
        epoch, log_start, at = -1, -1, at + 16
    return FetchPartition(partition, offset, max_bytes, epoch, -1, log_start), at


def _flexible_partition_at(body: memoryview, at: int, version: int) -> tuple[FetchPartition, int]:
    partition, epoch, offset, last_epoch, log_start, max_bytes = _PARTITION_12(body, at)
    shape = FetchPartition(partition, offset, max_bytes, epoch, last_epoch, log_start)
    at += 32
    if body[at] == 0:
        return shape, at + 1
    if version >= _HIGH_WATERMARK_SINCE and body[at : at + 3] == _ONLY_HIGH_WATERMARK:  # of a follower, each time
        (shape.high_watermark,) = _INT64(body, at + 3)
        return shape, at + 11
    if version < _DIRECTORY_SINCE:
        return shape, skip_tags(body, at, TAGS_MAX)
    return shape, _partition_tags(body, at, version, shape)


def _tag_at(body: memoryview, at: int) -> tuple[int, int, int]:
    """Return a tagged field's number, and where its value begins and ends."""
    tag, at = read_uvarint(body, at)
    size, at = read_uvarint(body, at)
    if at + size > len(body):
        raise MalformedRequest(f"a tagged field of {size} bytes ends after the message")
    return tag, at, at + size


def _partition_tags(body: memoryview, at: int, version: int, shape: FetchPartition) -> int:
    """Read a follower's tags: its directory (KIP-858) and the high watermark it knows (KIP-1166)."""
    count, at = tag_count(body, at, TAGS_MAX)
    for _ in range(count):
        tag, start, at = _tag_at(body, at)
        end = at
        if tag == 0:
            shape.replica_directory_id, end = uuid_at(body, start)
        elif tag == 1 and version >= _HIGH_WATERMARK_SINCE:
            (shape.high_watermark,) = _INT64(body, start)
            end = start + 8
        if end != at:
            raise MalformedRequest(f"tagged field {tag} does not fill its {at - start} bytes")
    return at


def _read_request_tags(body: memoryview, at: int, version: int, request: FetchRequest) -> None:
    """Read the cluster's id (tag 0) and, from version 15 on, who the follower is (tag 1)."""
    if version >= _REPLICA_STATE_SINCE and body[at : at + 3] == _ONLY_REPLICA_STATE and body[at + 15] == 0:
        replica_id, replica_epoch, _ = _REPLICA_STATE(body, at + 3)
        request.replica_state = ReplicaState(replica_id, replica_epoch)
        return
    count, at = tag_count(body, at, TAGS_MAX)
    for _ in range(count):
        tag, start, at = _tag_at(body, at)
        end = at
        if tag == 0:
            request.cluster_id, end = string_at(body, start, flexible=True)
        elif tag == 1 and version >= _REPLICA_STATE_SINCE:
            replica_id, replica_epoch, _ = _REPLICA_STATE(body, start)
            request.replica_state = ReplicaState(replica_id, replica_epoch)
            end = skip_tags(body, start + 12, TAGS_MAX)
        if end != at:
            raise MalformedRequest(f"tagged field {tag} does not fill its {at - start} bytes")


def _read_forgotten(body: memoryview, at: int, version: int, flexible: bool, request: FetchRequest) -> int:
    """Read a topic of the partitions that leave the session; one of many becomes several. Returns where it ends."""
    topic_id, name = NO_TOPIC_ID, ""
    if version >= FIRST_WITH_TOPIC_IDS:
        topic_id, at = bytes(body[at : at + 16]), at + 16
    else:
        name, at = name_at(body, at, flexible)
    count, at = count_at(body, at, flexible)
    end = at + 4 * count
    if end > len(body):
        raise MalformedRequest(f"an array of {count} partitions in {len(body) - at} bytes")
    request.elements += count
    if request.elements > request.elements_max:
        refuse_elements(body, request.elements)
    partitions = list(struct.unpack_from(f">{count}i", body, at))
    for first in range(0, max(count, 1), AT_ONCE):
        request.forgotten_topics_data.append(ForgottenTopic(name, topic_id, partitions[first : first + AT_ONCE]))
    return after_tags(body, end, flexible)


def encode_fetch_response(
    topics: Sequence[FetchedTopic],
    version: int,
    correlation_id: int,
    *,
    session_id: int = 0,
    error_code: int = 0,
    throttle_time_ms: int = 0,
    endpoints: Sequence[NodeEndpoint] = (),
) -> list[RecordBytes]:
    """Encode the response's frame in parts, as `write_fetch_response` writes them."""
    parts: list[RecordBytes] = []
    for _ in write_fetch_response(
        parts,
        topics,
        version,
        correlation_id,
        session_id=session_id,
        error_code=error_code,
        throttle_time_ms=throttle_time_ms,
        endpoints=endpoints,
    ):
        pass
    return parts


def write_fetch_response(
    parts: list[RecordBytes],
    topics: Sequence[FetchedTopic],
    version: int,
    correlation_id: int,
    *,
    session_id: int = 0,
    error_code: int = 0,
    throttle_time_ms: int = 0,
    endpoints: Sequence[NodeEndpoint] = (),
) -> Iterator[None]:
    """Write the response's frame to `parts`, with length and header; fields that the version lacks are left out.

    Yields after each `AT_ONCE` topics and partitions, so that the loop may turn while a long one is written.
    """
    if not FIRST <= version <= LAST:
        raise UnsupportedVersion(f"no Fetch version {version}")
    flexible = version >= _FLEXIBLE_SINCE
    header = _RESPONSE_HEADER_WITH_TAGS(0, correlation_id, 0) if flexible else _RESPONSE_HEADER(0, correlation_id)
    first = out = bytearray(header)
    size, written = -4, 0  # of the frame without its length; topics and partitions
    if version >= _SESSION_SINCE:
        out += _HEAD_7(throttle_time_ms, error_code, session_id)
    else:
        out += _INT32_BYTES(throttle_time_ms)
    write_length(out, len(topics), flexible)
    for topic in topics:
        out += topic.topic_id if version >= FIRST_WITH_TOPIC_IDS else string_bytes(topic.topic, flexible)
        count = len(topic.partitions)
        if flexible and count < 0x7F:  # one byte, as almost always
            out.append(count + 1)
        else:
            write_length(out, count, flexible)
        for partition in topic.partitions:
            length, records = _write_head(out, partition, version, flexible), partition.records
            if records is not None and length:
                if length <= JOIN_BYTES_MAX and not isinstance(records, FileRegion):
                    out += records
                else:
                    size += len(out) + length
                    parts += (out, records)
                    out = bytearray()
            if flexible:
                _write_partition_tags(out, partition)
            written += 1
            if not written % AT_ONCE:
                yield
        if flexible:
            out.append(0)
        written += 1
        if not written % AT_ONCE:
            yield
    if version >= FIRST_WITH_LEADERS and endpoints:
        write_endpoints(out, endpoints)
    elif flexible:
        out.append(0)
    if out:
        size += len(out)
        parts.append(out)
    _INT32_INTO(first, 0, size)


def _write_head(out: bytearray, data: PartitionData, version: int, flexible: bool) -> int:
    """Write the fields of a partition before its records; returns the length of these."""
    index, error, high_watermark, stable = (
        data.partition_index,
        data.error_code,
        data.high_watermark,
        data.last_stable_offset,
    )
    if version >= _LOG_START_SINCE:
        out += _DATA_5(index, error, high_watermark, stable, data.log_start_offset)
    else:
        out += _DATA_4(index, error, high_watermark, stable)
    aborted = data.aborted_transactions
    if aborted:
        _write_aborted(out, aborted, flexible)
    elif flexible:
        out.append(0 if aborted is None else 1)
    else:
        write_length(out, -1 if aborted is None else 0, flexible)
    if version >= _RACK_SINCE:
        out += _INT32_BYTES(data.preferred_read_replica)
    records = data.records
    length = 0
    if records is not None:
        length = records.size if isinstance(records, FileRegion) else len(records)
    write_length(out, length, flexible)
    return length


def _write_aborted(out: bytearray, aborted: list[AbortedTransaction], flexible: bool) -> None:
    write_length(out, len(aborted), flexible)
    for transaction in aborted:
        out += _ABORTED(transaction.producer_id, transaction.first_offset)
        if flexible:
            out.append(0)


def _write_partition_tags(out: bytearray, data: PartitionData) -> None:
    """Write the tagged fields: the diverging epoch (KIP-595), the new leader (KIP-951), a snapshot to fetch."""
    diverging, leader, snapshot = data.diverging_epoch, data.current_leader, data.snapshot_id
    if diverging is NO_EPOCH_END and leader is NO_LEADER and snapshot is NO_SNAPSHOT:
        out.append(0)
        return
    has_diverging = diverging.epoch != -1 or diverging.end_offset != -1
    has_leader = leader.leader_id != -1 or leader.leader_epoch != -1
    has_snapshot = snapshot.end_offset != -1 or snapshot.epoch != -1
    out.append(has_diverging + has_leader + has_snapshot)
    if has_diverging:
        out += _EPOCH_TAG(0, _EPOCH_TAG_BYTES, diverging.epoch, diverging.end_offset, 0)
    if has_leader:
        write_leader_tag(out, 1, leader)
    if has_snapshot:
        out += _SNAPSHOT_TAG(2, _EPOCH_TAG_BYTES, snapshot.end_offset, snapshot.epoch, 0)
