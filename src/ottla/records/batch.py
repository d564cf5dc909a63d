"""Reads and stamps the header of a record batch (v2) in place, in the buffer; no record is decoded.

On the path of a batch (ARCHITECTURE.md) storage reads the header that a client sent and stamps offsets into it,
replication and clients walk many batches in one buffer. The layout, all integers big-endian:

    offset  0  base_offset             8
            8  batch_length            4   bytes after this field
           12  partition_leader_epoch  4   set by the leader; outside the checksum
           16  magic                   1   always 2 here
           17  crc                     4   CRC-32C of everything from `attributes` on, unsigned
           21  attributes              2   0-2 codec, 3 log-append time, 4 transactional, 5 control, 6 delete horizon
           23  last_offset_delta       4
           27  base_timestamp          8
           35  max_timestamp           8
           43  producer_id             8
           51  producer_epoch          2
           53  base_sequence           4
           57  record_count            4
           61  records
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from ottla.core.checksums import crc32c
from ottla.core.errors import CorruptMessage

HEADER_BYTES: Final = 61
PREFIX_BYTES: Final = 12
"""Base offset and length: the bytes before those that `batch_length` counts."""
_LENGTH_AT: Final = 8

MAGIC: Final = 2
NO_END_OFFSET: Final = 1 << 63
"""After every offset: the end of a range that has none. It does not fit into 64 bits, as `LONG_MAX` does, which is an
offset that a batch may claim."""
NO_SEQUENCE: Final = -1
SEQUENCE_MAX: Final = (1 << 31) - 1
CRC_AT: Final = 17
CRC_FROM: Final = 21

CODEC_BITS: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40
KNOWN_ATTRIBUTES: Final = 0x7F
"""The bits with a meaning; as in Kafka the others are cleared wherever a header is written again."""

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
assert HEADER.size == HEADER_BYTES  # the table above and the format must agree
_UNPACK: Final = HEADER.unpack_from
_BASE_OFFSET: Final = struct.Struct(">q").pack_into
_EPOCH: Final = struct.Struct(">i").pack_into
ATTRIBUTES_BYTE_AT: Final = 22
"""The place of the second byte of `attributes`, which has all known ones."""
_EPOCH_AT: Final = 12
_CRC: Final = struct.Struct(">I").pack_into
_ATTRIBUTES: Final = struct.Struct(">h")
_MAX_TIMESTAMP: Final = struct.Struct(">q").pack_into
_MAX_TIMESTAMP_AT: Final = 35


class BatchHeader:
    """The header of the batch at an offset of a buffer. Values only: it keeps no reference to the buffer.

    Nothing is judged here; struct.error if fewer than `HEADER_BYTES` are left.
    """

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "batch_length",
        "crc",
        "last_offset",
        "last_offset_delta",
        "magic",
        "max_timestamp",
        "partition_leader_epoch",
        "producer_epoch",
        "producer_id",
        "record_count",
        "size_bytes",
    )

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    def __init__(self, buffer: bytes | bytearray | memoryview, at: int = 0) -> None:
        (
            self.base_offset,
            self.batch_length,
            self.partition_leader_epoch,
            self.magic,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.record_count,
        ) = _UNPACK(buffer, at)
        self.size_bytes = PREFIX_BYTES + self.batch_length  # the whole batch, header and records
        # The offset of the batch's last record (of its place: compaction may have removed the record).
        self.last_offset = self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> int:
        """The number of the compression codec; `records/codecs.py` knows 0 to 4."""
        return self.attributes & CODEC_BITS

    @property
    def log_append_time(self) -> bool:
        """Whether every record's time is `max_timestamp`, the time of its append."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether the batch's record is a marker of the broker and not a user's."""
        return bool(self.attributes & CONTROL)

    def __repr__(self) -> str:
        return (
            f"BatchHeader(offsets {self.base_offset} to {self.last_offset}, {self.size_bytes} bytes, "
            f"leader epoch {self.partition_leader_epoch}, codec {self.codec})"
        )


