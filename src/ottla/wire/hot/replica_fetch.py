"""Writes the Fetch requests of followers (version 18) and reads the responses. Records are left where they arrived.

A follower sends one request after the other on one connection, and each differs from the one before it in a few bytes.
So a request is written from its parts, and a response is read into one small object for each partition. A test holds
both functions equal to the plans in `wire/compiled_codec.py`.
"""

from __future__ import annotations

import struct
from typing import Final

from ottla.wire.apis import ApiKey
from ottla.wire.compiled_codec import tag_count
from ottla.wire.errors import MalformedRequest
from ottla.wire.headers import encode_request_header
from ottla.wire.hot.reading import BAD_BYTES, TAGS_MAX, after_tags, count_at
from ottla.wire.primitives import read_uvarint, write_length

VERSION: Final = 18
"""All brokers serve it; the response has topic ids and where epochs diverge."""

_CORRELATION_AT: Final = 8  # in the frame: after its length, API key and version
_INT32: Final = struct.Struct(">i").unpack_from
_INT32_INTO: Final = struct.Struct(">i").pack_into
_INT32_BYTES: Final = struct.Struct(">i").pack
_LIMITS: Final = struct.Struct(">iiib").pack  # max wait, min bytes, max bytes, isolation level
_SESSION: Final = struct.Struct(">ii").pack
_PARTITION: Final = struct.Struct(">iiqiqiBBBq").pack  # the fields, and one tag: number 1, 8 bytes, the high watermark
_TAIL: Final = struct.Struct(">BBBBiqB").pack  # an empty rack; one tag: number 1, 13 bytes; replica, its epoch, no tags
_RESPONSE_HEAD: Final = struct.Struct(">iBihi").unpack_from  # correlation id, no tags, throttle time, error, session
_DATA: Final = struct.Struct(">ihqqq").unpack_from  # partition, error, high watermark, last stable offset, log start
_EPOCH_END: Final = struct.Struct(">iq").unpack_from
_ABORTED_BYTES: Final = 16
_DATA_BYTES: Final = 30


