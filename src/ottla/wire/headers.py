"""Reads and writes the headers of requests and responses.

Request header v1 (KIP-13) is key, version, correlation id and a nullable client id with an int16 length; v2 (KIP-482)
adds a section of tagged fields, and *keeps* the client id's int16 length. The response header is the correlation id
(v0), with a section of tagged fields from flexible versions on (v1); ApiVersions always answers with v0, because its
asker does not know yet what we speak (KIP-511).
"""

from __future__ import annotations

import struct
from typing import Final, TypeAlias

from ottla.wire.apis import API_INFO, NEVER, ApiKey
from ottla.wire.compiled_codec import skip_tags
from ottla.wire.errors import MalformedRequest

_FIXED: Final = struct.Struct(">hhih")  # key, version, correlation id, length of the client id
_READ_FIXED: Final = _FIXED.unpack_from
_FIXED_BYTES: Final = 10
assert _FIXED.size == _FIXED_BYTES
_CORRELATION_ID: Final = struct.Struct(">i")
_FLEXIBLE_SINCE: Final = tuple(
    API_INFO[ApiKey(key)].flexible_since if key in API_INFO else NEVER for key in range(max(API_INFO) + 1)
)
_KEYS: Final = len(_FLEXIBLE_SINCE)


RequestHeader: TypeAlias = tuple[int, int, int, str | None, int]
"""Api key, api version, correlation id, client id (not unique, proves nothing), and where the body begins."""


def parse_request_header(frame: memoryview | bytes) -> RequestHeader:
    """Read the header of a frame (without its length prefix). Raises MalformedRequest.

    An unknown key or version is not malformed: its header is read as v1, so that it can be answered. ApiVersions is
    read as v2 in versions above the known ones, since a newer client sends it so.
    """
    key: int
    version: int
    correlation_id: int
    length: int
    try:
        key, version, correlation_id, length = _READ_FIXED(frame)
        end = _FIXED_BYTES
        client_id = None
        if length >= 0:
            end += length
            if end > len(frame):
                raise MalformedRequest(f"a client id of {length} bytes in a frame of {len(frame)}")
            client_id = str(frame[_FIXED_BYTES:end], "utf-8")
        elif length != -1:
            raise MalformedRequest(f"a client id of {length} bytes")
        if 0 <= key < _KEYS and version >= _FLEXIBLE_SINCE[key]:
            end = end + 1 if frame[end] == 0 else skip_tags(frame, end)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedRequest(f"request header: {error}") from error
    return key, version, correlation_id, client_id, end


def is_flexible(key: int, version: int) -> bool:
    """Return whether messages of this API and version have tagged fields."""
    return 0 <= key < _KEYS and version >= _FLEXIBLE_SINCE[key]


def response_header(key: int, version: int, correlation_id: int) -> bytes:
    """Encode the header of an answer."""
    fixed = _CORRELATION_ID.pack(correlation_id)
    return fixed + b"\x00" if key != ApiKey.API_VERSIONS and is_flexible(key, version) else fixed


def parse_response_header(frame: memoryview | bytes, key: int, version: int) -> tuple[int, int]:
    """Return the correlation id of an answer, and where its body begins. MalformedRequest if it has no header."""
    try:
        (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
        if key == ApiKey.API_VERSIONS or not is_flexible(key, version):
            return correlation_id, 4
        return correlation_id, skip_tags(frame, 4)
    except (struct.error, IndexError) as error:
        raise MalformedRequest(f"response header: {error}") from error


def encode_request_header(key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Encode the header of a request."""
    encoded = b"" if client_id is None else client_id.encode()
    fixed = _FIXED.pack(key, version, correlation_id, -1 if client_id is None else len(encoded))
    return fixed + encoded + (b"\x00" if is_flexible(key, version) else b"")
