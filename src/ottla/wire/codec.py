"""Decodes and encodes the messages (`wire/generated`) of every API and version.

The shape of an API is imported, and the plan for a version made, when the first message of that API and version comes:
a broker pays only for what its clients speak. Produce requests and Fetch answers have faster twins in `wire/hot/`.

>>> from ottla.wire.generated.heartbeat import HeartbeatRequest
>>> body = encode_request(ApiKey.HEARTBEAT, 4, HeartbeatRequest(group_id="g", generation_id=7, member_id="m"))
>>> decode_request(ApiKey.HEARTBEAT, 4, body).generation_id
7
"""

from __future__ import annotations

import functools
import importlib
import struct
from collections.abc import Callable
from typing import Any

from ottla.core.errors import UnsupportedVersion
from ottla.core.slices import WorkSlice
from ottla.wire.apis import API_INFO, ApiKey
from ottla.wire.compiled_codec import ELEMENTS_MAX, Slices, Slicing, TypeCodec, struct_codec
from ottla.wire.errors import MalformedRequest

_PLANS_MAX = 1024  # about 450 pairs of request and response exist

PLAIN_BYTES_MAX = 4096
"""A request of so many bytes has too few elements to be worth slices."""

_BYTES_PER_ELEMENT = 500  # the objects of an element and of its answer, and the encoded answer

REQUEST_BYTES_MAX = 8 << 20
"""Of a request other than Produce: 10,000 names of 249 bytes with eight settings of 60 bytes each fit in."""

LENGTH_MAX = (1 << 31) - 1
"""Of a Produce request: `socket.request.max.bytes` alone bounds it, because records are large."""


def decode_request(key: ApiKey, version: int, body: bytes | bytearray | memoryview, offset: int = 0) -> Any:
    """Decode the request in `body` from `offset` on. Raises MalformedRequest.

    Bytes after it are ignored, as in Kafka: librdkafka (2.16) sends three with Metadata v13.
    """
    return _decode(_plan(int(key), version, "Request"), body, offset, key, version)[0]


def request_decoder(key: ApiKey) -> Callable[[bytes | bytearray | memoryview, int, int], Any]:
    """Return the function that decodes the requests of an API: from a frame, in a version, at an offset."""
    number = int(key)

    def decode(frame: bytes | bytearray | memoryview, version: int, offset: int) -> Any:
        return _decode(_plan(number, version, "Request"), frame, offset, number, version)[0]

    return decode


def decoded_bytes_max(size: int) -> int:
    """Return the memory that a request of `size` bytes and its answer may take besides these bytes."""
    return size + min(size, ELEMENTS_MAX) * _BYTES_PER_ELEMENT


def decode_request_slices(key: ApiKey, version: int, body: bytes, offset: int = 0, *, slices: WorkSlice) -> Slices[Any]:
    """Decode a request in slices of work, with at most `ELEMENTS_MAX` elements."""
    plan = _plan(int(key), version, "Request")
    try:
        if plan.read_slices is None:
            return plan.read(body, offset)[0]
        value, _ = yield from plan.read_slices(body, offset, Slicing(slices))
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedRequest(f"API {key} version {version}: {error}") from error
    return value


def decode_response(key: ApiKey, version: int, body: bytes | bytearray | memoryview, offset: int = 0) -> Any:
    """Decode the response that `body` holds from `offset` to its end; MalformedRequest if it holds anything else."""
    value, rest = _decode(_plan(int(key), version, "Response"), body, offset, key, version)
    if rest:
        raise MalformedRequest(f"API {key} version {version}: {rest} bytes after the message")
    return value


def encode_request(key: ApiKey, version: int, request: Any) -> bytes:
    """Encode the body of a request; fields that the version lacks are left out."""
    return _encode(_plan(int(key), version, "Request"), request)


def encode_response(key: ApiKey, version: int, response: Any) -> bytes:
    """Encode the body of a response; fields that the version lacks are left out."""
    return _encode(_plan(int(key), version, "Response"), response)


def encode_response_slices(key: ApiKey, version: int, response: Any, *, slices: WorkSlice) -> Slices[bytearray]:
    """Encode the body of a response in slices of work. Raises AnswerTooLarge."""
    plan = _plan(int(key), version, "Response")
    out = bytearray()
    if plan.write_slices is None:
        plan.write(out, response)
    else:
        yield from plan.write_slices(out, response, Slicing(slices))
    return out


def shape_class(key: ApiKey, kind: str) -> Any:
    """Return the generated class of an API's "Request" or "Response"."""
    name = API_INFO[key].name
    module = importlib.import_module(f"ottla.wire.generated.{name}")
    return getattr(module, "".join(part.capitalize() for part in name.split("_")) + kind)


@functools.lru_cache(maxsize=_PLANS_MAX)
def _plan(key: int, version: int, kind: str) -> TypeCodec:
    info = API_INFO.get(ApiKey(key)) if key in API_INFO else None
    if info is None or not info.min_version <= version <= info.max_version:
        raise UnsupportedVersion(f"no version {version} of API {key}")
    return struct_codec(shape_class(ApiKey(key), kind), version=version, flexible=version >= info.flexible_since)


def _decode(
    plan: TypeCodec, body: bytes | bytearray | memoryview, offset: int, key: int, version: int
) -> tuple[Any, int]:
    """Decode a message; return it with the number of bytes after it."""
    data = body if isinstance(body, bytes) else bytes(body)
    try:
        value, end = plan.read(data, offset)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedRequest(f"API {key} version {version}: {error}") from error
    return value, len(data) - end


def _encode(plan: TypeCodec, value: Any) -> bytes:
    out = bytearray()
    plan.write(out, value)
    return bytes(out)
