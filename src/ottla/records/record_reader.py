"""Reads the records of batches: for compaction, timestamps, consoles and Arrow. Append and fetch do not use it.

`scan` gives the records of one batch, `columns` those of many batches at once, as columns. The loop under both is
`records/_record_reader.py`, or its compiled twin where the machine that built the package could make one
(`hatch_build.py`); `COMPILED` is True then.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from ottla.compiled import fastest
from ottla.core.errors import CorruptMessage
from ottla.records import _record_reader
from ottla.records.batch import HEADER_BYTES, NO_END_OFFSET, BatchHeader, split
from ottla.records.codecs import Codec, decompress

LOOP = fastest(_record_reader)
"""The module with the loops over records: `_record_reader`, or its compiled twin."""
COMPILED = LOOP is not _record_reader
"""Whether the loop over records runs as machine code here."""

_EVERYTHING = ("key", "value", "headers")
Headers = list[tuple[str, bytes | None]]


class Record(NamedTuple):
    """One record. `timestamp_ms` is -1 if its producer set none. Invalid UTF-8 in header names is replaced."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Columns(NamedTuple):
    """Many records, a column each; one that was not wanted is empty."""

    offsets: array[int]
    timestamps_ms: array[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers]


def read_records(batch: bytes | bytearray | memoryview, *, limit: int | None = None) -> Iterator[Record]:
    """Read the records of the batch that `batch` begins with, control records too (the header marks them).

    All are decoded before the first is given. CorruptMessage if lengths or counts lie, or if more than `limit` bytes
    come out of the compression (`codecs.decompressed_max` unless given); the checksum is the caller's to check
    (`is_checksum_right`).
    """
    _, header = next(split(batch), (0, None))
    if header is None:
        raise CorruptMessage("no batch at all")
    columns = Columns(array("q"), array("q"), [], [], [])
    with memoryview(batch) as view:
        offsets, timestamps = _scan_batch(view, header, -NO_END_OFFSET, NO_END_OFFSET, columns, _EVERYTHING, limit)
    return map(Record, offsets, timestamps, columns.keys, columns.values, columns.headers)


def read_columns(
    buffer: bytes | bytearray | memoryview,
    *,
    from_offset: int = 0,
    end_offset: int = NO_END_OFFSET,
    want: Collection[str] = _EVERYTHING,
    include: Callable[[BatchHeader], bool] | None = None,
    limit: int | None = None,
) -> Columns:
    """Read the users' records in a buffer of whole batches, offsets from `from_offset` up to `end_offset` (exclusive).

    `want` names the columns besides offsets and timestamps: "key", "value", "headers". Control batches are passed
    over, and so are those that `include` does not want (a transaction that was aborted). `limit` caps what each batch
    may decompress to. CorruptMessage as in `scan`.
    """
    columns = Columns(array("q"), array("q"), [], [], [])
    with memoryview(buffer) as view:
        for at, header in split(view):
            outside = header.last_offset < from_offset or header.base_offset >= end_offset
            if outside or header.is_control or (include is not None and not include(header)):
                continue
            with view[at : at + header.size_bytes] as batch:
                offsets, timestamps = _scan_batch(batch, header, from_offset, end_offset, columns, want, limit)
            columns.offsets.extend(offsets)
            columns.timestamps_ms.extend(timestamps)
    return columns


def _scan_batch(
    batch: memoryview,
    header: BatchHeader,
    from_offset: int,
    end_offset: int,
    found: Columns,
    want: Collection[str],
    limit: int | None,
) -> tuple[array[int], array[int]]:
    """Add keys, values and headers to `found`; return offsets and timestamps."""
    if header.codec > Codec.ZSTD:
        raise CorruptMessage(f"the batch at offset {header.base_offset}: there is no codec {header.codec}")
    data = decompress(header.codec, batch[HEADER_BYTES : header.size_bytes], limit=limit)
    offsets: list[int] = []
    timestamps: list[int] = []
    try:
        if header.record_count < 0:
            raise ValueError("a negative count of records")
        LOOP.scan_into(
            data,
            header.record_count,
            header.base_offset,
            header.base_timestamp,
            from_offset,
            end_offset,
            offsets,
            timestamps,
            found.keys if "key" in want else None,
            found.values if "value" in want else None,
            found.headers if "headers" in want else None,
        )
        if header.log_append_time:
            timestamps = [header.max_timestamp] * len(offsets)
        return array("q", offsets), array("q", timestamps)
    except (ValueError, IndexError, OverflowError) as error:
        raise CorruptMessage(f"the batch at offset {header.base_offset}: {error}") from error
