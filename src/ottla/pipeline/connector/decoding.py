"""Decodes batches to Arrow: a whole response at a time, no object per record, and only the requested columns.

The positions of keys and values come from the compiled loop (`records/record_columns.py`) as numbers; over the same
memory those numbers are an Arrow array of pieces, of which Arrow gathers the wanted ones. Rows come out as Spark's
Kafka source gives them: a time of -1 is the last millisecond of 1969, a record without headers has null for them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ottla.core.settings import LONG_MAX
from ottla.pipeline.connector.columns import COLUMNS, arrow_schema
from ottla.records.batch import BatchHeader
from ottla.records.record_columns import HEADERS, KEYS, VALUES, RecordColumns, locate_records

_PARTS = (("key", KEYS), ("value", VALUES), ("headers", HEADERS))
_MS_MAX = LONG_MAX // 1000
CREATE_TIME, LOG_APPEND_TIME = 0, 1

Batches = Sequence[tuple[memoryview, BatchHeader]]


def decode(
    batches: Batches, *, topic: str, partition: int, first_offset: int, end_offset: int, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the records of batches as rows with the columns `names`, of offsets from `first_offset` up to `end_offset`.

    Raises CorruptMessage where a batch is not what its header says.
    """
    parts = sum(bit for name, bit in _PARTS if name in names)
    pieces = locate_records(
        batches, from_offset=first_offset, end_offset=end_offset, parts=parts, times="timestamp" in names
    )
    schema = arrow_schema(names)
    for piece in pieces:
        if piece.count:
            columns = [_column(name, piece, topic, partition) for name in names]
            yield pa.record_batch(columns, schema=schema)


def _column(name: str, found: RecordColumns, topic: str, partition: int) -> Any:
    match name:
        case "key":
            return gather(found, 0)
        case "value":
            return gather(found, 1)
        case "topic":
            return pa.repeat(pa.scalar(topic, pa.string()), found.count)
        case "partition":
            return pa.repeat(pa.scalar(partition, pa.int32()), found.count)
        case "offset":
            return numbers(pa.int64(), found.offsets, found.count)
        case "timestamp":
            return microseconds(numbers(pa.int64(), found.timestamps_ms, found.count))
        case "timestampType":
            return _runs(found.append_times)
        case _:
            return _headers(found)


def numbers(kind: pa.DataType, values: array[int], count: int, first: int = 0) -> Any:
    """Return an Arrow array over the same memory."""
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(values)], offset=first)


def microseconds(times_ms: Any) -> Any:
    """Convert times to what Spark keeps; null where milliseconds are more than microseconds can say."""
    limits = pc.min_max(times_ms).as_py()
    if limits["min"] is not None and (limits["min"] < -_MS_MAX or limits["max"] > _MS_MAX):
        fits = pc.and_(pc.greater_equal(times_ms, -_MS_MAX), pc.less_equal(times_ms, _MS_MAX))
        times_ms = pc.if_else(fits, times_ms, pa.scalar(None, pa.int64()))
    return times_ms.cast(pa.timestamp("ms", tz="UTC")).cast(COLUMNS["timestamp"].arrow)


def gather(found: RecordColumns, half: int) -> Any:
    """Return the keys (half 0) or values (half 1)."""
    slots = numbers(pa.int32(), found.slots, found.count, first=half * (len(found.slots) // 2))
    if not found.edge_count:
        return pa.nulls(found.count, pa.binary())
    pieces = _pieces(found.data, found.edges, found.edge_count)
    lowest = pc.min(slots).as_py()
    if lowest < 0:
        slots = pc.if_else(pc.less(slots, 0), pa.scalar(None, pa.int32()), slots)
    return pc.take(pieces, slots, boundscheck=False)


def _pieces(data: bytes, edges: array[int], count: int) -> Any:
    """Return all that lies between neighbouring edges, wanted or not, as one array over the memory as it is."""
    return pa.Array.from_buffers(pa.binary(), count - 1, [None, pa.py_buffer(edges), pa.py_buffer(data)])


def _runs(runs: Iterable[tuple[int, bool]]) -> Any:
    parts = [pa.repeat(pa.scalar(LOG_APPEND_TIME if late else CREATE_TIME, pa.int32()), n) for n, late in runs]
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _headers(found: RecordColumns) -> Any:
    counts = pa.array(found.header_counts, pa.int32())
    ends = pc.cumulative_sum(counts)
    starts = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    if found.header_edges:
        pieces = _pieces(found.data, array("i", found.header_edges), len(found.header_edges))
        first = pa.array(range(0, len(found.header_edges), 4), pa.int32())
        nulls = pa.array(map(bool, found.header_nulls), pa.bool_())
        names = _text(pc.take(pieces, first, boundscheck=False))
        third = pc.if_else(nulls, pa.scalar(None, pa.int32()), pc.add(first, 2))
        values = pc.take(pieces, third, boundscheck=False)
    else:
        names, values = pa.array([], pa.string()), pa.array([], pa.binary())
    pairs = pa.StructArray.from_arrays([names, values], names=["key", "value"])
    return pa.ListArray.from_arrays(starts, pairs, mask=pc.equal(counts, 0))


def _text(names: Any) -> Any:
    """Decode header names as text; invalid UTF-8 is replaced, as every client does."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode("utf-8", "replace") for name in names.to_pylist()], pa.string())
