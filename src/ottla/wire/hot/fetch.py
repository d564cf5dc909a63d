"""Fetch (key 1), versions 4 to 18, by hand: the answer is a list of parts, and file regions among them are not read.

What stands in a partition's `records` goes out as it is: small bytes are joined with what surrounds them, large bytes
and regions (`wire/region.py`) are parts of their own, which the connection writes or sends from the file. Null records
go out as empty ones: several clients take a null for an error. A test holds both functions equal, byte for byte and
field for field, to the plans in `wire/plan.py` and to kio.
"""

from __future__ import annotations

import struct

from ottla.core.errors import UnsupportedVersion
from ottla.core.ids import NO_TOPIC_ID
from ottla.wire.errors import MalformedRequest
from ottla.wire.hot.reading import BAD_BYTES, after_tags, count_at, name_at, string_at, uuid_at
from ottla.wire.hot.writing import string_bytes, write_endpoints, write_leader_tag
from ottla.wire.messages.fetch import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from ottla.wire.plan import skip_tags
from ottla.wire.primitives import read_uvarint, write_length
from ottla.wire.region import RecordBytes

FIRST, LAST = 4, 18
_LOG_START_SINCE = 5
_SESSION_SINCE = 7
_LEADER_EPOCH_SINCE = 9
_RACK_SINCE = 11
_FLEXIBLE_SINCE = 12
_TOPIC_ID_SINCE = 13
_REPLICA_STATE_SINCE = 15
_ENDPOINTS_SINCE = 16
_DIRECTORY_SINCE = 17
_HIGH_WATERMARK_SINCE = 18

JOIN_BYTES_MAX = 4096
"""Up to this size a copy of the records costs less than another part to write."""

_INT32 = struct.Struct(">i").unpack_from
_INT64 = struct.Struct(">q").unpack_from
_LIMITS = struct.Struct(">iiib").unpack_from  # max wait, min bytes, max bytes, isolation level
_SESSION = struct.Struct(">ii").unpack_from
_REPLICA_STATE = struct.Struct(">iqB").unpack_from
_PARTITION_4 = struct.Struct(">iqi").unpack_from  # partition, offset, max bytes
_PARTITION_5 = struct.Struct(">iqqi").unpack_from  # and log start before the last
_PARTITION_9 = struct.Struct(">iiqqi").unpack_from  # and leader epoch after the first
_PARTITION_12 = struct.Struct(">iiqiqi").unpack_from  # and last fetched epoch after the offset

_INT32_BYTES = struct.Struct(">i").pack
_HEAD_7 = struct.Struct(">ihi").pack  # throttle time, error, session
_DATA_4 = struct.Struct(">ihqq").pack  # partition, error, high watermark, last stable offset
_DATA_5 = struct.Struct(">ihqqq").pack  # and log start
_ABORTED = struct.Struct(">qq").pack
_EPOCH_TAG = struct.Struct(">BBiqB").pack  # tag 0: size, epoch, end offset, no tags inside
_SNAPSHOT_TAG = struct.Struct(">BBqiB").pack  # tag 2: size, end offset, epoch, no tags inside
_EPOCH_TAG_BYTES = 13


def decode_fetch_request(body: memoryview, version: int) -> FetchRequest:
    """The request in `body`; MalformedRequest if it holds anything else."""
    if not FIRST <= version <= LAST:
        raise UnsupportedVersion(f"no Fetch version {version}")
    flexible = version >= _FLEXIBLE_SINCE
    request = FetchRequest()
    try:
        at = 0
        if version < _REPLICA_STATE_SINCE:
            (request.replica_id,) = _INT32(body)
            at = 4
        request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level = _LIMITS(body, at)
        at += 13
        if version >= _SESSION_SINCE:
            request.session_id, request.session_epoch = _SESSION(body, at)
            at += 8
        count, at = count_at(body, at, flexible)
        for _ in range(count):
            topic, at = _topic_at(body, at, version, flexible)
            request.topics.append(topic)
        if version >= _SESSION_SINCE:
            count, at = count_at(body, at, flexible)
            for _ in range(count):
                forgotten, at = _forgotten_at(body, at, version, flexible)
                request.forgotten_topics_data.append(forgotten)
        if version >= _RACK_SINCE:
            request.rack_id, at = name_at(body, at, flexible)
        if flexible:
            at = _request_tags(body, at, version, request)
    except BAD_BYTES as error:
        raise MalformedRequest(f"Fetch version {version}: {error}") from error
    return request


def _topic_at(body: memoryview, at: int, version: int, flexible: bool) -> tuple[FetchTopic, int]:
    topic_id, name = NO_TOPIC_ID, ""
    if version >= _TOPIC_ID_SINCE:
        topic_id, at = uuid_at(body, at)
    else:
        name, at = name_at(body, at, flexible)
    count, at = count_at(body, at, flexible)
    partitions = []
    read_partition = _flexible_partition_at if flexible else _partition_at
    for _ in range(count):
        partition, at = read_partition(body, at, version)
        partitions.append(partition)
    return FetchTopic(topic_id=topic_id, topic=name, partitions=partitions), after_tags(body, at, flexible)


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
    shape = FetchPartition(
        partition=partition,
        current_leader_epoch=epoch,
        fetch_offset=offset,
        log_start_offset=log_start,
        partition_max_bytes=max_bytes,
    )
    return shape, at


