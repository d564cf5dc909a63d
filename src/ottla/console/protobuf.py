"""Decodes Protobuf without its schema: the numbers of the fields and what their bytes may be."""

from __future__ import annotations

import struct
from typing import Any, Final

_VARINT, _I64, _LENGTH, _I32 = 0, 1, 2, 5
_DEPTH_MAX: Final = 8
_FIELD_MAX: Final = 10_000
"""Larger numbers are legal and rare: bytes that give one are mostly no Protobuf."""


class NotProtobuf(ValueError):
    """Reports that bytes are no message."""


def decode_fields(data: bytes, depth: int = 0) -> dict[str, Any]:
    """Return the fields by their numbers; a repeated one is a list. Raises NotProtobuf.

    >>> decode_fields(bytes.fromhex("0a036162631096011a020801"))
    {'1': 'abc', '2': 150, '3': {'1': 1}}
    """
    if not data or depth > _DEPTH_MAX:
        raise NotProtobuf("no fields, or nested too deep")
    fields: dict[str, Any] = {}
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if not 0 < number <= _FIELD_MAX:
            raise NotProtobuf(f"field number {number}")
        value, at = _value(data, at, kind, depth)
        name = str(number)
        if name not in fields:
            fields[name] = value
        elif isinstance(fields[name], list):
            fields[name].append(value)
        else:
            fields[name] = [fields[name], value]
    return fields


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind == _VARINT:
        return _varint(data, at)
    if kind in {_I64, _I32}:
        size = 8 if kind == _I64 else 4
        if at + size > len(data):
            raise NotProtobuf("cut off")
        (value,) = struct.unpack_from("<d" if kind == _I64 else "<f", data, at)
        return value, at + size
    if kind != _LENGTH:
        raise NotProtobuf(f"wire type {kind}")
    size, at = _varint(data, at)
    if at + size > len(data):
        raise NotProtobuf("cut off")
    return _bytes(data[at : at + size], depth), at + size


def _bytes(data: bytes, depth: int) -> Any:
    """Return a text, a message, or the bytes as hex."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if all(letter.isprintable() or letter in "\t\r\n" for letter in text):
        return text
    try:
        return decode_fields(data, depth + 1)
    except NotProtobuf:
        return f"0x{data.hex()}"


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for position in range(10):
        if at + position >= len(data):
            raise NotProtobuf("cut off")
        byte = data[at + position]
        value |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            return value, at + position + 1
    raise NotProtobuf("a number without an end")
