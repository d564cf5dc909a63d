"""Extracts the byte extents of records in many batches, as columns of numbers: Arrow arrays without a Python record.

`record_reader.py` makes an object of every key and value; here none is made. All batches are decompressed one after
another into one buffer, and the loop of `_record_reader.py` notes where in it each key, value and header begins and
ends. With those numbers any columnar library gathers the bytes by itself (`pipeline/connector/decoding.py` does, with
Arrow).
The caller leaves out control batches and those of aborted transactions.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ottla.core.errors import CorruptMessage
from ottla.core.settings import LONG_MAX
from ottla.records._record_reader import HEADERS, KEYS, VALUES
from ottla.records.batch import HEADER_BYTES, BatchHeader
from ottla.records.codecs import DECOMPRESSED_BYTES_MAX, Codec, decompress
from ottla.records.record_reader import LOOP

__all__ = ["HEADERS", "KEYS", "VALUES", "RecordColumns", "locate_records"]

_PIECE_BYTES = 64 << 20
"""After so many bytes of records a piece is given: edges are numbers of 32 bits, and memory stays bounded."""
_RECORD_BYTES_MIN = 7  # length, attributes and five varints
_BASE_OFFSET_MAX = LONG_MAX - (1 << 31)


@dataclass(slots=True)
class RecordColumns:
    """The records of some batches. The arrays are longer than `count` where records were left out."""

    data: bytes
    """The records' bytes, decompressed; what edges point into. Empty where neither keys, values nor headers count."""
    count: int
    offsets: array[int]
    timestamps_ms: array[int]
    """-1 where the producer gave none; meaningless where times were not asked for."""
    append_times: list[tuple[int, bool]]
    """Runs: so many records, and whether their time is that of the append."""
    slots: array[int]
    """Keys in the first half, values in the second: which edge a record's begins at; -1 for null."""
    edges: array[int]
    edge_count: int
    header_counts: list[int] = field(default_factory=list)
    header_edges: list[int] = field(default_factory=list)
    """Four per header: where its name begins and ends, and its value."""
    header_nulls: list[int] = field(default_factory=list)


def locate_records(
    batches: Iterable[tuple[memoryview, BatchHeader]],
    *,
    from_offset: int,
    end_offset: int,
    parts: int,
    times: bool = True,
    limit: int | None = None,
) -> Iterator[RecordColumns]:
    """Yield the records of whole batches, offsets from `from_offset` up to `end_offset`, some 64 MB of them at a time.

    `parts` are the bits KEYS, VALUES and HEADERS. Without any, and without `times`, a batch whose offsets have no gaps
    is not even decompressed: its header suffices. `limit` caps what each batch may decompress to. Raises
    CorruptMessage if lengths or counts lie; the checksum is the caller's to check.
    """
    held: list[tuple[BatchHeader, bytes | memoryview | None]] = []
    held_bytes = 0
    for view, header in batches:
        body = None if _header_suffices(header, parts, times) else _body(view, header, limit)
        held.append((header, body))
        held_bytes += len(body) if body is not None else 0
        if held_bytes >= _PIECE_BYTES:
            yield _scan_all(held, from_offset, end_offset, parts)
            held, held_bytes = [], 0
    if held:
        yield _scan_all(held, from_offset, end_offset, parts)


def _header_suffices(header: BatchHeader, parts: int, times: bool) -> bool:
    is_dense = 0 < header.record_count == header.last_offset_delta + 1 <= DECOMPRESSED_BYTES_MAX // _RECORD_BYTES_MIN
    return not parts and is_dense and (not times or header.log_append_time)


def _body(view: memoryview, header: BatchHeader, limit: int | None) -> bytes | memoryview:
    if header.codec > Codec.ZSTD:
        raise CorruptMessage(f"the batch at offset {header.base_offset}: there is no codec {header.codec}")
    body = view[HEADER_BYTES : header.size_bytes]
    if header.codec != Codec.NONE:
        body = memoryview(decompress(header.codec, body, limit=limit))
    if not 0 <= header.record_count <= len(body) // _RECORD_BYTES_MIN:
        raise CorruptMessage(f"the batch at offset {header.base_offset} cannot hold {header.record_count} records")
    return body


def _scan_all(
    held: list[tuple[BatchHeader, bytes | memoryview | None]], from_offset: int, end_offset: int, parts: int
) -> RecordColumns:
    capacity = sum(header.record_count for header, _ in held)
    wanted = bool(parts & KEYS) + bool(parts & VALUES)
    data = b"".join(body for _, body in held if body is not None)
    columns = RecordColumns(
        data=data if parts else b"",
        count=0,
        offsets=_zeros("q", capacity),
        timestamps_ms=_zeros("q", capacity),
        append_times=[],
        slots=_zeros("i", 2 * capacity),
        edges=_zeros("i", 2 * wanted * capacity),
        edge_count=0,
    )
    bounds = (max(from_offset, 0), min(end_offset, LONG_MAX))
    at = 0
    for header, body in held:
        if not 0 <= header.base_offset <= _BASE_OFFSET_MAX:
            raise CorruptMessage(f"a batch at offset {header.base_offset}")
        before = columns.count
        if body is None:
            _count_through(header, bounds, columns)
        else:
            _scan_one(header, data, at, at + len(body), bounds, parts, columns)
            at += len(body)
        if header.log_append_time:
            columns.timestamps_ms[before : columns.count] = array("q", [header.max_timestamp]) * (
                columns.count - before
            )
        _add_run(columns.append_times, columns.count - before, header.log_append_time)
    return columns


def _scan_one(
    header: BatchHeader, data: bytes, at: int, stop: int, bounds: tuple[int, int], parts: int, found: RecordColumns
) -> None:
    try:
        found.count, found.edge_count = LOOP.places_into(
            data,
            at,
            stop,
            header.record_count,
            header.base_offset,
            header.base_timestamp,
            *bounds,
            parts,
            found.offsets,
            found.timestamps_ms,
            found.slots,
            found.edges,
            [found.header_counts, found.header_edges, found.header_nulls],
            found.count,
            found.edge_count,
        )
    except (ValueError, IndexError, OverflowError) as error:
        raise CorruptMessage(f"the batch at offset {header.base_offset}: {error}") from error


def _count_through(header: BatchHeader, bounds: tuple[int, int], found: RecordColumns) -> None:
    first = max(header.base_offset, bounds[0])
    end = min(header.last_offset + 1, bounds[1])
    if first < end:
        found.offsets[found.count : found.count + end - first] = array("q", range(first, end))
        found.count += end - first


def _add_run(runs: list[tuple[int, bool]], count: int, is_append_time: bool) -> None:
    if runs and runs[-1][1] == is_append_time:
        runs[-1] = (runs[-1][0] + count, is_append_time)
    elif count:
        runs.append((count, is_append_time))


def _zeros(kind: str, count: int) -> array[int]:
    return array(kind, bytes(array(kind).itemsize * count))