def stamp(buffer: bytearray | memoryview, at: int, *, base_offset: int, leader_epoch: int) -> None:
    """Give a producer's batch its place in the log, in place.

    Both fields are outside the checksum, so the producer's CRC stays valid: this is why a broker can append a
    compressed batch without opening it.
    """
    _BASE_OFFSET(buffer, at, base_offset)
    _EPOCH(buffer, at + _EPOCH_AT, leader_epoch)


def stamp_log_append_time(buffer: bytearray | memoryview, at: int, now_ms: int) -> None:
    """Make the time of the append the time of every record: two header fields, and so a new checksum."""
    header = BatchHeader(buffer, at)
    _ATTRIBUTES.pack_into(buffer, at + CRC_FROM, header.attributes & KNOWN_ATTRIBUTES | LOG_APPEND_TIME)
    _MAX_TIMESTAMP(buffer, at + _MAX_TIMESTAMP_AT, now_ms)
    write_crc(buffer, at, header.size_bytes)


def stamp_create_time(buffer: bytearray | memoryview, header: BatchHeader, max_timestamp: int) -> None:
    """Write that the times of the records are their producer's, and the greatest of them, with a new checksum.

    `buffer` is the batch, and `header` its header, which is changed too.
    """
    header.attributes &= KNOWN_ATTRIBUTES & ~LOG_APPEND_TIME
    header.max_timestamp = max_timestamp
    _ATTRIBUTES.pack_into(buffer, CRC_FROM, header.attributes)
    _MAX_TIMESTAMP(buffer, _MAX_TIMESTAMP_AT, max_timestamp)
    write_crc(buffer, 0, header.size_bytes)


def with_payload(header: BatchHeader, payload: bytes, *, codec: int, max_timestamp: int) -> bytearray:
    """Return the same records under another codec: their times and their producer stay, a delete horizon does not."""
    batch = bytearray(HEADER_BYTES)
    batch += payload
    HEADER.pack_into(
        batch,
        0,
        header.base_offset,
        len(batch) - PREFIX_BYTES,
        header.partition_leader_epoch,
        MAGIC,
        0,
        header.attributes & (TRANSACTIONAL | CONTROL) | codec,
        header.last_offset_delta,
        header.base_timestamp,
        max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.record_count,
    )
    write_crc(batch, 0, len(batch))
    return batch


def write_crc(buffer: bytearray | memoryview, at: int, size_bytes: int) -> None:
    """Put the checksum of the batch at `at` into its header."""
    with memoryview(buffer) as view:
        _CRC(buffer, at + CRC_AT, crc32c(view[at + CRC_FROM : at + size_bytes]))


def split(buffer: bytes | bytearray | memoryview, *, partial_tail: bool = False) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the position and the header of each batch in the buffer. Nothing is copied.

    With `partial_tail` the last batch may be incomplete, as in a fetch response, and is then left out. Raises
    CorruptMessage at a batch whose length is impossible or whose magic is not 2, after the batches before it.
    """
    at, end = 0, len(buffer)
    while at < end:
        left = end - at
        if partial_tail and (left < PREFIX_BYTES or not PREFIX_BYTES < _size_bytes_at(buffer, at) <= left):
            return
        if left < HEADER_BYTES:
            raise CorruptMessage(f"{left} bytes at {at} are too few for a batch")
        header = BatchHeader(buffer, at)
        if not HEADER_BYTES <= header.size_bytes <= left:
            raise CorruptMessage(f"a batch of {header.size_bytes} bytes at {at}, where {left} are left")
        if header.magic != MAGIC:
            raise CorruptMessage(f"a batch of magic {header.magic} at {at}")
        yield at, header
        at += header.size_bytes


def increment_sequence(sequence: int, increment: int) -> int:
    """Add to a sequence number; after 2^31-1 comes 0.

    >>> increment_sequence(2**31 - 1, 1), increment_sequence(5, 2), increment_sequence(0, -1) == SEQUENCE_MAX
    (0, 7, True)
    """
    return (sequence + increment) & SEQUENCE_MAX


def _size_bytes_at(buffer: bytes | bytearray | memoryview, at: int) -> int:
    """Return the size of the batch at `at` by its length field; the buffer may end before its header does."""
    return PREFIX_BYTES + int.from_bytes(buffer[at + _LENGTH_AT : at + PREFIX_BYTES], "big", signed=True)