def _flexible_partition_at(body: memoryview, at: int, version: int) -> tuple[FetchPartition, int]:
    partition, epoch, offset, last_epoch, log_start, max_bytes = _PARTITION_12(body, at)
    shape = FetchPartition(
        partition=partition,
        current_leader_epoch=epoch,
        fetch_offset=offset,
        last_fetched_epoch=last_epoch,
        log_start_offset=log_start,
        partition_max_bytes=max_bytes,
    )
    at += 32
    if body[at] == 0:
        return shape, at + 1
    if version < _DIRECTORY_SINCE:
        return shape, skip_tags(body, at)
    return shape, _partition_tags(body, at, version, shape)


def _tag_at(body: memoryview, at: int) -> tuple[int, int, int]:
    """A tagged field's number, and where its value begins and ends."""
    tag, at = read_uvarint(body, at)
    size, at = read_uvarint(body, at)
    if at + size > len(body):
        raise MalformedRequest(f"a tagged field of {size} bytes ends after the message")
    return tag, at, at + size


def _partition_tags(body: memoryview, at: int, version: int, shape: FetchPartition) -> int:
    """A follower's tags: its directory (KIP-858) and the high watermark it knows (KIP-1166)."""
    count, at = read_uvarint(body, at)
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


def _request_tags(body: memoryview, at: int, version: int, request: FetchRequest) -> int:
    """The cluster's id (tag 0) and, from version 15 on, who the follower is (tag 1)."""
    count, at = read_uvarint(body, at)
    for _ in range(count):
        tag, start, at = _tag_at(body, at)
        end = at
        if tag == 0:
            request.cluster_id, end = string_at(body, start, flexible=True)
        elif tag == 1 and version >= _REPLICA_STATE_SINCE:
            replica_id, replica_epoch, _ = _REPLICA_STATE(body, start)
            request.replica_state = ReplicaState(replica_id=replica_id, replica_epoch=replica_epoch)
            end = skip_tags(body, start + 12)
        if end != at:
            raise MalformedRequest(f"tagged field {tag} does not fill its {at - start} bytes")
    return at


def _forgotten_at(body: memoryview, at: int, version: int, flexible: bool) -> tuple[ForgottenTopic, int]:
    forgotten = ForgottenTopic()
    if version >= _TOPIC_ID_SINCE:
        forgotten.topic_id, at = uuid_at(body, at)
    else:
        forgotten.topic, at = name_at(body, at, flexible)
    count, at = count_at(body, at, flexible)
    end = at + 4 * count
    if end > len(body):
        raise MalformedRequest(f"an array of {count} partitions in {len(body) - at} bytes")
    forgotten.partitions = list(struct.unpack_from(f">{count}i", body, at))
    return forgotten, after_tags(body, end, flexible)


def encode_fetch_response(response: FetchResponse, version: int) -> list[RecordBytes]:
    """The body of the answer in parts, in order; fields that the version lacks are left out."""
    if not FIRST <= version <= LAST:
        raise UnsupportedVersion(f"no Fetch version {version}")
    flexible = version >= _FLEXIBLE_SINCE
    parts: list[RecordBytes] = []
    out = bytearray()
    if version >= _SESSION_SINCE:
        out += _HEAD_7(response.throttle_time_ms, response.error_code, response.session_id)
    else:
        out += _INT32_BYTES(response.throttle_time_ms)
    write_length(out, len(response.responses), flexible)
    for topic in response.responses:
        out += topic.topic_id.bytes if version >= _TOPIC_ID_SINCE else string_bytes(topic.topic, flexible)
        write_length(out, len(topic.partitions), flexible)
        for partition in topic.partitions:
            _write_head(out, partition, version, flexible)
            out = _write_records(parts, out, partition.records, flexible)
            if flexible:
                _write_partition_tags(out, partition)
        if flexible:
            out.append(0)
    if version >= _ENDPOINTS_SINCE:
        write_endpoints(out, response.node_endpoints)
    elif flexible:
        out.append(0)
    if out:
        parts.append(out)
    return parts


def _write_head(out: bytearray, data: PartitionData, version: int, flexible: bool) -> None:
    """All of a partition's answer that stands before its records."""
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
    else:
        write_length(out, -1 if aborted is None else 0, flexible)
    if version >= _RACK_SINCE:
        out += _INT32_BYTES(data.preferred_read_replica)


def _write_aborted(out: bytearray, aborted: list[AbortedTransaction], flexible: bool) -> None:
    write_length(out, len(aborted), flexible)
    for transaction in aborted:
        out += _ABORTED(transaction.producer_id, transaction.first_offset)
        if flexible:
            out.append(0)


def _write_records(parts: list[RecordBytes], out: bytearray, records: RecordBytes | None, flexible: bool) -> bytearray:
    """The records' length, then the records: joined if small, else as a part. Returns what to write on into."""
    if records is None:
        write_length(out, 0, flexible)
        return out
    if isinstance(records, (bytes, bytearray, memoryview)):
        write_length(out, len(records), flexible)
        if len(records) <= JOIN_BYTES_MAX:
            out += records
            return out
    else:
        write_length(out, records.size, flexible)
        if records.size == 0:
            return out
    parts += (out, records)
    return bytearray()


def _write_partition_tags(out: bytearray, data: PartitionData) -> None:
    """Where a follower's log parts from ours (KIP-595), the new leader (KIP-951), a snapshot to fetch."""
    diverging, leader, snapshot = data.diverging_epoch, data.current_leader, data.snapshot_id
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
