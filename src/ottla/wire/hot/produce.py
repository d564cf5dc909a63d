"""Produce (key 0), versions 3 to 13, by hand: the request is read without a copy of the records.

A partition's `records` is a slice of the receive buffer, valid as long as the buffer is. A test holds both functions
equal, byte for byte and field for field, to the plans in `wire/plan.py` and to kio.
"""

from __future__ import annotations

import struct

from ottla.core.errors import UnsupportedVersion
from ottla.core.ids import NO_TOPIC_ID
from ottla.wire.errors import MalformedRequest
from ottla.wire.hot.reading import BAD_BYTES, after_tags, count_at, name_at, string_at, uuid_at
from ottla.wire.hot.writing import string_bytes, write_endpoints, write_leader_tag
from ottla.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.wire.primitives import read_uvarint, write_length

FIRST, LAST = 3, 13
_LOG_START_SINCE = 5
_ERRORS_SINCE = 8
_FLEXIBLE_SINCE = 9
_LEADER_SINCE = 10
_TOPIC_ID_SINCE = 13

_HEAD = struct.Struct(">hi").unpack_from  # acks, timeout
_INT32 = struct.Struct(">i").unpack_from
_INDEX_AND_LENGTH = struct.Struct(">ii").unpack_from
_PARTITION = struct.Struct(">ihqq").pack  # index, error, base offset, log append time
_PARTITION_WITH_START = struct.Struct(">ihqqq").pack
_INT32_BYTES = struct.Struct(">i").pack


def decode_produce_request(body: memoryview, version: int) -> ProduceRequest:
    """The request in `body`; MalformedRequest if it holds anything else."""
    if not FIRST <= version <= LAST:
        raise UnsupportedVersion(f"no Produce version {version}")
    flexible = version >= _FLEXIBLE_SINCE
    try:
        transactional_id, at = string_at(body, 0, flexible)
        acks, timeout_ms = _HEAD(body, at)
        topic_count, at = count_at(body, at + 6, flexible)
        topics = []
        for _ in range(topic_count):
            topic, at = _topic_at(body, at, version, flexible)
            topics.append(topic)
        at = after_tags(body, at, flexible)
    except BAD_BYTES as error:
        raise MalformedRequest(f"Produce version {version}: {error}") from error
    return ProduceRequest(transactional_id=transactional_id, acks=acks, timeout_ms=timeout_ms, topic_data=topics)


def _topic_at(body: memoryview, at: int, version: int, flexible: bool) -> tuple[TopicProduceData, int]:
    topic_id, name = NO_TOPIC_ID, ""
    if version >= _TOPIC_ID_SINCE:
        topic_id, at = uuid_at(body, at)
    else:
        name, at = name_at(body, at, flexible)
    count, at = count_at(body, at, flexible)
    partitions = []
    read_partition = _flexible_partition_at if flexible else _partition_at
    for _ in range(count):
        partition, at = read_partition(body, at)
        partitions.append(partition)
    return TopicProduceData(topic_id=topic_id, name=name, partition_data=partitions), after_tags(body, at, flexible)


def _partition_at(body: memoryview, at: int) -> tuple[PartitionProduceData, int]:
    index, length = _INDEX_AND_LENGTH(body, at)
    at += 8
    return PartitionProduceData(index=index, records=_records(body, at, length)), at + max(length, 0)


def _flexible_partition_at(body: memoryview, at: int) -> tuple[PartitionProduceData, int]:
    (index,) = _INT32(body, at)
    length, at = read_uvarint(body, at + 4)
    length -= 1
    partition = PartitionProduceData(index=index, records=_records(body, at, length))
    at += max(length, 0)
    return partition, at + 1 if body[at] == 0 else after_tags(body, at, flexible=True)


def _records(body: memoryview, at: int, length: int) -> memoryview | None:
    end = at + length
    if length < 0:
        if length != -1:
            raise MalformedRequest(f"{length} bytes of records")
        return None
    if end > len(body):
        raise MalformedRequest(f"{length} bytes of records with {len(body) - at} left")
    return body[at:end]


def encode_produce_response(response: ProduceResponse, version: int) -> bytes:
    """The body of the answer; fields that the version lacks are left out."""
    if not FIRST <= version <= LAST:
        raise UnsupportedVersion(f"no Produce version {version}")
    flexible = version >= _FLEXIBLE_SINCE
    out = bytearray()
    write_length(out, len(response.responses), flexible)
    for topic in response.responses:
        out += topic.topic_id.bytes if version >= _TOPIC_ID_SINCE else string_bytes(topic.name, flexible)
        write_length(out, len(topic.partition_responses), flexible)
        for partition in topic.partition_responses:
            _write_partition(out, partition, version, flexible)
        if flexible:
            out.append(0)
    out += _INT32_BYTES(response.throttle_time_ms)
    if version >= _LEADER_SINCE:
        write_endpoints(out, response.node_endpoints)
    elif flexible:
        out.append(0)
    return bytes(out)


def _write_partition(out: bytearray, partition: PartitionProduceResponse, version: int, flexible: bool) -> None:
    base_offset, append_time_ms = partition.base_offset, partition.log_append_time_ms
    if version < _LOG_START_SINCE:
        out += _PARTITION(partition.index, partition.error_code, base_offset, append_time_ms)
        return
    start = partition.log_start_offset
    out += _PARTITION_WITH_START(partition.index, partition.error_code, base_offset, append_time_ms, start)
    if version < _ERRORS_SINCE:
        return
    write_length(out, len(partition.record_errors), flexible)
    for record_error in partition.record_errors:
        out += _INT32_BYTES(record_error.batch_index)
        out += string_bytes(record_error.batch_index_error_message, flexible)
        if flexible:
            out.append(0)
    out += string_bytes(partition.error_message, flexible)
    if version < _LEADER_SINCE:
        if flexible:
            out.append(0)
        return
    leader = partition.current_leader
    if leader.leader_id == -1 and leader.leader_epoch == -1:
        out.append(0)
    else:
        out.append(1)
        write_leader_tag(out, 0, leader)
