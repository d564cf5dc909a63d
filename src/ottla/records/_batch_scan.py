"""The loop over batch headers that a recovery runs. Plain Python here; its compiled twin is made from this same source.

This file has no imports of ours and no `cython` in it: `_batch_scan.pxd` beside it gives the types where
`hatch_build.py` compiles it. `records/batch_scan.py` is the interface and takes the compiled twin if there is one;
tests compare both.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

HEADER_BYTES = 61
_PREFIX_BYTES = 12
_CRC_FROM = 21
_MAGIC = 2
_TRANSACTIONAL_OR_CONTROL = 0x30
_UNPACK = Struct(">qiibIhiqqq").unpack_from


def check_into(
    data: memoryview,
    at: int,
    available: int,
    next_offset: int,
    epoch: int,
    gaps: bool,
    offset_max: int,
    interval: int,
    since: int,
    greatest: int,
    greatest_offset: int,
    crc32c: Callable[[memoryview], int],
    entries: list[tuple[int, int, int, int]],
    epochs: list[tuple[int, int]],
    producers: list[tuple[int, int, bool]],
) -> tuple[int, int, int, int, int, int, bool]:
    """Check the whole batches in `data` from `at` on: lengths, offsets, leader epochs, checksums.

    The file has this much room for batches, in bytes from `data`'s first. `entries` gets (last offset, place in data,
    greatest time, the last offset of its batch) for each index entry that falls due after `interval` bytes; into
    `epochs` (epoch, offset) where one begins; into `producers` (id, place, transactional?) of each batch with one.

    Gives where the walk ended, the state it goes on with (next offset, epoch, bytes since an entry, greatest time and
    its offset), and whether it ended at something that is no good batch rather than at the end of `data`.
    """
    size = len(data)
    while size - at >= HEADER_BYTES:
        base, length, of_epoch, magic, crc, attributes, delta, _, newest, producer_id = _UNPACK(data, at)
        length += _PREFIX_BYTES
        if magic != _MAGIC or length < HEADER_BYTES or length > available - at or delta < 0 or of_epoch < epoch:
            return at, next_offset, epoch, since, greatest, greatest_offset, True
        if base < next_offset or (base > next_offset and not gaps) or base > offset_max - delta:
            return at, next_offset, epoch, since, greatest, greatest_offset, True
        if length > size - at:
            break
        if crc32c(data[at + _CRC_FROM : at + length]) != crc:
            return at, next_offset, epoch, since, greatest, greatest_offset, True
        last = base + delta
        if of_epoch > epoch:
            epochs.append((of_epoch, base))
            epoch = of_epoch
        if newest > greatest:
            greatest = newest
            greatest_offset = last
        if since > interval:
            entries.append((last, at, greatest, greatest_offset))
            since = 0
        since += length
        if producer_id >= 0:
            producers.append((producer_id, at, (attributes & _TRANSACTIONAL_OR_CONTROL) != 0))
        next_offset = last + 1
        at += length
    return at, next_offset, epoch, since, greatest, greatest_offset, False
