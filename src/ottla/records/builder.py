"""Builds a record batch: for our own client, for coordinators' records, for compaction and for tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from ottla.records.batch import (
    CONTROL,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    PREFIX_BYTES,
    TRANSACTIONAL,
    write_crc,
)
from ottla.records.codecs import Codec, compress

_NO_ATTRIBUTES: Final = b"\x00"
_NO_HEADERS: Final = b"\x00"
_NULL: Final = b"\x01"  # the zigzag varint of -1
_ONE_BYTE: Final[tuple[bytes, ...]] = tuple(bytes((number,)) for number in range(0x80))


class NewRecord(NamedTuple):
    """A record that has no offset yet: it takes the next one of its batch."""

    key: bytes | None = None
    value: bytes | None = None
    timestamp_ms: int = -1
    headers: Sequence[tuple[str, bytes | None]] = ()


class Buildable(Protocol):
    """A record for `build_batch`; one that also has an `offset` keeps it (compaction leaves gaps)."""

    @property
    def timestamp_ms(self) -> int:
        """Return the timestamp; -1 for none."""

    @property
    def key(self) -> bytes | None:
        """The key, or null."""

    @property
    def value(self) -> bytes | None:
        """The value, or null: a tombstone."""

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        """Names and values, in order; names may repeat."""


def build_batch(
    records: Iterable[Buildable],
    *,
    base_offset: int = 0,
    last_offset: int | None = None,
    codec: int = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    leader_epoch: int = -1,
    transactional: bool = False,
    control: bool = False,
    log_append_time_ms: int | None = None,
) -> bytearray:
    """Build one batch of the records, checksum and all.

    `last_offset` is that of the last record unless given: a compacted batch keeps the place of records that are gone.
    With `log_append_time_ms` that time stands for every record's. A batch may be empty (compaction leaves such ones).
    """
    body = bytearray()
    count, last_delta = 0, -1
    base_timestamp = max_timestamp = -1
    for record in records:
        offset = getattr(record, "offset", None)
        last_delta = last_delta + 1 if offset is None else offset - base_offset
        timestamp_ms = record.timestamp_ms
        if count == 0:
            base_timestamp = timestamp_ms
        if timestamp_ms > max_timestamp:
            max_timestamp = timestamp_ms
        _append_record(body, record, delta=last_delta, delta_ms=timestamp_ms - base_timestamp)
        count += 1
    if last_offset is not None:
        last_delta = last_offset - base_offset
    attributes = int(codec) | (TRANSACTIONAL if transactional else 0) | (CONTROL if control else 0)
    if log_append_time_ms is not None:
        attributes |= LOG_APPEND_TIME
        max_timestamp = log_append_time_ms
    batch = bytearray(HEADER_BYTES)
    batch += compress(codec, body) if codec else body
    HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - PREFIX_BYTES,
        leader_epoch,
        MAGIC,
        0,
        attributes,
        last_delta if last_delta > 0 else 0,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    write_crc(batch, 0, len(batch))
    return batch


def _append_record(body: bytearray, record: Buildable, *, delta: int, delta_ms: int) -> None:
    key, value, headers = record.key, record.value, record.headers
    fields = b"".join(
        (
            _NO_ATTRIBUTES,
            varint(delta_ms),
            varint(delta),
            _NULL if key is None else varint(len(key)),
            key or b"",
            _NULL if value is None else varint(len(value)),
            value or b"",
            _headers(headers) if headers else _NO_HEADERS,
        )
    )
    body += varint(len(fields))
    body += fields


def _headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    parts = [varint(len(headers))]
    for name, value in headers:
        encoded = name.encode()
        parts += (varint(len(encoded)), encoded, _NULL if value is None else varint(len(value)), value or b"")
    return b"".join(parts)


def varint(value: int) -> bytes:
    """Encode a zigzag varint.

    >>> varint(-1).hex(), varint(300).hex()
    ('01', 'd804')
    """
    value = (value << 1) ^ (value >> 63)
    if value < 0x80:
        return _ONE_BYTE[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
