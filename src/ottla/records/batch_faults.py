"""Decides whether a record batch is valid: magic, length, offsets, leader epoch, checksum.

Appends of a leader and of a follower, verified reads, the scrubber, `ottla log verify`, compaction and the clients ask
here and answer each in their own way: an error of the protocol, a corrupt range, a log that cannot be compacted. The
loop of `_batch_scan.py` has the same rules for long runs of batches after an unclean shutdown; a test compares the two.
`batch.split`, with which clients walk the batches of an answer, checks magic and length only, and itself: its input may
end before a header does.
"""

from __future__ import annotations

from typing import Final

from ottla.core.checksums import crc32c
from ottla.records.batch import CRC_FROM, HEADER_BYTES, MAGIC, BatchHeader

VALID: Final = 0
WRONG_MAGIC: Final = 1
WRONG_LENGTH: Final = 2  # smaller than a header
INCOMPLETE: Final = 3  # longer than the bytes there are
WRONG_OFFSETS: Final = 4
WRONG_EPOCH: Final = 5


def framing_fault(header: BatchHeader, available_bytes: int) -> int:
    """Verify what can be known of a batch by itself: its magic, its length, and that it spans at least one offset."""
    if header.magic != MAGIC:
        return WRONG_MAGIC
    size_bytes = header.size_bytes
    if size_bytes < HEADER_BYTES:
        return WRONG_LENGTH
    if size_bytes > available_bytes:
        return INCOMPLETE
    return WRONG_OFFSETS if header.last_offset_delta < 0 else VALID


def order_fault(header: BatchHeader, next_offset: int, end_offset: int, leader_epoch: int = -1) -> int:
    """Verify a batch against its neighbours.

    It begins at or after `next_offset`, ends before `end_offset`, and leader epochs never decrease.
    """
    if header.base_offset < next_offset or header.base_offset + header.last_offset_delta >= end_offset:
        return WRONG_OFFSETS
    return WRONG_EPOCH if header.partition_leader_epoch < leader_epoch else VALID


def is_checksum_right(buffer: bytes | bytearray | memoryview, header: BatchHeader, at: int = 0) -> bool:
    """Return whether the checksum in `header` fits the bytes of its batch, which begins at `at` in `buffer`."""
    end = at + header.size_bytes
    if isinstance(buffer, (bytes, bytearray)):
        with memoryview(buffer) as view:
            return crc32c(view[at + CRC_FROM : end]) == header.crc
    return crc32c(buffer[at + CRC_FROM : end]) == header.crc


def describe_fault(
    fault: int, header: BatchHeader, available_bytes: int, next_offset: int, end_offset: int, leader_epoch: int
) -> str:
    """Describe a fault that one of the functions above has found."""
    if fault == WRONG_MAGIC:
        return f"its magic is {header.magic} where it should be {MAGIC}"
    if fault in {WRONG_LENGTH, INCOMPLETE}:
        return f"its length is {header.size_bytes} bytes, and {available_bytes} are there"
    if fault == WRONG_EPOCH:
        return f"its leader epoch is {header.partition_leader_epoch}, and that before it {leader_epoch}"
    if header.base_offset < next_offset:
        return f"its first offset is {header.base_offset}, and {next_offset} comes next"
    return f"its offsets are {header.base_offset} to {header.last_offset}, but the segment ends at {end_offset}"
