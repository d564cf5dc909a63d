"""Computes the content checksums of rows, column by column: those that `client/content.py` defines for records.

The checksum of a row is the sum of those of its values that are not null, each mixed with its column's path. So it
stays the same when the table gets columns, when a column is promoted to a wider type (a number counts by its value, a
date as its midnight), when rows move to another file, and when another program writes the same values.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ottla.client.content import (
    ELEMENT,
    LENGTH_MASK,
    LIST,
    MIX_FACTORS,
    MIX_SHIFTS,
    PLACE_FACTOR,
    STRUCT,
    SUM_MASK,
    ContentSum,
    salt,
)
from ottla.core.checksums import crc32c
from ottla.pipeline.lake.schema import outside_of_years, without

Words = NDArray[np.uint64]
Path = tuple[str, ...]
COORDINATES = ("topic", "partition", "offset")
"""The place that a row is from: an audit compares rows of the same place."""
_FRACTION = 0x66726163
_LONG_END = float(1 << 63)


Known = dict[tuple[Any, ...], Words]
"""The checksums of columns by their memory: the rows of a batch may keep columns of its records as they are."""


def row_checksums(rows: pa.Table, leave_out: Collection[str] = (), known: Known | None = None) -> Words:
    """Return the checksum of each row, of all columns but its coordinates and those to leave out."""
    checksums = np.zeros(len(rows), np.uint64)
    for name in rows.column_names:
        if name not in COORDINATES and name not in leave_out:
            checksums += _checksums(rows[name], (name,)) if known is None else _remembered(rows[name], name, known)
    return checksums


def _remembered(column: pa.ChunkedArray, name: str, known: Known) -> Words:
    if column.num_chunks != 1:
        return _checksums(column, (name,))
    values = column.chunk(0)
    memory = tuple(None if buffer is None else buffer.address for buffer in values.buffers())
    key = (name, str(values.type), values.offset, len(values), memory)
    if key not in known:
        known[key] = _checksums(values, (name,))
    return known[key]


def record_checksums(records: pa.RecordBatch, known: Known | None = None) -> Words:
    """Return the checksum of each record, of its key, value, time and headers."""
    times = records.column("record_time")
    columns = {"key": records.column("key"), "value": records.column("value")}
    columns["record_time"] = without(times, outside_of_years(times))
    if "headers" in records.schema.names:
        columns["headers"] = records.column("headers")
    return row_checksums(pa.table(columns), known=known)


def quarantine_checksums(rows: pa.Table) -> Words:
    """Return the checksums of the records that quarantined rows keep."""
    names = {"raw": "value"}
    rows = rows.select([name for name in rows.column_names if name != "reason"])
    return row_checksums(rows.rename_columns([names.get(name, name) for name in rows.column_names]))


def sum_of(offsets: NDArray[np.int64], checksums: Words) -> ContentSum:
    """Add up the checksums of some offsets."""
    total = int(checksums.sum(dtype=np.uint64)) & SUM_MASK
    weighted = int((checksums * offsets.astype(np.uint64)).sum(dtype=np.uint64)) & SUM_MASK
    return ContentSum(len(offsets), total, weighted)


def _checksums(values: Any, path: Path) -> Words:
    """Return the checksum of each value; 0 for null."""
    if isinstance(values, pa.ChunkedArray):
        if values.num_chunks != 1:
            parts = [_checksums(chunk, path) for chunk in values.chunks]
            return np.concatenate(parts) if parts else np.zeros(0, np.uint64)
        values = values.chunk(0)
    if values.null_count == len(values):
        return np.zeros(len(values), np.uint64)
    t, kind = pa.types, values.type
    if t.is_dictionary(kind):
        values = values.dictionary_decode()
        kind = values.type
    if t.is_struct(kind):
        checksums = _struct(values, path)
    elif t.is_map(kind) or t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        checksums = _lists(values, path)
    elif t.is_decimal(kind):
        checksums = _decimals(values, path)
    else:
        checksums = _mix(_words(values) ^ np.uint64(salt(path)))
    if values.null_count:
        checksums = np.where(_valid(values), checksums, np.uint64(0))
    return checksums


def _words(values: pa.Array) -> Words:
    """Return what stands for each value of a type without parts; anything for null."""
    t, kind = pa.types, values.type
    if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind):
        return _of_distinct(values.cast(pa.large_binary()))
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_binary_view(kind) or t.is_fixed_size_binary(kind):
        return _of_bytes(values.cast(pa.large_binary()))
    if t.is_floating(kind):
        return _of_fractions(np.asarray(pc.fill_null(values.cast(pa.float64()), 0.0)))
    if t.is_temporal(kind) and not t.is_time(kind):
        values = values.cast(pa.timestamp("us", kind.tz) if t.is_timestamp(kind) else pa.timestamp("us"))
    elif t.is_time(kind):
        return _of_longs(values.cast(pa.int32() if kind.bit_width == 32 else pa.int64()))
    return _of_longs(values)


def _of_longs(values: Any) -> Words:
    numbers = pc.fill_null(values.cast(pa.int64()), 0)
    return np.asarray(numbers).astype(np.int64).view(np.uint64)


def _of_fractions(values: NDArray[np.float64]) -> Words:
    """Return the word of each number: of a whole one that of the same long, for a column of longs may be promoted."""
    with np.errstate(invalid="ignore"):
        whole = (np.floor(values) == values) & (values >= -_LONG_END) & (values < _LONG_END)
        longs = np.where(whole, values, 0).astype(np.int64).view(np.uint64)
    one_nan = np.where(np.isnan(values), np.nan, values)
    return np.where(whole, longs, _mix(one_nan.view(np.uint64) ^ np.uint64(_FRACTION)))


def _of_distinct(values: Any) -> Words:
    """Return the words of texts, of which many are equal in a column."""
    encoded = values.dictionary_encode()
    words = _of_bytes(encoded.dictionary)
    return words.take(np.asarray(pc.fill_null(encoded.indices, 0)))


def _of_bytes(values: Any) -> Words:
    if not len(values):
        return np.zeros(0, np.uint64)
    _, edges, data = values.buffers()
    ends = np.frombuffer(edges, np.int64)[values.offset : values.offset + len(values) + 1]
    content = memoryview(data) if data is not None else memoryview(b"")
    sums = [crc32c(content[first:end]) for first, end in pairwise(ends.tolist())]
    lengths = (np.diff(ends) & LENGTH_MASK).astype(np.uint64)
    return np.array(sums, np.uint64) | lengths << np.uint64(32)


def _decimals(values: Any, path: Path) -> Words:
    """Return the checksums of decimals, which keep their digits and their scale."""
    kind = values.type
    wide = values.cast(pa.decimal128(38, kind.scale))
    halves = np.frombuffer(wide.buffers()[1], np.uint64)[2 * wide.offset : 2 * (wide.offset + len(wide))]
    low, high = halves[::2], halves[1::2]
    scale = np.uint64(kind.scale)
    return _mix(_mix(low ^ np.uint64(salt(path))) + high * np.uint64(PLACE_FACTOR) + scale)


def _struct(values: Any, path: Path) -> Words:
    """Return the checksums of structs: an empty one is not null."""
    checksums = np.full(len(values), _mark(path, STRUCT, 1), np.uint64)
    for at, field in enumerate(values.type):
        child = values.field(at)
        checksums += _checksums(child, (*path, field.name))
    return checksums


def _lists(values: Any, path: Path) -> Words:
    """Return the checksums of lists and maps: of their elements, each with its place."""
    kind = values.type
    if pa.types.is_fixed_size_list(kind):
        values = values.cast(pa.list_(kind.value_type))
    ends = np.asarray(values.offsets).astype(np.int64)
    first = int(ends[0])
    if pa.types.is_map(kind):
        items = pa.StructArray.from_arrays([values.keys, values.items], names=["key", "value"])
    else:
        items = values.values
    items = items.slice(first, int(ends[-1]) - first)
    ends = ends - first
    lengths = np.diff(ends)
    places = np.arange(len(items), dtype=np.int64) - np.repeat(ends[:-1], lengths) + 1
    ones = _mix(_checksums(items, (*path, ELEMENT)) + places.astype(np.uint64) * np.uint64(PLACE_FACTOR))
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(ones, dtype=np.uint64)))
    return _mix(lengths.astype(np.uint64) ^ np.uint64(salt((*path, LIST)))) + sums[ends[1:]] - sums[ends[:-1]]


def _mark(path: Path, what: str, word: int) -> Any:
    return _mix(np.array([word], np.uint64) ^ np.uint64(salt((*path, what))))[0]


def _mix(words: Words) -> Words:
    first, second, last = (np.uint64(shift) for shift in MIX_SHIFTS)
    words = (words ^ words >> first) * np.uint64(MIX_FACTORS[0])
    words = (words ^ words >> second) * np.uint64(MIX_FACTORS[1])
    return words ^ words >> last


def _valid(values: Any) -> NDArray[np.bool_]:
    return np.asarray(pc.is_valid(values).to_numpy(zero_copy_only=False), dtype=np.bool_)
