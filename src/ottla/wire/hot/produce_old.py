"""Refuses Produce versions 0 to 2, which are advertised because librdkafka derives its codecs from them (KAFKA-18659).

The refusal has the layout of the version, so that such a client reads UNSUPPORTED_VERSION per partition instead of
losing its connection. Layouts (protocol guide, "Produce API", Kafka 0.8 to 0.10):

    request   acks int16, timeout int32, [topic string, [partition int32, records bytes]]
    response  [topic string, [partition int32, error int16, base_offset int64, (v2) log_append_time int64]],
              (v1) throttle_time int32
"""

from __future__ import annotations

import struct

from ottla.core.errors import ErrorCode
from ottla.wire.errors import MalformedRequest

_ACKS, _COUNT, _LENGTH, _PARTITION = (
    struct.Struct(">hi"),
    struct.Struct(">i"),
    struct.Struct(">h"),
    struct.Struct(">ii"),
)
_OUTCOME = struct.Struct(">ihq")
_NEVER = struct.pack(">q", -1)
_ELEMENTS_MAX = 2000  # a client that needs more is disconnected: its request is refused either way
_FIRST_WITH_THROTTLE, _FIRST_WITH_TIME = 1, 2


def refusal(body: memoryview, version: int) -> bytes | None:
    """Build a response that refuses each partition; None with acks=0, which has none. Raises MalformedRequest."""
    try:
        acks, _ = _ACKS.unpack_from(body)
        at = _ACKS.size
        (topics,) = _COUNT.unpack_from(body, at)
        at += _COUNT.size
        out = bytearray(_COUNT.pack(topics))
        left = _ELEMENTS_MAX
        for _ in range(topics):
            at, left = _topic(body, at, out, version, left - 1)
    except struct.error as error:
        raise MalformedRequest(f"Produce version {version} ends early") from error
    if version >= _FIRST_WITH_THROTTLE:
        out += _COUNT.pack(0)
    return bytes(out) if acks else None


def _topic(body: memoryview, at: int, out: bytearray, version: int, left: int) -> tuple[int, int]:
    """Refuse a topic's partitions; returns where the next begins, and how many elements may follow."""
    (name_bytes,) = _LENGTH.unpack_from(body, at)
    begin, at = at, at + _LENGTH.size + max(name_bytes, 0)
    out += body[begin:at]
    (partitions,) = _COUNT.unpack_from(body, at)
    out += body[at : at + _COUNT.size]
    at += _COUNT.size
    left -= max(partitions, 0)
    if left < 0:
        raise MalformedRequest(f"Produce version {version} with more than {_ELEMENTS_MAX} topics and partitions")
    for _ in range(partitions):
        index, records_bytes = _PARTITION.unpack_from(body, at)
        at += _PARTITION.size + max(records_bytes, 0)
        out += _OUTCOME.pack(index, ErrorCode.UNSUPPORTED_VERSION, -1)
        if version >= _FIRST_WITH_TIME:
            out += _NEVER
    return at, left
