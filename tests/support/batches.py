"""Record batches written by hand, independently of Ottla's own builder, so that tests can also write wrong ones."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import cramjam
import lz4.frame
from crc32c import crc32c

AT_MS = 1_600_000_000_000  # the time of the first record unless a test says otherwise
CODECS: dict[int, Callable[[bytes], Any]] = {  # snappy without framing, as librdkafka writes it
    1: cramjam.gzip.compress,
    2: cramjam.snappy.compress_raw,
    3: partial(lz4.frame.compress, block_linked=False),  # Kafka reads no other
    4: cramjam.zstd.compress,
}


@dataclass(frozen=True, slots=True)
class Written:
    """One record to be written."""

    value: bytes | None = b"value"
    key: bytes | None = b"key"
    timestamp_delta_ms: int = 0
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


def varint(number: int) -> bytes:
    """A number as Kafka's zig-zag variable-length integer."""
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def record(written: Written, offset_delta: int) -> bytes:
    """One record's bytes with its length."""
    body = bytearray(b"\0")
    body += varint(written.timestamp_delta_ms) + varint(offset_delta) + _sized(written.key) + _sized(written.value)
    body += varint(len(written.headers))
    for name, value in written.headers:
        body += varint(len(name)) + name + _sized(value)
    return varint(len(body)) + bytes(body)


def batch(
    records: Sequence[Written] = (Written(),),
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    magic: int = 2,
    attributes: int = 0,
    base_timestamp_ms: int = AT_MS,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    crc_off_by: int = 0,
) -> bytes:
    """A whole batch; the low three bits of `attributes` choose the codec."""
    body = b"".join(record(each, index) for index, each in enumerate(records))
    if codec := CODECS.get(attributes & 7):
        body = bytes(codec(body))
    return with_payload(
        body,
        count=len(records),
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        magic=magic,
        attributes=attributes,
        base_timestamp_ms=base_timestamp_ms,
        producer_id=producer_id,
        newest_ms=base_timestamp_ms + max((each.timestamp_delta_ms for each in records), default=0),
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        crc_off_by=crc_off_by,
    )


def with_payload(
    payload: bytes,
    *,
    count: int,
    last_delta: int | None = None,
    newest_ms: int = AT_MS,
    base_offset: int = 0,
    leader_epoch: int = -1,
    magic: int = 2,
    attributes: int = 0,
    base_timestamp_ms: int = AT_MS,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    crc_off_by: int = 0,
) -> bytes:
    """A header around a payload as it is, whatever it is; the header may lie about all of it."""
    after_crc = (
        struct.pack(
            ">hiqqqhi",
            attributes,
            count - 1 if last_delta is None else last_delta,
            base_timestamp_ms,
            newest_ms,
            producer_id,
            producer_epoch,
            base_sequence,
        )
        + struct.pack(">i", count)
        + payload
    )
    head = struct.pack(">ibI", leader_epoch, magic, (crc32c(after_crc) + crc_off_by) & 0xFFFFFFFF)
    return struct.pack(">qi", base_offset, len(head) + len(after_crc)) + head + after_crc


def numbered(count: int, *, size: int = 20) -> list[Written]:
    """Records with different values and times one millisecond apart."""
    return [Written(b"%0*d" % (size, number), b"k%d" % number, number) for number in range(count)]
