"""The loops of compaction over records: which keys are seen, which records stay. Plain Python here.

As in `_record_reader.py` there are no imports of ours and no `cython`; `_compaction.pxd` gives the types where
`hatch_build.py` compiles it. `records/compaction.py` is the interface and takes the compiled twin if there is one;
tests compare both.

The table of keys is a flat array of 64-bit numbers, three a slot: the key's digest (two) and its latest offset plus
one, 0 where the slot is free. A digest's place follows from its upper half by multiplication, so that digests in order
have places in order, and a larger table is filled from a smaller one front to back. Collisions go to the next free
slot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Digest = Callable[[bytes], tuple[int, int]]


def sip(data: bytes, at: int, stop: int, key0: int, key1: int) -> tuple[int, int]:
    """Compute SipHash-1-3 with 128 bits: without the hash's secret no client can construct keys that collide."""
    mask = 0xFFFFFFFFFFFFFFFF
    some0 = 0x736F6D6570736575
    some1 = 0x646F72616E646F6D
    some2 = 0x6C7967656E657261
    some3 = 0x7465646279746573
    v0 = key0 ^ some0
    v1 = key1 ^ some1 ^ 0xEE
    v2 = key0 ^ some2
    v3 = key1 ^ some3
    left = stop - at
    tail = (left & 0xFF) << 56
    rounds = left // 8 + 1
    for turn in range(rounds + 6):
        word = 0
        if turn < rounds:
            many = 8
            if left < 8:
                many = left
                word = tail
            for nth in range(many):
                byte = data[at + nth]
                word |= byte << (8 * nth)
            at += many
            left -= many
        elif turn == rounds:
            v2 ^= 0xEE
        elif turn == rounds + 3:
            first = v0 ^ v1 ^ v2 ^ v3
            v1 ^= 0xDD
        v3 ^= word
        v0 = (v0 + v1) & mask
        v1 = ((v1 << 13) & mask) | (v1 >> 51)
        v1 ^= v0
        v0 = ((v0 << 32) & mask) | (v0 >> 32)
        v2 = (v2 + v3) & mask
        v3 = ((v3 << 16) & mask) | (v3 >> 48)
        v3 ^= v2
        v0 = (v0 + v3) & mask
        v3 = ((v3 << 21) & mask) | (v3 >> 43)
        v3 ^= v0
        v2 = (v2 + v1) & mask
        v1 = ((v1 << 17) & mask) | (v1 >> 47)
        v1 ^= v2
        v2 = ((v2 << 32) & mask) | (v2 >> 32)
        v0 ^= word
    return first, v0 ^ v1 ^ v2 ^ v3


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


def slot_of(table: Any, slots: int, high: int, low: int) -> int:
    """Return the slot that holds a digest, or the free one where it would go. There must be a free one."""
    at = ((high >> 32) * slots) >> 32
    while True:
        place = 3 * at
        if table[place + 2] == 0 or (table[place] == high and table[place + 1] == low):
            return at
        at += 1
        if at == slots:
            at = 0


def head(data: bytes, at: int, end: int) -> tuple[int, int, int, int, int]:
    """Return a record's end, time delta, offset delta, its key's length (-1 for none) and where the key begins."""
    length, at = varint(data, at)
    if length < 0 or length > end - at:
        raise ValueError("a record that ends after its batch")
    stop = at + length
    delta_ms, at = varint(data, at + 1)
    delta, at = varint(data, at)
    if delta < 0 or delta > 2147483647:
        raise ValueError("an offset before its batch or too far after it")
    key_length, at = varint(data, at)
    if at > stop or key_length > stop - at:
        raise ValueError("a key that ends after its record")
    return stop, delta_ms, delta, key_length, at


