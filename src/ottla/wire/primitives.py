"""Reads and writes Kafka's primitive types: `read(data, at) -> (value, next_at)` and `write(out, value)`.

Lengths are checked against the bytes that are left before anything is sliced or allocated. Readers raise
MalformedRequest, IndexError or struct.error on bad bytes; `wire/compiled_codec.py`, the caller, makes one error.
Writers raise struct.error, TypeError or ValueError for a value that cannot travel: that is a bug of this program.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, TypeAlias
from uuid import UUID

from ottla.core.ids import NO_TOPIC_ID
from ottla.wire.errors import MalformedRequest

Read: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
Write: TypeAlias = Callable[[bytearray, Any], None]

STRING_BYTES_MAX: Final = 32767  # both encodings: Kafka's own readers refuse more even where the length is a varint

FIXED: Final = {"bool": "?", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint16": "H", "float64": "d"}
"""The struct format of each type whose size is fixed; runs of them are read and written in one call."""

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


def read_uvarint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 32 bits (five bytes)."""
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            raise MalformedRequest("a varint of more than 32 bits")
    if value > 0xFFFFFFFF:
        raise MalformedRequest("a varint of more than 32 bits")
    return value, at + 1


def write_uvarint(out: bytearray, value: int) -> None:
    """Write an unsigned varint."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def read_length(data: bytes, at: int, flexible: bool) -> tuple[int, int]:
    """Read the length of an array or of bytes; -1 is null."""
    if flexible:
        length, at = read_uvarint(data, at)
        return length - 1, at
    (length,) = _INT32.unpack_from(data, at)
    return length, at + 4


def write_length(out: bytearray, length: int, flexible: bool) -> None:
    """Write the length of an array or of bytes; -1 is null."""
    if not flexible:
        out += _INT32.pack(length)
    elif length < 0x7F:  # one byte, as almost always
        out.append(length + 1)
    else:
        write_uvarint(out, length + 1)


def _end_of(data: bytes, at: int, length: int) -> int:
    end = at + length
    if length < 0 or end > len(data):
        raise MalformedRequest(f"a length of {length} with {len(data) - at} bytes left")
    return end


def read_tagged_fields(data: bytes, at: int) -> tuple[dict[int, bytes], int]:
    """Read tagged fields: their values by number, and where they end. Raises MalformedRequest."""
    count, at = read_uvarint(data, at)
    found: dict[int, bytes] = {}
    for _ in range(count):
        tag, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        end = _end_of(data, at, size)
        found[tag] = data[at:end]
        at = end
    return found, at


def string_reader(flexible: bool, nullable: bool) -> Read:
    """Make a reader of strings; null only where the schema allows it."""

    def read(data: bytes, at: int) -> tuple[str | None, int]:
        if flexible:
            length, at = read_uvarint(data, at)
            length -= 1
        else:
            (length,) = _INT16.unpack_from(data, at)
            at += 2
        if length == -1 and nullable:
            return None, at
        if length > STRING_BYTES_MAX:
            raise MalformedRequest(f"a string of {length} bytes")
        end = _end_of(data, at, length)
        return data[at:end].decode(), end

    return read


def string_writer(flexible: bool, nullable: bool) -> Write:
    """Make a writer of strings; a null where the schema has none is a TypeError."""

    def write(out: bytearray, value: str | None) -> None:
        if value is None:
            if not nullable:
                raise TypeError("null in a string that cannot be null")
            out += b"\x00" if flexible else b"\xff\xff"
            return
        encoded = value.encode()
        if len(encoded) > STRING_BYTES_MAX:
            raise ValueError(f"a string of {len(encoded)} bytes cannot travel")
        if flexible:
            write_uvarint(out, len(encoded) + 1)
        else:
            out += _INT16.pack(len(encoded))
        out += encoded

    return write


def bytes_reader(flexible: bool, nullable: bool) -> Read:
    """Make a reader of bytes (also the `records` of cold codecs)."""

    def read(data: bytes, at: int) -> tuple[bytes | None, int]:
        length, at = read_length(data, at, flexible)
        if length == -1 and nullable:
            return None, at
        end = _end_of(data, at, length)
        return data[at:end], end

    return read


def bytes_writer(flexible: bool, nullable: bool) -> Write:
    """Make a writer of bytes or a view of bytes."""

    def write(out: bytearray, value: bytes | memoryview | None) -> None:
        if value is None:
            if not nullable:
                raise TypeError("null in bytes that cannot be null")
            write_length(out, -1, flexible)
            return
        write_length(out, len(value), flexible)
        out += value

    return write


def read_uuid(data: bytes, at: int) -> tuple[UUID, int]:
    """Read a 128-bit id; the zero id is the one shared value."""
    end = _end_of(data, at, 16)
    raw = data[at:end]
    return (NO_TOPIC_ID if raw == _ZERO else UUID(bytes=raw)), end


_ZERO: Final = bytes(16)


def write_uuid(out: bytearray, value: UUID) -> None:
    """Write a 128-bit id."""
    out += value.bytes


def fixed_reader(code: str) -> Read:
    """Make a reader of one value of fixed size."""
    layout = struct.Struct(">" + code)
    unpack_from, size = layout.unpack_from, layout.size

    def read(data: bytes, at: int) -> tuple[Any, int]:
        return unpack_from(data, at)[0], at + size

    return read


def fixed_writer(code: str) -> Write:
    """Make a writer of one value of fixed size."""
    pack = struct.Struct(">" + code).pack

    def write(out: bytearray, value: Any) -> None:
        out += pack(value)

    return write


def primitive(kind: str, *, flexible: bool, nullable: bool) -> tuple[Read, Write, int]:
    """Return the reader and the writer of a primitive type, and the fewest bytes a value of it takes."""
    match kind:
        case "string":
            return string_reader(flexible, nullable), string_writer(flexible, nullable), 1 if flexible else 2
        case "bytes" | "records":
            return bytes_reader(flexible, nullable), bytes_writer(flexible, nullable), 1 if flexible else 4
        case "uuid":
            return read_uuid, write_uuid, 16
        case _:
            code = FIXED[kind]
            return fixed_reader(code), fixed_writer(code), struct.calcsize(">" + code)
