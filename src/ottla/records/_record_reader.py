"""Parses records, in one loop. Plain Python here; its compiled twin is built from this same source.

This file has no imports of ours and no `cython` in it: `_record_reader.pxd` beside it gives the types where
`hatch_build.py` compiles it. `records/record_reader.py` is the interface and takes the compiled twin if there is one;
tests compare both.

A record, its lengths and deltas zigzag varints:

    length, attributes (1 byte, unused), timestamp delta, offset delta, key length, key, value length, value,
    header count, then per header: key length, key, value length, value
"""

from __future__ import annotations

from typing import Any

INT32_MAX = 2147483647
INT64_MAX = 9223372036854775807
KEYS, VALUES, HEADERS = 1, 2, 4
"""The bits of what `places_into` is asked for."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag varint of at most 64 bits, and where the next byte is.

    Raises IndexError or ValueError if there is none.
    """
    value = 0
    shift = 0
    while True:
        byte = data[at]
        at += 1
        if shift == 63 and byte > 1:
            raise ValueError("a varint of more than 64 bits")
        low = byte & 0x7F  # its own name, so that the compiled twin shifts 64 bits
        value |= low << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7


def scan_into(
    data: bytes,
    count: int,
    base_offset: int,
    base_timestamp: int,
    first_offset: int,
    end_offset: int,
    offsets: list[int],
    timestamps: list[int],
    keys: list[bytes | None] | None,
    values: list[bytes | None] | None,
    headers: list[list[tuple[str, bytes | None]]] | None,
) -> None:
    """Append to the lists what the `count` records in `data` hold, of offsets from `first_offset` up to `end_offset`.

    A list that is None is not wanted, and its bytes are not copied. ValueError or IndexError on anything malformed:
    lengths that leave the record, a record longer than its parts, bytes after the last record.
    """
    size = len(data)
    at = 0
    for _ in range(count):
        length, at = varint(data, at)
        if length < 0 or length > size - at:
            raise ValueError("a record that ends after its batch")
        stop = at + length
        delta_ms, at = varint(data, at + 1)
        delta, at = varint(data, at)
        if delta < 0 or delta > INT32_MAX:
            raise ValueError("an offset before its batch or too far after it")
        offset: Any = base_offset + delta
        wanted = first_offset <= offset < end_offset
        if wanted:
            offsets.append(offset)
            timestamps.append(base_timestamp + delta_ms)
        at = _slice_into(data, at, stop, keys if wanted else None)
        at = _slice_into(data, at, stop, values if wanted else None)
        at = _headers_into(data, at, stop, headers if wanted else None)
        if at != stop:
            raise ValueError("a record that its parts do not fill")
    if at != size:
        raise ValueError("bytes after the last record")


def _slice_into(data: bytes, at: int, stop: int, found: list[bytes | None] | None) -> int:
    """Append the nullable bytes at `at` to `found`, if wanted; returns where they end."""
    length, at = varint(data, at)
    if length < 0:
        if found is not None:
            found.append(None)
        return at
    if length > stop - at:
        raise ValueError("a key or value that ends after its record")
    if found is not None:
        found.append(data[at : at + length])
    return at + length


def _headers_into(data: bytes, at: int, stop: int, found: list[list[tuple[str, bytes | None]]] | None) -> int:
    """Append the list of a record's headers to `found`, if wanted; returns where they end."""
    count, at = varint(data, at)
    if count < 0 or count > stop - at:
        raise ValueError("more headers than bytes")
    pairs: list[tuple[str, bytes | None]] = []
    value: list[bytes | None] = []
    for _ in range(count):
        length, at = varint(data, at)
        if length < 0 or length > stop - at:
            raise ValueError("a header that ends after its record")
        name = data[at : at + length]
        at = _slice_into(data, at + length, stop, value)
        pairs.append((name.decode("utf-8", "replace"), value.pop()))
    if found is not None:
        found.append(pairs)
    return at


