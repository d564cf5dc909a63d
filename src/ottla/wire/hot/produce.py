"""Reads Produce requests (key 0, versions 3 to 13) without a copy of the records, and writes the responses.

These shapes replace the generated ones on the hot path: one object per topic and per partition holds what the request
asks and what came of it. A partition that was appended is written from a template; only a refused one has a response
object. A topic is identified in the response by the very bytes that identify it in the request.

A partition's `records` is a slice of the receive buffer, valid as long as the buffer is. A test holds both functions
equal, byte for byte and field for field, to the plans in `wire/compiled_codec.py` and to kio.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from ottla.core.errors import UnsupportedVersion
from ottla.wire.compiled_codec import Slices, Slicing
from ottla.wire.errors import MalformedRequest
from ottla.wire.hot.reading import (
    BAD_BYTES,
    SHORT_ELEMENTS_MAX,
    after_tags,
    count_at,
    name_at,
    name_bounds,
    refuse_elements,
    string_at,
    topic_id_at,
)
from ottla.wire.hot.writing import LeaderEndpoint, string_bytes, write_endpoints, write_leader_tag
from ottla.wire.messages.produce import PartitionProduceResponse
from ottla.wire.primitives import length_bytes, read_uvarint, write_length

FIRST: Final = 3
LAST: Final = 13
_LOG_START_SINCE: Final = 5
_ERRORS_SINCE: Final = 8
_FLEXIBLE_SINCE: Final = 9
_LEADER_SINCE: Final = 10
FIRST_WITH_TOPIC_IDS: Final = 13  # in place of topic names (KIP-516)

_AT_ONCE: Final = 100
"""Partitions of a long request that are read or written between two looks at the slice of work."""

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
_NO_TAGS: Final = b"\x00"


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
    """A whole request."""

    __slots__ = ("acks", "timeout_ms", "topics", "transactional_id")

    def __init__(self, transactional_id: str | None, acks: int, timeout_ms: int, topics: list[ProduceTopic]) -> None:
        self.transactional_id = transactional_id
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.topics = topics


def decode_produce_request(frame: memoryview, version: int, at: int = 0) -> ProduceRequest:
    """Decode the request whose body begins at `at`.

    Raises LongRequest if it has more than `SHORT_ELEMENTS_MAX` topics and partitions, MalformedRequest if the bytes are
    anything else.
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
        elements = topic_count
        topics: list[ProduceTopic] = []
        for _ in range(topic_count):
            begins = at
            if version >= FIRST_WITH_TOPIC_IDS:
                at += 16
                if at > len(frame):
                    raise MalformedRequest("an id that ends after the message")
                wire_name, name = bytes(frame[begins:at]), ""
            else:
                name_begins, at = name_bounds(frame, at, flexible)
                wire_name = bytes(frame[begins:at])
                name = wire_name[name_begins - begins :].decode()
            count = frame[at] - 1
            if flexible and 0 <= count < 0x7F:
                at += 1
            else:
                count, at = count_at(frame, at, flexible)
            elements += count
            if elements > SHORT_ELEMENTS_MAX:
                refuse_elements(frame, elements)
            partitions: list[ProducePartition] = []
            at = _read_partitions(frame, at, count, flexible, partitions)
            if flexible:
                at = at + 1 if frame[at] == 0 else after_tags(frame, at, flexible)
            topics.append(ProduceTopic(wire_name, name, partitions))
        if flexible and frame[at] != 0:
            after_tags(frame, at, flexible)
    except BAD_BYTES as error:
        raise MalformedRequest(f"Produce version {version}: {error}") from error
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def decode_produce_slices(frame: memoryview, version: int, at: int, slicing: Slicing) -> Slices[ProduceRequest]:
    """Decode a request of any length, in slices of work and with at most `ELEMENTS_MAX` elements."""
    flexible = version >= _FLEXIBLE_SINCE
    try:
        transactional_id, at = string_at(frame, at, flexible)
        acks, timeout_ms = _HEAD(frame, at)
        topic_count, at = count_at(frame, at + 6, flexible)
        slicing.begin_array(topic_count)
        topics: list[ProduceTopic] = []
        for _ in range(topic_count):
            begins = at
            name = ""
            if version >= FIRST_WITH_TOPIC_IDS:
                _, at = topic_id_at(frame, at)
            else:
                name, at = name_at(frame, at, flexible)
            wire_name = bytes(frame[begins:at])
            count, at = count_at(frame, at, flexible)
            slicing.begin_array(count)
            partitions: list[ProducePartition] = []
            while len(partitions) < count:
                at = _read_partitions(frame, at, min(count - len(partitions), _AT_ONCE), flexible, partitions)
                if slicing.spend_on(_AT_ONCE):
                    yield
            at = after_tags(frame, at, flexible)
            topics.append(ProduceTopic(wire_name, name, partitions))
            if slicing.spend(at - begins if not count else 0):
                yield
        after_tags(frame, at, flexible)
    except BAD_BYTES as error:
        raise MalformedRequest(f"Produce version {version}: {error}") from error
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _read_partitions(frame: memoryview, at: int, count: int, flexible: bool, partitions: list[ProducePartition]) -> int:
    """Read some partitions; returns where what follows them begins."""
    for _ in range(count):
        if flexible:
            index: int = _INT32(frame, at)[0]
            length, at = read_uvarint(frame, at + 4)
            length -= 1
        else:
            index, length = _INDEX_AND_LENGTH(frame, at)
            at += 8
        records: memoryview | None = None
        if length >= 0:
            end = at + length
            if end > len(frame):
                raise MalformedRequest(f"{length} bytes of records with {len(frame) - at} left")
            records = frame[at:end]
            at = end
        elif length != -1:
            raise MalformedRequest(f"{length} bytes of records")
        if flexible:
            at = at + 1 if frame[at] == 0 else after_tags(frame, at, flexible)
        partitions.append(ProducePartition(index, records))
    return at


