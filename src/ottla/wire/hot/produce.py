"""Reads Produce requests (key 0, versions 3 to 13) without a copy of the records, and writes the responses.

These shapes replace the generated ones on the hot path: one object per topic and per partition holds what the request
asks and what came of it. A partition that was appended is written from a template; only a refused one has a response
object. A topic is identified in the response by the very bytes that identify it in the request.

A partition's `records` is a slice of the receive buffer, valid as long as the buffer is. A test holds both functions
equal, byte for byte and field for field, to the plans in `wire/compiled_codec.py` and to kio.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from ottla.core.errors import UnsupportedVersion
from ottla.wire.compiled_codec import ELEMENTS_MAX
from ottla.wire.errors import MalformedRequest
from ottla.wire.generated.produce import PartitionProduceResponse
from ottla.wire.hot.reading import (
    AT_ONCE,
    BAD_BYTES,
    SHORT_ELEMENTS_MAX,
    after_tags,
    count_at,
    name_bounds,
    refuse_elements,
    string_at,
)
from ottla.wire.hot.writing import LeaderEndpoint, string_bytes, write_endpoints, write_leader_tag
from ottla.wire.primitives import read_uvarint, write_length

FIRST: Final = 3
LAST: Final = 13
_LOG_START_SINCE: Final = 5
_ERRORS_SINCE: Final = 8
_FLEXIBLE_SINCE: Final = 9
_LEADER_SINCE: Final = 10
FIRST_WITH_TOPIC_IDS: Final = 13  # in place of topic names (KIP-516)

_HEAD: Final = struct.Struct(">hi").unpack_from  # acks, timeout
_INT32: Final = struct.Struct(">i").unpack_from
_INDEX_AND_LENGTH: Final = struct.Struct(">ii").unpack_from
_RESPONSE_HEADER: Final = struct.Struct(">ii").pack  # length of the frame, correlation id
_RESPONSE_HEADER_WITH_TAGS: Final = struct.Struct(">iiB").pack
_INT32_INTO: Final = struct.Struct(">i").pack_into
_INT32_BYTES: Final = struct.Struct(">i").pack
# A partition: index, error, base offset, log append time, log start; then no record errors, no message, no tags.
_PARTITION_3: Final = struct.Struct(">ihqq").pack
_PARTITION_5: Final = struct.Struct(">ihqqq").pack
_PARTITION_8: Final = struct.Struct(">ihqqqih").pack
_PARTITION_9: Final = struct.Struct(">ihqqqBBB").pack
# The response to a request for one partition, but for what identifies the topic: its header and the number of topics;
# the number of partitions, the partition, no tags of the topic, the throttle time, no tags.
_ONE_HEAD: Final = struct.Struct(">iiBB").pack
_ONE_TAIL: Final = struct.Struct(">BihqqqBBBBiB").pack
_ONE_BYTES: Final = len(_ONE_HEAD(0, 0, 0, 0)) + len(_ONE_TAIL(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)) - 4


class ProducePartition:
    """One partition of a request and its outcome."""

    __slots__ = ("base_offset", "failure", "index", "is_awaited", "log_append_time_ms", "log_start_offset", "records")

    def __init__(self, index: int, records: memoryview | None) -> None:
        self.index = index
        self.records = records
        self.base_offset = -1
        self.log_append_time_ms = -1
        self.log_start_offset = -1
        self.is_awaited = False  # appended, and still to be replicated
        self.failure: PartitionProduceResponse | None = None


class ProduceTopic:
    """One topic of a request."""

    __slots__ = ("name", "partitions", "wire_name")

    def __init__(self, wire_name: bytes, name: str, partitions: list[ProducePartition]) -> None:
        self.wire_name = wire_name  # from version 13 on the topic's id, before it the name with its length
        self.name = name  # empty from version 13 on
        self.partitions = partitions


class ProduceRequest:
    """A request, and how much of it has been read."""

    __slots__ = (
        "acks",
        "elements",
        "elements_max",
        "partitions_left",
        "position",
        "timeout_ms",
        "topics",
        "topics_left",
        "transactional_id",
    )

    def __init__(self, transactional_id: str | None, acks: int, timeout_ms: int, topics_left: int = 0) -> None:
        self.transactional_id = transactional_id
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.topics: list[ProduceTopic] = []
        self.topics_left = self.elements = topics_left  # to be read; announced so far, with the partitions
        self.partitions_left = 0  # of the last topic
        self.elements_max = SHORT_ELEMENTS_MAX
        self.position = 0  # in the frame, of what is to be read next


def decode_produce_request(frame: memoryview, version: int, at: int = 0, *, is_long: bool = False) -> ProduceRequest:
    """Decode the request whose body begins at `at`.

    Raises LongRequest if it has more than `SHORT_ELEMENTS_MAX` topics and partitions, MalformedRequest if the bytes are
    anything else. With `is_long` the topics are left to `read_topics`, which reads some of them at a time.
    """
    if not FIRST <= version <= LAST:
        raise UnsupportedVersion(f"no Produce version {version}")
    flexible = version >= _FLEXIBLE_SINCE
    try:
        transactional_id: str | None = None
        if flexible and frame[at] == 0:
            at += 1
        else:
            transactional_id, at = string_at(frame, at, flexible)
        acks, timeout_ms = _HEAD(frame, at)
        at += 6
        topic_count = frame[at] - 1  # one byte, as almost always
        if flexible and 0 <= topic_count < 0x7F:
            at += 1
        else:
            topic_count, at = count_at(frame, at, flexible)
    except BAD_BYTES as error:
        raise MalformedRequest(f"Produce version {version}: {error}") from error
    request = ProduceRequest(transactional_id, acks, timeout_ms, topic_count)
    request.position = at
    if is_long:
        request.elements_max = ELEMENTS_MAX
    else:
        read_topics(frame, version, request, SHORT_ELEMENTS_MAX)
    return request


def read_topics(frame: memoryview, version: int, request: ProduceRequest, elements_max: int) -> bool:
    """Read so many topics and partitions of a request, or fewer; returns whether all are read.

    Raises what `decode_produce_request` does.
    """
    flexible = version >= _FLEXIBLE_SINCE
    at, left = request.position, elements_max
    try:
        while request.topics_left and left > 0:
            if not request.partitions_left:
                begins, name = at, ""
                if version >= FIRST_WITH_TOPIC_IDS:
                    at += 16
                else:
                    name_begins, at = name_bounds(frame, at, flexible)
                    name = str(frame[name_begins:at], "utf-8")
                request.topics.append(ProduceTopic(bytes(frame[begins:at]), name, []))
                count = frame[at] - 1
                if flexible and 0 <= count < 0x7F:
                    at += 1
                else:
                    count, at = count_at(frame, at, flexible)
                request.partitions_left = count
                request.elements += count
                if request.elements > request.elements_max:
                    refuse_elements(frame, request.elements)
            partitions = request.topics[-1].partitions
            few = min(request.partitions_left, left)
            for _ in range(few):
                if flexible:
                    index: int = _INT32(frame, at)[0]
                    length, at = read_uvarint(frame, at + 4)
                    length -= 1
                else:
                    index, length = _INDEX_AND_LENGTH(frame, at)
                    at += 8
                end = at + max(length, 0)
                if length < -1 or end > len(frame):
                    raise MalformedRequest(f"{length} bytes of records with {len(frame) - at} left")
                partitions.append(ProducePartition(index, None if length < 0 else frame[at:end]))
                at = end
                if flexible:
                    at = at + 1 if frame[at] == 0 else after_tags(frame, at, flexible)
            request.partitions_left -= few
            left -= few + 1
            if not request.partitions_left:
                request.topics_left -= 1
                if flexible:
                    at = at + 1 if frame[at] == 0 else after_tags(frame, at, flexible)
        if flexible and not request.topics_left and frame[at] != 0:
            after_tags(frame, at, flexible)
    except BAD_BYTES as error:
        raise MalformedRequest(f"Produce version {version}: {error}") from error
    request.position = at
    return not request.topics_left


def in_chunks(topics: Sequence[ProduceTopic], at_once: int) -> Iterator[list[ProduceTopic]]:
    """Yield the topics of a long request, so many topics and partitions at a time; a topic may be cut."""
    chunk: list[ProduceTopic] = []
    size = 0
    for topic in topics:
        partitions = topic.partitions
        for first in range(0, max(len(partitions), 1), at_once):
            part = topic
            if len(partitions) > at_once:
                part = ProduceTopic(topic.wire_name, topic.name, partitions[first : first + at_once])
            chunk.append(part)
            size += 1 + len(part.partitions)
            if size >= at_once:
                yield chunk
                chunk, size = [], 0
    if chunk:
        yield chunk


def encode_produce_response(
    topics: Sequence[ProduceTopic],
    version: int,
    correlation_id: int,
    *,
    throttle_time_ms: int = 0,
    endpoints: Sequence[LeaderEndpoint] = (),
) -> bytes | bytearray:
    """Encode the response's whole frame, as `write_produce_response` writes it."""
    if len(topics) == 1 and len(topics[0].partitions) == 1 and version >= _FLEXIBLE_SINCE and not endpoints:
        wire_name, part = topics[0].wire_name, topics[0].partitions[0]
        if part.failure is None:  # as almost always
            head = _ONE_HEAD(_ONE_BYTES + len(wire_name), correlation_id, 0, 2)
            offset, time_ms, start = part.base_offset, part.log_append_time_ms, part.log_start_offset
            tail = _ONE_TAIL(2, part.index, 0, offset, time_ms, start, 1, 0, 0, 0, throttle_time_ms, 0)
            return head + wire_name + tail
    out = bytearray()
    for _ in write_produce_response(
        out, topics, version, correlation_id, throttle_time_ms=throttle_time_ms, endpoints=endpoints
    ):
        pass
    return out