def bounded_varint(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """Return a zigzag varint that ends before `stop`, and where the next byte is. ValueError if there is none.

    Unlike `varint` it checks its own bounds, so that the compiled twin reads bytes without asking Python.
    """
    value = 0
    shift = 0
    while True:
        if at >= stop:
            raise ValueError("a record that ends inside a number")
        byte = data[at]
        at += 1
        if shift == 63 and byte > 1:
            raise ValueError("a varint of more than 64 bits")
        low = byte & 0x7F
        value |= low << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7


def places_into(
    data: bytes,
    at: int,
    stop: int,
    count: int,
    base_offset: int,
    base_timestamp: int,
    first_offset: int,
    end_offset: int,
    parts: int,
    offsets: memoryview,
    timestamps: memoryview,
    slots: memoryview,
    edges: memoryview,
    headers: list[list[int]],
    filled: int,
    edged: int,
) -> tuple[int, int]:
    """Locate keys and values of the `count` records in `data[at:stop]`: nothing is copied, no object is created.

    `parts` has what is wanted: KEYS, VALUES, HEADERS; the rest is skipped. Records from `first_offset` up to
    `end_offset` fill `offsets` and `timestamps` from `filled` on, and `edges` from `edged` on with begin and end of
    each wanted key and value. `slots`, keys in its first half and values in the second, has which pair of edges is a
    record's, or -1 for null. `headers` is as in `_header_places`. There is room for `count` records, and the base
    offset is far from the end of 64 bits. Returns the new `filled` and `edged`. ValueError as in `scan_into`.
    """
    source = data
    capacity = len(slots) // 2
    for _ in range(count):
        length, at = bounded_varint(source, at, stop)
        if length < 0 or length > stop - at:
            raise ValueError("a record that ends after its batch")
        end = at + length
        delta_ms, at = bounded_varint(source, at + 1, end)
        delta, at = bounded_varint(source, at, end)
        if delta < 0 or delta > INT32_MAX:
            raise ValueError("an offset before its batch or too far after it")
        offset = base_offset + delta
        wanted = first_offset <= offset < end_offset
        if wanted:
            offsets[filled] = offset
            timestamps[filled] = _sum(base_timestamp, delta_ms)
        for part in range(2 if parts else 0):
            length, at = bounded_varint(source, at, end)
            if length > end - at:
                raise ValueError("a key or value that ends after its record")
            if wanted and parts & (1 << part):
                slots[part * capacity + filled] = -1 if length < 0 else edged
                if length >= 0:
                    edges[edged] = at
                    edges[edged + 1] = at + length
                    edged += 2
            if length > 0:
                at += length
        if parts and _header_places(source, at, end, headers if wanted and parts & HEADERS else None) != end:
            raise ValueError("a record that its parts do not fill")
        at, filled = end, filled + wanted
    if at != stop:
        raise ValueError("bytes after the last record")
    return filled, edged


def _sum(base: int, delta: int) -> int:
    """Add two numbers of 64 bits; ValueError if their sum is not one."""
    if (delta > 0 and base > INT64_MAX - delta) or (delta < 0 and base < -INT64_MAX - 1 - delta):
        raise ValueError("a time that does not fit 64 bits")
    return base + delta


def _header_places(data: bytes, at: int, stop: int, headers: list[list[int]] | None) -> int:
    """Append where a record's headers lie, if wanted; returns where they end.

    The three lists of `headers` get: how many the record has; four edges of each (its name's, its value's); and 1 for
    each value that is null, else 0.
    """
    count, at = bounded_varint(data, at, stop)
    if count < 0 or count > stop - at:
        raise ValueError("more headers than bytes")
    if headers is not None:
        headers[0].append(count)
    for _ in range(count):
        name_bytes, at = bounded_varint(data, at, stop)
        if name_bytes < 0 or name_bytes > stop - at:
            raise ValueError("a header that ends after its record")
        name_at = at
        value_bytes, at = bounded_varint(data, at + name_bytes, stop)
        if value_bytes > stop - at:
            raise ValueError("a key or value that ends after its record")
        if headers is not None:
            headers[1] += (name_at, name_at + name_bytes, at, at + max(value_bytes, 0))
            headers[2].append(value_bytes < 0)
        at += max(value_bytes, 0)
    return at
