"""Reads and writes the batches of metadata records in segments and snapshots of `__cluster_metadata`.

A snapshot (`<end offset>-<epoch>.checkpoint`, and `bootstrap.checkpoint`, which a new cluster begins with) is a file of
ordinary batches between a header and a footer, which are control records; without its footer it is incomplete. In the
log, control records hold elections and voters; only the export writes these.
Source: KIP-630, KIP-853; SnapshotHeaderRecord, SnapshotFooterRecord, KRaftVersionRecord, VotersRecord.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from itertools import islice
from typing import NamedTuple
from uuid import UUID

from ottla.core.errors import CorruptMessage
from ottla.metadata_store.kraft_records import MalformedMetadata
from ottla.records.batch import HEADER_BYTES, MAGIC, BatchHeader
from ottla.records.batch_faults import is_checksum_right
from ottla.records.builder import NewRecord, build_batch
from ottla.records.record_reader import Record, read_records
from ottla.wire.primitives import string_writer, write_uuid, write_uvarint

_RECORDS_PER_BATCH = 500
_LEADER_EPOCH = 0
_KRAFT_VERSION = 1  # of the quorum: voters are records of the log (KIP-853)
_NO_TAGS = b"\x00"


class ControlRecordType(IntEnum):
    """Lists the control records of a metadata log."""

    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class Voter(NamedTuple):
    """The one controller of an exported cluster, and its address."""

    node_id: int
    directory_id: UUID
    listener: str
    host: str
    port: int


def batches(data: memoryview, *, from_offset: int = 0) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Iterate over the complete batches from `from_offset` on; ends at the first incomplete one, left by a crash.

    Earlier batches are skipped by their lengths: a segment may hold a week of no-op records after a snapshot.
    """
    at, next_offset = 0, 0
    while at + HEADER_BYTES <= len(data):
        header = BatchHeader(data, at)
        if header.magic != MAGIC or not HEADER_BYTES <= header.size_bytes <= len(data) - at:
            return
        if header.last_offset >= from_offset:
            batch = data[at : at + header.size_bytes]
            if header.base_offset < next_offset or not is_checksum_right(batch, header):
                return
            yield header, batch
            next_offset = header.last_offset + 1
        at += header.size_bytes


def values(data: memoryview, *, from_offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """Iterate over the offset and value of every metadata record. Raises MalformedMetadata for one without a value."""
    for header, batch in batches(data, from_offset=from_offset):
        if header.is_control:
            continue
        for record in _records(batch):
            if record.offset >= from_offset:
                if record.value is None:
                    raise MalformedMetadata(f"a metadata record without a value at offset {record.offset}")
                yield record.offset, record.value


def is_whole_snapshot(data: memoryview) -> bool:
    """Return whether a snapshot is complete, that is ends with its footer."""
    end, last = 0, None
    for last in batches(data):
        end += last[0].size_bytes
    if last is None or end != len(data) or not last[0].is_control:
        return False
    return any(_control_kind(record) == ControlRecordType.SNAPSHOT_FOOTER for record in _records(last[1]))


def _records(batch: memoryview) -> list[Record]:
    try:
        return list(read_records(batch))
    except CorruptMessage as error:
        raise MalformedMetadata(str(error)) from error


def _control_kind(record: Record) -> int:
    return struct.unpack(">hh", record.key)[1] if record.key is not None and len(record.key) == 4 else -1


# ---- Writing a snapshot


def snapshot(records: Iterable[bytes], *, now_ms: int, voter: Voter | None = None) -> bytes:
    """Build a complete snapshot file from record values; with a voter it includes the quorum."""
    head = [_control(ControlRecordType.SNAPSHOT_HEADER, struct.pack(">hq", 0, now_ms), now_ms)]
    if voter is not None:
        head.append(_control(ControlRecordType.KRAFT_VERSION, struct.pack(">hh", 0, _KRAFT_VERSION), now_ms))
        head.append(_control(ControlRecordType.KRAFT_VOTERS, _voters(voter), now_ms))
    out = bytearray(build_batch(head, leader_epoch=_LEADER_EPOCH, control=True))
    offset = len(head)
    waiting = iter([NewRecord(None, value, now_ms) for value in records])
    while batch := list(islice(waiting, _RECORDS_PER_BATCH)):
        out += build_batch(batch, base_offset=offset, leader_epoch=_LEADER_EPOCH)
        offset += len(batch)
    footer = _control(ControlRecordType.SNAPSHOT_FOOTER, struct.pack(">h", 0), now_ms)
    out += build_batch([footer], base_offset=offset, leader_epoch=_LEADER_EPOCH, control=True)
    return bytes(out)


def _control(kind: ControlRecordType, fields: bytes, now_ms: int) -> NewRecord:
    """Build a control record: version and kind are its key, the fields and an empty tag section its value."""
    return NewRecord(struct.pack(">hh", 0, kind), fields + _NO_TAGS, now_ms)


def _voters(voter: Voter) -> bytes:
    """Encode VotersRecord version 0 with one voter and one endpoint."""
    out = bytearray(struct.pack(">h", 0))
    text = string_writer(flexible=True, nullable=False)
    write_uvarint(out, 1 + 1)  # voters
    out += struct.pack(">i", voter.node_id)
    write_uuid(out, voter.directory_id)
    write_uvarint(out, 1 + 1)  # endpoints
    text(out, voter.listener)
    text(out, voter.host)
    out += struct.pack(">H", voter.port) + _NO_TAGS
    out += struct.pack(">hh", 0, _KRAFT_VERSION) + _NO_TAGS  # the quorum versions it supports
    return bytes(out + _NO_TAGS)