class FetchRequestWriter:
    """Writes the requests of one connection. Topics are 16 raw bytes each."""

    __slots__ = ("_before_session", "_count", "_forgotten", "_replica", "_topics")

    def __init__(self, client_id: str, replica_id: int, *, max_wait_ms: int, min_bytes: int, max_bytes: int) -> None:
        header = encode_request_header(ApiKey.FETCH, VERSION, 0, client_id)
        self._before_session = bytes(4) + bytes(header) + _LIMITS(max_wait_ms, min_bytes, max_bytes, 0)
        self._replica = replica_id
        self._topics: dict[bytes, bytearray] = {}  # the partitions named of each
        self._forgotten: dict[bytes, bytearray] = {}
        self._count = 0

    def name(
        self,
        topic_id: bytes,
        partition: int,
        *,
        leader_epoch: int,
        fetch_offset: int,
        last_fetched_epoch: int,
        log_start: int,
        max_bytes: int,
        high_watermark: int,
    ) -> None:
        """Name a partition in the next request."""
        written = _PARTITION(
            partition, leader_epoch, fetch_offset, last_fetched_epoch, log_start, max_bytes, 1, 1, 8, high_watermark
        )
        self._count += 1
        partitions = self._topics.get(topic_id)
        if partitions is None:
            self._topics[topic_id] = bytearray(written)
        else:
            partitions += written

    def forget(self, topic_id: bytes, partition: int) -> None:
        """Remove a partition from the session with the next request."""
        self._count += 1
        partitions = self._forgotten.get(topic_id)
        if partitions is None:
            self._forgotten[topic_id] = bytearray(_INT32_BYTES(partition))
        else:
            partitions += _INT32_BYTES(partition)

    @property
    def is_empty(self) -> bool:
        """Return whether the next request names nothing new."""
        return not self._count

    def discard(self) -> None:
        """Begin again: the next request is not sent."""
        self._topics, self._forgotten, self._count = {}, {}, 0

    def frame(self, correlation_id: int, session_id: int, session_epoch: int, replica_epoch: int) -> bytearray:
        """Return the whole request, with its length; the next one is empty again."""
        out = bytearray(self._before_session)
        out += _SESSION(session_id, session_epoch)
        write_length(out, len(self._topics), flexible=True)
        for topic_id, partitions in self._topics.items():
            out += topic_id
            write_length(out, len(partitions) // _PARTITION_BYTES, flexible=True)
            out += partitions
            out.append(0)
        write_length(out, len(self._forgotten), flexible=True)
        for topic_id, partitions in self._forgotten.items():
            out += topic_id
            write_length(out, len(partitions) // 4, flexible=True)
            out += partitions
            out.append(0)
        out += _TAIL(1, 1, 1, 13, self._replica, replica_epoch, 0)
        _INT32_INTO(out, 0, len(out) - 4)
        _INT32_INTO(out, _CORRELATION_AT, correlation_id)
        if self._count:
            self.discard()
        return out


_PARTITION_BYTES: Final = len(_PARTITION(0, 0, 0, 0, 0, 0, 0, 0, 0, 0))


class FetchedData:
    """One partition of a response."""

    __slots__ = (
        "diverging_end",
        "diverging_epoch",
        "error_code",
        "high_watermark",
        "log_start",
        "partition",
        "records",
        "topic_id",
    )

    def __init__(self, topic_id: bytes, partition: int, error_code: int, high_watermark: int, log_start: int) -> None:
        self.topic_id = topic_id
        self.partition = partition
        self.error_code = error_code
        self.high_watermark = high_watermark
        self.log_start = log_start
        self.records: memoryview | None = None  # of the frame: valid as long as that is
        self.diverging_epoch = -1
        self.diverging_end = -1


class FetchAnswer:
    """A response."""

    __slots__ = ("correlation_id", "error_code", "partitions", "session_id")

    def __init__(self, correlation_id: int, error_code: int, session_id: int) -> None:
        self.correlation_id = correlation_id
        self.error_code = error_code
        self.session_id = session_id
        self.partitions: list[FetchedData] = []


def decode_fetch_answer(frame: memoryview) -> FetchAnswer:
    """Read a response without its length. Raises MalformedRequest."""
    try:
        correlation_id, tags, _, error_code, session_id = _RESPONSE_HEAD(frame, 0)
        if tags:
            raise MalformedRequest("tags in the header of a Fetch response")
        answer = FetchAnswer(correlation_id, error_code, session_id)
        topics, at = count_at(frame, 15, True)
        for _ in range(topics):
            topic_id = bytes(frame[at : at + 16])
            count, at = count_at(frame, at + 16, True)
            for _ in range(count):
                at = _read_partition(frame, at, topic_id, answer)
            at = after_tags(frame, at, True)
        after_tags(frame, at, True)  # the endpoints of new leaders, which brokers know
    except BAD_BYTES as error:
        raise MalformedRequest(f"a Fetch response: {error}") from error
    return answer


def _read_partition(frame: memoryview, at: int, topic_id: bytes, answer: FetchAnswer) -> int:
    partition, error_code, high_watermark, _, log_start = _DATA(frame, at)
    data = FetchedData(topic_id, partition, error_code, high_watermark, log_start)
    answer.partitions.append(data)
    at += _DATA_BYTES
    if frame[at] <= 1:  # null, or none
        at += 1
    else:
        aborted, at = count_at(frame, at, True)
        for _ in range(aborted):
            at = after_tags(frame, at + _ABORTED_BYTES, True)
    size, at = read_uvarint(frame, at + 4)  # after the preferred replica
    if size > 1:
        end = at + size - 1
        if end > len(frame):
            raise MalformedRequest(f"{size - 1} bytes of records with {len(frame) - at} left")
        data.records = frame[at:end]
        at = end
    if frame[at] == 0:
        return at + 1
    return _read_tags(frame, at, data)


def _read_tags(frame: memoryview, at: int, data: FetchedData) -> int:
    """Read where the log diverges (tag 0). The new leader and a snapshot are for others."""
    count, at = tag_count(frame, at, TAGS_MAX)
    for _ in range(count):
        tag, at = read_uvarint(frame, at)
        size, at = read_uvarint(frame, at)
        if tag == 0:
            data.diverging_epoch, data.diverging_end = _EPOCH_END(frame, at)
        at += size
        if at > len(frame):
            raise MalformedRequest(f"a tagged field of {size} bytes ends after the message")
    return at
