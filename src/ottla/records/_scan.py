"""The one loop that looks into records. Plain Python here; its compiled twin is made from this same source.

This file has no imports of ours and no `cython` in it: `_scan.pxd` beside it gives the types where `hatch_build.py`
compiles it. `records/scanner.py` is the interface and takes the compiled twin if there is one; tests hold both equal.

A record, its lengths and deltas zigzag varints:

    length, attributes (1 byte, unused), timestamp delta, offset delta, key length, key, value length, value,
    header count, then per header: key length, key, value length, value
"""

from __future__ import annotations

from typing import Any

INT32_MAX = 2147483647


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint of at most 64 bits, and where the next byte is. IndexError or ValueError if there is none."""
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
