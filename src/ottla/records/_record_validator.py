# cython: boundscheck=False, wraparound=False
"""Validates the records of a producer's batch, in one loop. Its compiled twin is built from this same source.

This file has no imports of ours and does not import `cython`: `_record_validator.pxd` beside it gives the types where
`hatch_build.py` compiles it. `storage/validation/record_validator.py` calls it and takes the compiled twin if there is
one; tests compare both. Every function compares a position with its end before it reads a byte, because the compiled
twin does not check indexes.
"""

from __future__ import annotations

INT64_MAX = 9223372036854775807
KEYLESS, OUT_OF_TIME = 0, 1
"""The faults of single records that `validate_into` collects."""


def read_int(data: bytes | memoryview, at: int, stop: int) -> tuple[int, int]:
    """Read a zigzag varint of at most 32 bits that ends before `stop`; returns it and the position after it.

    Lengths, counts and offset deltas are of this kind; consumers refuse longer ones. ValueError if there is none.
    """
    value = 0
    shift = 0
    while True:
        if at >= stop:
            raise ValueError("a record that ends inside a number")
        byte = data[at]
        at += 1
        if shift == 28 and byte > 15:
            raise ValueError("a length, count or offset of more than 32 bits")
        low = byte & 0x7F
        value |= low << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7


def read_long(data: bytes | memoryview, at: int, stop: int) -> tuple[int, int]:
    """Read a zigzag varint of at most 64 bits, in the same way."""
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


def skip_bytes(data: bytes | memoryview, at: int, stop: int) -> int:
    """Step over a length and as many bytes; a negative length is null. Returns the position after them."""
    length, at = read_int(data, at, stop)
    if length <= 0:
        return at
    if length > stop - at:
        raise ValueError("a key or value that ends after its record")
    return at + length


def skip_headers(data: bytes | memoryview, at: int, stop: int) -> int:
    """Step over the number of headers and the headers. Returns the position after them."""
    count, at = read_int(data, at, stop)
    if count < 0 or count > stop - at:
        raise ValueError("more headers than bytes")
    for _ in range(count):
        name_bytes, at = read_int(data, at, stop)
        if name_bytes < 0 or name_bytes > stop - at:
            raise ValueError("a header that ends after its record")
        at = skip_bytes(data, at + name_bytes, stop)
    return at


def time_after(base_timestamp: int, delta_ms: int) -> int:
    """Add to a time; ValueError if the sum does not fit 64 bits."""
    if (delta_ms > 0 and base_timestamp > INT64_MAX - delta_ms) or (
        delta_ms < 0 and base_timestamp < -INT64_MAX - 1 - delta_ms
    ):
        raise ValueError("a time that does not fit 64 bits")
    return base_timestamp + delta_ms


def validate_into(
    data: bytes | memoryview,
    at: int,
    first: int,
    count: int,
    base_timestamp: int,
    oldest_ms: int,
    newest_ms: int,
    keyed: bool,
    greatest_ms: int,
    faults: list[tuple[int, int, int]],
    faults_max: int,
    size_max: int,
) -> tuple[int, int]:
    """Validate `count` records of a batch that begin at `at`; return the position after them and the greatest time.

    A record's delta must be its place, and its parts must fill its at most `size_max` bytes: else ValueError. `faults`
    gets at most `faults_max` (place, KEYLESS or OUT_OF_TIME, time): no key if `keyed`, a time (not -1) out of bounds.
    """
    # Most numbers have one byte, and lengths two: these are read here, because a call takes several times as long.
    size = len(data)
    for place in range(first, first + count):
        if at + 1 < size and data[at] >= 0x80 > data[at + 1]:
            length, at = ((data[at] & 0x7F | data[at + 1] << 7) >> 1) ^ -(data[at] & 1), at + 2
        else:
            length, at = read_int(data, at, size)
        if length < 0 or length > size - at:
            raise ValueError("a record that ends after its batch")
        if length > size_max:
            raise ValueError("a record of more bytes than max.decompressed.message.bytes")
        end, at = at + length, at + 1
        if at < end and data[at] < 0x80:
            delta_ms, at = (data[at] >> 1) ^ -(data[at] & 1), at + 1
        else:
            delta_ms, at = read_long(data, at, end)
        delta, at = read_int(data, at, end)
        if delta != place:
            raise ValueError("offsets that do not follow one another")
        timestamp = time_after(base_timestamp, delta_ms)
        if at < end and data[at] < 0x80:
            key_bytes, at = (data[at] >> 1) ^ -(data[at] & 1), at + 1
        else:
            key_bytes, at = read_int(data, at, end)
        if key_bytes > end - at:
            raise ValueError("a key or value that ends after its record")
        if key_bytes > 0:
            at += key_bytes
        at = skip_bytes(data, at, end)
        at = at + 1 if at < end and not data[at] else skip_headers(data, at, end)
        if at != end:
            raise ValueError("a record that its parts do not fill")
        if keyed and key_bytes < 0:
            if len(faults) < faults_max:
                faults.append((place, KEYLESS, timestamp))
        elif timestamp != -1 and not oldest_ms <= timestamp <= newest_ms:
            if len(faults) < faults_max:
                faults.append((place, OUT_OF_TIME, timestamp))
        elif timestamp > greatest_ms:
            greatest_ms = timestamp
    return at, greatest_ms