def note_keys(
    data: bytes,
    at: int,
    end: int,
    count: int,
    base_offset: int,
    first_offset: int,
    table: Any,
    slots: int,
    capacity: int,
    key0: int,
    key1: int,
    digest: Digest | None,
) -> tuple[int, int, int, int]:
    """Put the keys of `count` records into the table, each with its offset, from `first_offset` on.

    Ends early at a new key when the table has no more room for new keys. Returns how many records were taken, where the
    next one begins, how many keys were new, and the last offset put in, or -1. Raises ValueError or IndexError on
    malformed records.
    """
    taken = new = 0
    last = -1
    while taken < count:
        stop, _delta_ms, delta, key_length, begin = head(data, at, end)
        offset = base_offset + delta
        if key_length >= 0 and offset >= first_offset:
            if digest is None:
                high, low = sip(data, begin, begin + key_length, key0, key1)
            else:
                high, low = digest(data[begin : begin + key_length])
            place = 3 * slot_of(table, slots, high, low)
            if table[place + 2] == 0:
                if new == capacity:
                    break
                new += 1
                table[place] = high
                table[place + 1] = low
            table[place + 2] = offset + 1
            last = offset
        taken += 1
        at = stop
    if taken == count and at != end:
        raise ValueError("bytes after the last record")
    return taken, at, new, last


def move_slots(table: Any, first: int, end: int, into: Any, slots: int) -> None:
    """Fill a larger table from the slots `first` to `end` of a smaller one; each digest is in it once."""
    for at in range(first, end):
        place = 3 * at
        if table[place + 2] != 0:
            high = table[place]
            low = table[place + 1]
            found = 3 * slot_of(into, slots, high, low)
            into[found] = high
            into[found + 1] = low
            into[found + 2] = table[place + 2]


def choose(
    data: bytes,
    at: int,
    end: int,
    count: int,
    base_offset: int,
    latest_offset: int,
    drops_tombstones: bool,
    table: Any,
    slots: int,
    key0: int,
    key1: int,
    digest: Digest | None,
    extents: list[int],
) -> tuple[int, int, int, int, int]:
    """Choose which of `count` records stay; append the start and the end of each run of neighbours to `extents`.

    What is after `latest_offset` stays. Before it a record stays that has a key, is the last of its key, and has a
    value (or is a tombstone and those do not go yet). Gives how many stay, how many of them are tombstones, how many
    went for want of a key, and of those that stay the first and the greatest time delta.
    """
    kept = tombstones = keyless = first_ms = greatest_ms = 0
    run = -1
    for _ in range(count):
        stop, delta_ms, delta, key_length, begin = head(data, at, end)
        value_length, value = varint(data, begin + key_length if key_length > 0 else begin)
        if value > stop or value_length > stop - value:
            raise ValueError("a value that ends after its record")
        offset = base_offset + delta
        stays = True
        if offset <= latest_offset:
            if key_length < 0:
                keyless += 1
                stays = False
            elif value_length < 0 and drops_tombstones:
                stays = False
            else:
                if digest is None:
                    high, low = sip(data, begin, begin + key_length, key0, key1)
                else:
                    high, low = digest(data[begin : begin + key_length])
                stays = offset + 1 >= table[3 * slot_of(table, slots, high, low) + 2]
        if stays:
            if kept == 0:
                first_ms = greatest_ms = delta_ms
            greatest_ms = max(greatest_ms, delta_ms)
            kept += 1
            tombstones += value_length < 0
            if run < 0:
                run = at
        elif run >= 0:
            extents.extend((run, at))
            run = -1
        at = stop
    if at != end:
        raise ValueError("bytes after the last record")
    if run >= 0:
        extents.append(run)
        extents.append(end)
    return kept, tombstones, keyless, first_ms, greatest_ms


def shifted(data: bytes, extents: list[int], shift_ms: int) -> bytearray:
    """Return the records of `extents` with `shift_ms` added to each time delta.

    `shift_ms` has 64 bits, unsigned; the sum wraps as Java's.
    """
    mask = 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    for turn in range(0, len(extents), 2):
        at = extents[turn]
        end = extents[turn + 1]
        while at < end:
            length, attributes = varint(data, at)
            stop = attributes + length
            delta_ms, at = varint(data, attributes + 1)
            if stop > end or at > stop:
                raise ValueError("a record that ends after its batch")
            moved = (delta_ms + shift_ms) & mask
            zigzag = ((moved << 1) & mask) ^ (mask * (moved >> 63))
            size = 1
            rest = zigzag >> 7
            while rest:
                size += 1
                rest >>= 7
            rest = (stop - at + size + 1) << 1
            put(out, rest)
            out.append(data[attributes])
            put(out, zigzag)
            out += data[at:stop]
            at = stop
    return out


def put(out: bytearray, number: int) -> None:
    """Add a number as a varint, seven bits a byte."""
    while number >= 0x80:
        out.append((number & 0x7F) | 0x80)
        number >>= 7
    out.append(number)