def encode_produce_response(
    topics: Sequence[ProduceTopic],
    version: int,
    correlation_id: int,
    *,
    throttle_time_ms: int = 0,
    endpoints: Sequence[LeaderEndpoint] = (),
) -> bytes:
    """Encode the response's whole frame, with length and header; fields that the version lacks are left out."""
    if not FIRST <= version <= LAST:
        raise UnsupportedVersion(f"no Produce version {version}")
    flexible = version >= _FLEXIBLE_SINCE
    body = [length_bytes(len(topics), flexible)]
    for topic in topics:
        body.append(topic.wire_name)
        body.append(length_bytes(len(topic.partitions), flexible))
        for part in topic.partitions:
            if part.failure is not None:
                body.append(_failure_bytes(part.failure, version, flexible))
                continue
            index, offset, time_ms, start = (
                part.index,
                part.base_offset,
                part.log_append_time_ms,
                part.log_start_offset,
            )
            if flexible:
                body.append(_PARTITION_9(index, 0, offset, time_ms, start, 1, 0, 0))
            elif version >= _ERRORS_SINCE:
                body.append(_PARTITION_8(index, 0, offset, time_ms, start, 0, -1))
            elif version >= _LOG_START_SINCE:
                body.append(_PARTITION_5(index, 0, offset, time_ms, start))
            else:
                body.append(_PARTITION_3(index, 0, offset, time_ms))
        if flexible:
            body.append(_NO_TAGS)
    body.append(_INT32_BYTES(throttle_time_ms))
    if version >= _LEADER_SINCE and endpoints:
        tags = bytearray()
        write_endpoints(tags, endpoints)
        body.append(bytes(tags))
    elif flexible:
        body.append(_NO_TAGS)
    joined = b"".join(body)
    if flexible:
        return _RESPONSE_HEADER_WITH_TAGS(len(joined) + 5, correlation_id, 0) + joined
    return _RESPONSE_HEADER(len(joined) + 4, correlation_id) + joined


def encode_produce_slices(
    topics: Sequence[ProduceTopic],
    version: int,
    correlation_id: int,
    slicing: Slicing,
    *,
    endpoints: Sequence[LeaderEndpoint] = (),
) -> Slices[bytearray]:
    """Encode a response in slices of work: some partitions at a time are cut out of a response that has only them."""
    flexible = version >= _FLEXIBLE_SINCE
    header = _RESPONSE_HEADER_WITH_TAGS(0, correlation_id, 0) if flexible else _RESPONSE_HEADER(0, correlation_id)
    before = len(header) + (2 if flexible else 8)  # with the lengths of two arrays
    after = 6 if flexible else 4  # throttle time, and the tags of the topic and of the response
    out = bytearray(header)
    write_length(out, len(topics), flexible)
    for topic in topics:
        out += topic.wire_name
        write_length(out, len(topic.partitions), flexible)
        for first in range(0, len(topic.partitions), _AT_ONCE):
            few = ProduceTopic(b"", "", topic.partitions[first : first + _AT_ONCE])
            response = encode_produce_response((few,), version, 0)
            out += response[before : len(response) - after]
            if slicing.spend_on(_AT_ONCE):
                yield
        if flexible:
            out.append(0)
        if slicing.spend(0):
            yield
    out += _INT32_BYTES(0)  # throttle time
    if version >= _LEADER_SINCE:
        write_endpoints(out, endpoints)
    elif flexible:
        out.append(0)
    _INT32_INTO(out, 0, len(out) - 4)
    return out


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
