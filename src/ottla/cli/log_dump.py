"""Dumps the files of a log directory item by item: batches, records, index entries, producers, checkpoints.

Each item is a dictionary of plain values: one JSON object, or one line of text (`line_of`). A part that cannot be
parsed becomes an item with a `problem`, and the dump continues: no content of a file ends in a traceback.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import Any

from ottla.core.errors import CorruptMessage
from ottla.core.files import File, FileAccess, read_file
from ottla.core.ids import OFFSETS_TOPIC
from ottla.groups.records import ForeignRecord, GroupRecord, MalformedOffsetsRecord, OffsetRecord, decode
from ottla.records.batch import HEADER_BYTES, NO_END_OFFSET, BatchHeader
from ottla.records.codecs import Codec
from ottla.records.record_reader import Record, read_records
from ottla.storage import small_files as names
from ottla.storage.file_names import (
    CHECKSUMS_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from ottla.storage.integrity.block_checksums import parse
from ottla.storage.integrity.metadata_backup import FILE_NAME as COPIES_FILE
from ottla.storage.integrity.range_verifier import find_next_valid_batch, is_reserve, verify_batches
from ottla.storage.state.aborted_index import ENTRY_BYTES
from ottla.storage.state.end_marker import read_marker
from ottla.storage.state.leader_epochs import FILE_NAME as EPOCHS_FILE
from ottla.storage.state.producer_snapshots import read_snapshot

Item = dict[str, Any]
_NUMBERED = re.compile(r"(?P<base>[0-9]{20})(?P<suffix>\.[a-z]+)(\..+)?")


class UnknownFileType(Exception):
    """The file is not one that a log directory contains."""


def dump(files: FileAccess, path: PurePath, *, records: bool, first_offset: int, end_offset: int) -> Iterator[Item]:
    """Yield the items of a file. Raises UnknownFileType and OSError."""
    numbered = _NUMBERED.fullmatch(path.name)
    suffix, base = (numbered["suffix"], int(numbered["base"])) if numbered else (path.suffix, None)

    def wanted(first: int, last: int) -> bool:
        return last >= first_offset and first < end_offset

    match suffix:
        case ".log":
            return _batches(files, path, base, wanted, records=records)
        case ".index" | ".timeindex" | ".txnindex" if base is not None or suffix == TXN_INDEX_SUFFIX:
            return _entries(read_file(files, path), suffix, base or 0, wanted)
        case ".snapshot":
            return _producers(read_file(files, path))
        case ".sums":
            return _sums(read_file(files, path))
    if path.name in {*names.OFFSET_FILES, EPOCHS_FILE}:
        return _lines(read_file(files, path), path.name, wanted)
    if path.name in {names.META_PROPERTIES, names.PARTITION_METADATA, names.CLEAN_SHUTDOWN}:
        return _text(read_file(files, path))
    if path.name == COPIES_FILE:
        return _copies(read_file(files, path))
    raise UnknownFileType(
        f"{path} is not a file of a log directory: those are {LOG_SUFFIX}, {INDEX_SUFFIX}, {TIME_INDEX_SUFFIX}, "
        f"{TXN_INDEX_SUFFIX}, {SNAPSHOT_SUFFIX}, {CHECKSUMS_SUFFIX}, the checkpoints, meta.properties and "
        "partition.metadata"
    )


def line_of(item: Item) -> str:
    """Format an item as a line: its fields in order without absent ones; records are indented under their batch.

    >>> line_of({"offset": 7, "position": 512}), line_of({"record": 3, "key": "k", "value": None})
    ('offset 7  position 512', '  record 3  key "k"  value null')
    """
    parts = []
    for name, value in item.items():
        if value is None and name not in {"key", "value"}:
            continue
        shown = (
            json.dumps(value, ensure_ascii=False) if isinstance(value, (str, list, dict)) or value is None else value
        )
        is_word = isinstance(value, str) and name not in {"key", "value", "headers"}
        parts.append(f"{name} {value if is_word else shown}")
    return ("  " if "record" in item else "") + "  ".join(parts)


# ---- Logs


class _NoBoundaries:
    """Positions without an index: only the end of the file is known."""

    def __init__(self, end: int) -> None:
        self._end = end

    def position_at_or_above(self, position: int) -> int | None:
        """Return the end of the file."""
        return self._end if position <= self._end else None


def _batches(
    files: FileAccess, path: PurePath, base: int | None, wanted: Callable[[int, int], bool], *, records: bool
) -> Iterator[Item]:
    file = files.open(path)
    is_offsets = path.parent.name.startswith(f"{OFFSETS_TOPIC}-")
    try:
        position, size, next_offset = 0, file.size(), base
        while position < size:
            result = verify_batches(
                file,
                position,
                position + HEADER_BYTES,
                segment_end=size,
                next_offset=next_offset,
                end_offset=NO_END_OFFSET,
                batches_max=1,
            )
            if result.wrong is None and result.end > position:
                header = BatchHeader(file.read_at(position, HEADER_BYTES))
                if wanted(header.base_offset, header.last_offset):
                    yield _batch(header, position)
                    if records:
                        yield from _records(file, position, header, wanted, is_offsets=is_offsets)
                position, next_offset = result.end, header.last_offset + 1
                continue
            if is_reserve(file, position):
                yield {"position": position, "size_bytes": size - position, "reserved": "zeros for the next batches"}
                return
            after = find_next_valid_batch(
                file,
                position,
                size,
                next_offset=next_offset or 0,
                end_offset=NO_END_OFFSET,
                boundaries=_NoBoundaries(size),
            )
            end = size if after is None else after.position
            yield {"position": position, "size_bytes": end - position, "problem": result.wrong or "there is no batch"}
            position, next_offset = end, None if after is None else after.header.base_offset
    finally:
        file.close()


def _batch(header: BatchHeader, position: int) -> Item:
    has_producer = header.producer_id >= 0
    return {
        "first_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "position": position,
        "size_bytes": header.size_bytes,
        "leader_epoch": header.partition_leader_epoch,
        "codec": Codec(header.codec).name.lower() if header.codec <= Codec.ZSTD else f"unknown {header.codec}",
        "max_timestamp_ms": header.max_timestamp,
        "timestamps": "log append" if header.log_append_time else "create",
        "producer_id": header.producer_id if has_producer else None,
        "producer_epoch": header.producer_epoch if has_producer else None,
        "first_sequence": header.base_sequence if has_producer and header.base_sequence >= 0 else None,
        "transactional": header.is_transactional or None,
        "control": header.is_control or None,
        "crc": f"{header.crc:08x}",
    }


def _records(
    file: File, position: int, header: BatchHeader, wanted: Callable[[int, int], bool], *, is_offsets: bool
) -> Iterator[Item]:
    batch = memoryview(file.read_at(position, header.size_bytes))
    try:
        if header.is_control:
            marker = read_marker(batch)
            kind = marker.type.name.lower() if marker is not None else "of an unknown type"
            epoch = marker.coordinator_epoch if marker is not None else None
            yield {"record": header.base_offset, "marker": kind, "coordinator_epoch": epoch}
            return
        for record in read_records(batch):
            if wanted(record.offset, record.offset):
                yield _group_record(record) if is_offsets else _record(record)
    except CorruptMessage as error:
        yield {"record": header.base_offset, "problem": error.message}


def _record(record: Record) -> Item:
    shown: Item = {"record": record.offset, "timestamp_ms": record.timestamp_ms}
    _put(shown, "key", record.key)
    _put(shown, "value", record.value)
    if record.headers:
        shown["headers"] = [_put({"key": name}, "value", value) for name, value in record.headers]
    return shown


def _put(shown: Item, name: str, value: bytes | None) -> Item:
    """Add text as it is, other bytes in base64 under another name, as `ottla consume --format json` does."""
    try:
        shown[name] = None if value is None else value.decode()
    except UnicodeDecodeError:
        assert value is not None, "there was something to decode"
        shown[f"{name}_base64"] = base64.b64encode(value).decode()
    return shown


def _group_record(record: Record) -> Item:
    """Decode a record of `__consumer_offsets`."""
    shown: Item = {"record": record.offset, "timestamp_ms": record.timestamp_ms}
    try:
        match decode(record.key or b"", record.value):
            case OffsetRecord(group_id, partition, committed):
                shown |= {"group": group_id, "partition": str(partition), "committed": None}
                if committed is None:
                    return shown | {"deleted": True}
                return shown | {
                    "committed": committed.offset,
                    "leader_epoch": committed.leader_epoch,
                    "metadata": committed.metadata,
                    "committed_ms": committed.committed_wall_ms,
                }
            case GroupRecord(group_id, None):
                return shown | {"group": group_id, "deleted": True}
            case GroupRecord(group_id, snapshot) if snapshot is not None:
                return shown | {
                    "group": group_id,
                    "protocol_type": snapshot.protocol_type,
                    "generation": snapshot.generation,
                    "protocol": snapshot.protocol,
                    "leader": snapshot.leader,
                    "members": [member.member_id for member in snapshot.members],
                }
            case ForeignRecord(version):
                shown["kind"] = f"key version {version}, of another group protocol"
    except (MalformedOffsetsRecord, ValueError) as error:
        shown["problem"] = f"it is not a record of a group: {error}"
    return _record(record) | shown


# ---- Other files


def _entries(data: bytes, suffix: str, base: int, wanted: Callable[[int, int], bool]) -> Iterator[Item]:
    form = {INDEX_SUFFIX: ">ii", TIME_INDEX_SUFFIX: ">qi", TXN_INDEX_SUFFIX: ">hqqqq"}[suffix]
    size = struct.calcsize(form)
    assert size == ENTRY_BYTES or suffix != TXN_INDEX_SUFFIX, "Kafka's entry"
    before: tuple[int, ...] | None = None
    for at in range(0, len(data) - size + 1, size):
        fields = struct.unpack_from(form, data, at)
        item: Item
        match suffix:
            case ".index":
                item = {"offset": fields[0] + base, "position": fields[1]}
                first = last = fields[0] + base
            case ".timeindex":
                item = {"timestamp_ms": fields[0], "offset": fields[1] + base}
                first = last = fields[1] + base
            case _:
                version, producer_id, first, last, stable = fields
                item = {
                    "producer_id": producer_id,
                    "first_offset": first,
                    "last_offset": last,
                    "last_stable_offset": stable,
                }
                if version:
                    item["problem"] = f"version {version} is not known"
        if suffix != TXN_INDEX_SUFFIX and before is not None and not all(map(int.__lt__, before, fields)):
            item["problem"] = "it is not above the previous entry"
        before = fields
        if wanted(first, last) or "problem" in item:
            yield item
    if len(data) % size:
        yield {
            "position": len(data) - len(data) % size,
            "problem": f"{len(data) % size} bytes are not a complete entry",
        }


def _producers(data: bytes) -> Iterator[Item]:
    rows = read_snapshot(data)
    if rows is None:
        yield {"size_bytes": len(data), "problem": "it is not a valid snapshot: version, length or checksum is wrong"}
        return
    fields = (
        "producer_id",
        "producer_epoch",
        "last_sequence",
        "last_offset",
        "offset_delta",
        "timestamp_ms",
        "coordinator_epoch",
        "transaction_first_offset",
    )
    for row in rows:
        yield dict(zip(fields, row, strict=True))


def _lines(data: bytes, name: str, wanted: Callable[[int, int], bool]) -> Iterator[Item]:
    """Parse a checkpoint: version, number of lines, and the lines."""
    lines = data.decode(errors="replace").split("\n")
    fields = ("leader_epoch", "start_offset") if name == EPOCHS_FILE else ("topic", "partition", "offset")
    for number, line in enumerate(lines[2:], start=3):
        if not line and number == len(lines):
            break
        words = line.split(" ")
        numbers = words if name == EPOCHS_FILE else words[1:]
        if len(words) != len(fields) or not all(word.lstrip("-").isdecimal() for word in numbers):
            yield {"line": number, "text": line, "problem": "it cannot be parsed"}
            continue
        values = [int(word) if word.lstrip("-").isdecimal() and at else word for at, word in enumerate(words)]
        item = dict(zip(fields, [int(word) for word in words] if name == EPOCHS_FILE else values, strict=True))
        if wanted(int(words[-1]), int(words[-1])):
            yield item
    count = len(lines) - 3
    if lines[0] != "0" or lines[1:2] != [str(count)] or lines[-1]:
        yield {
            "line": 1,
            "text": " ".join(lines[:2])[:80],
            "problem": f"version 0 and {count} lines were expected, with a newline after the last",
        }


def _text(data: bytes) -> Iterator[Item]:
    for number, line in enumerate(data.decode(errors="replace").splitlines(), start=1):
        item: Item = {"line": number, "text": line}
        if "\ufffd" in line:
            item["problem"] = "it is not text"
        yield item


def _copies(data: bytes) -> Iterator[Item]:
    from ottla.storage.integrity.metadata_backup import parse as parse_copies

    entries = parse_copies(data)
    if entries is None:
        yield {"size_bytes": len(data), "problem": "its checksum is wrong"}
        return
    for name, copy in entries.items():
        yield {"file": name, "size_bytes": copy.size_bytes, "crc": f"{copy.crc:08x}", "modified_ns": copy.modified_ns}


def _sums(data: bytes) -> Iterator[Item]:
    sums = parse(data)
    if sums is None:
        yield {"size_bytes": len(data), "problem": "its checksum is wrong"}
        return
    yield {"log_bytes": sums.log_bytes, "modified_ns": sums.log_modified_ns, "blocks": len(sums.blocks)}
    for suffix, copy in sums.indexes.items():
        yield {"file": suffix, "size_bytes": copy.size_bytes, "crc": f"{copy.crc:08x}"}