def write_produce_response(
    out: bytearray,
    topics: Sequence[ProduceTopic],
    version: int,
    correlation_id: int,
    *,
    throttle_time_ms: int = 0,
    endpoints: Sequence[LeaderEndpoint] = (),
) -> Iterator[None]:
    """Write the response's whole frame to `out`, with length and header; fields that the version lacks are left out.

    Yields after each `AT_ONCE` topics and partitions, so that the loop may turn while a long one is written.
    """
    if not FIRST <= version <= LAST:
        raise UnsupportedVersion(f"no Produce version {version}")
    flexible = version >= _FLEXIBLE_SINCE
    out += _RESPONSE_HEADER_WITH_TAGS(0, correlation_id, 0) if flexible else _RESPONSE_HEADER(0, correlation_id)
    written = 0
    if flexible and len(topics) < 0x7F:  # one byte, as almost always
        out.append(len(topics) + 1)
    else:
        write_length(out, len(topics), flexible)
    for topic in topics:
        out += topic.wire_name
        if flexible and len(topic.partitions) < 0x7F:
            out.append(len(topic.partitions) + 1)
        else:
            write_length(out, len(topic.partitions), flexible)
        for part in topic.partitions:
            index, offset, start = part.index, part.base_offset, part.log_start_offset
            time_ms = part.log_append_time_ms
            if part.failure is not None:
                out += _failure_bytes(part.failure, version, flexible)
            elif flexible:
                out += _PARTITION_9(index, 0, offset, time_ms, start, 1, 0, 0)
            elif version >= _ERRORS_SINCE:
                out += _PARTITION_8(index, 0, offset, time_ms, start, 0, -1)
            elif version >= _LOG_START_SINCE:
                out += _PARTITION_5(index, 0, offset, time_ms, start)
            else:
                out += _PARTITION_3(index, 0, offset, time_ms)
            written += 1
            if not written % AT_ONCE:
                yield
        if flexible:
            out.append(0)
        written += 1
        if not written % AT_ONCE:
            yield
    out += _INT32_BYTES(throttle_time_ms)
    if version >= _LEADER_SINCE and endpoints:
        write_endpoints(out, endpoints)
    elif flexible:
        out.append(0)
    _INT32_INTO(out, 0, len(out) - 4)


def _failure_bytes(failure: PartitionProduceResponse, version: int, flexible: bool) -> bytes:
    """Encode a partition with an error, or with any field that the template of a successful one lacks."""
    index, error_code = failure.index, failure.error_code
    base_offset, append_time_ms = failure.base_offset, failure.log_append_time_ms
    if version < _LOG_START_SINCE:
        return _PARTITION_3(index, error_code, base_offset, append_time_ms)
    out = bytearray(_PARTITION_5(index, error_code, base_offset, append_time_ms, failure.log_start_offset))
    if version < _ERRORS_SINCE:
        return bytes(out)
    write_length(out, len(failure.record_errors), flexible)
    for record_error in failure.record_errors:
        out += _INT32_BYTES(record_error.batch_index)
        out += string_bytes(record_error.batch_index_error_message, flexible)
        if flexible:
            out.append(0)
    out += string_bytes(failure.error_message, flexible)
    if not flexible:
        return bytes(out)
    leader = failure.current_leader
    if version < _LEADER_SINCE or (leader.leader_id == -1 and leader.leader_epoch == -1):
        out.append(0)
    else:
        out.append(1)
        write_leader_tag(out, 0, leader)
    return bytes(out)
