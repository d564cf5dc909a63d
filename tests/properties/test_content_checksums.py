"""Compares the content checksums of columns with those of single records, and of values in other types and batches."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.audit import ProducedCounter, parse_count
from ottla.client.content import ContentSum, content_sum, record_checksum
from ottla.pipeline.lake.content_hash import quarantine_checksums, record_checksums, row_checksums, sum_of
from ottla.pipeline.topic_reader import HEADERS, RECORDS, TIME

data = st.none() | st.binary(max_size=12)
headers_of = st.lists(st.tuples(st.text(max_size=3), data), max_size=3)
times = st.sampled_from([-1, -2, 0, 1_431_856_800_000, -62_135_596_800_000, -62_135_596_800_001, 253_402_300_800_000])
records_of = st.lists(st.tuples(data, data, headers_of, times), min_size=1, max_size=8)
Record = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]


def batch_of(records: list[Record], first_offset: int = 0) -> pa.RecordBatch:
    """Records as a reader brings them."""
    return pa.record_batch(
        [
            pa.array([0] * len(records), pa.int32()),
            pa.array(range(first_offset, first_offset + len(records)), pa.int64()),
            pa.array([None if r[3] == -1 else r[3] * 1000 for r in records], TIME),
            pa.array([r[0] for r in records], pa.binary()),
            pa.array([r[1] for r in records], pa.binary()),
            pa.array([[{"key": k, "value": v} for k, v in r[2]] or None for r in records], HEADERS),
        ],
        schema=RECORDS.append(pa.field("headers", HEADERS)),
    )


@given(records_of)
def test_a_records_checksum_is_that_of_its_row_in_any_batch(records: list[Record]) -> None:
    whole = record_checksums(batch_of(records)).tolist()
    assert whole == [record_checksum(*record) for record in records]
    for at, record in enumerate(records):
        assert record_checksums(batch_of(records).slice(at, 1)).tolist() == [record_checksum(*record)]


@given(records_of, st.integers(0, 1 << 40))
def test_sums_of_ranges_add_up_and_name_the_record_that_changed(records: list[Record], first: int) -> None:
    checksums = [record_checksum(*record) for record in records]
    whole = content_sum(first, checksums)
    half = len(records) // 2
    assert content_sum(first, checksums[:half]).plus(content_sum(first + half, checksums[half:])) == whole
    offsets = np.arange(first, first + len(records))
    assert sum_of(offsets, np.array(checksums, np.uint64)) == whole
    for at, record in enumerate(records):
        changed = list(checksums)
        changed[at] = record_checksum(record[0], (record[1] or b"") + b"!", record[2], record[3])
        found = content_sum(first, changed)
        assert found != whole
        assert whole.changed_offset(found, first, first + len(records)) in {first + at, None}
        if (whole.total - found.total) % 2:
            assert whole.changed_offset(found, first, first + len(records)) == first + at


def test_equal_sums_name_no_record() -> None:
    assert ContentSum(3, 5, 7).changed_offset(ContentSum(3, 5, 7), 0, 10) is None


leaves = st.sampled_from(
    [
        (pa.int32(), st.integers(-(1 << 31), (1 << 31) - 1)),
        (pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1)),
        (pa.float32(), st.floats(width=32)),
        (pa.float64(), st.floats()),
        (pa.bool_(), st.booleans()),
        (pa.string(), st.text(max_size=4)),
        (pa.binary(), st.binary(max_size=4)),
        (pa.date32(), st.dates()),
        (TIME, st.datetimes().map(lambda t: t.replace(tzinfo=UTC))),
        (pa.decimal128(12, 2), st.decimals(-(10**9), 10**9, places=2)),
    ]
)


def lists_of(inner: tuple[pa.DataType, Any]) -> tuple[pa.DataType, Any]:
    return pa.list_(inner[0]), st.lists(st.none() | inner[1], max_size=3)


def structs_of(inner: tuple[pa.DataType, Any]) -> tuple[pa.DataType, Any]:
    names = ("a", "B")
    kind = pa.struct([(name, inner[0]) for name in names])
    return kind, st.fixed_dictionaries({name: st.none() | inner[1] for name in names})


def maps_of(inner: tuple[pa.DataType, Any]) -> tuple[pa.DataType, Any]:
    return pa.map_(pa.string(), inner[0]), st.lists(st.tuples(st.text(max_size=2), st.none() | inner[1]), max_size=2)


def nested_of(inner: Any) -> Any:
    return inner.map(lists_of) | inner.map(structs_of) | inner.map(maps_of)


@st.composite
def columns(draw: st.DrawFn) -> pa.Array:
    kind, elements = draw(st.recursive(leaves, nested_of, max_leaves=3))
    return pa.array(draw(st.lists(st.none() | elements, min_size=1, max_size=6)), kind)


@given(columns(), st.data())
def test_a_rows_checksum_depends_on_nothing_but_the_row(column: pa.Array, cut: st.DataObject) -> None:
    table = pa.table({"x": column, "none": pa.nulls(len(column))})
    whole = row_checksums(table)
    at = cut.draw(st.integers(0, len(column)))
    parts = [row_checksums(pa.table({"x": part})) for part in (column.slice(0, at), column.slice(at))]
    assert np.concatenate(parts).tolist() == whole.tolist()
    chunked = pa.table({"X": pa.chunked_array([column.slice(0, at), column.slice(at)])})
    assert row_checksums(chunked).tolist() == whole.tolist()
    assert row_checksums(table.take(pa.array(range(len(column) - 1, -1, -1))))[::-1].tolist() == whole.tolist()


def test_a_promoted_column_has_the_checksums_of_before() -> None:
    for narrow, wide, values in (
        (pa.int32(), pa.int64(), [1, -5, None]),
        (pa.int64(), pa.float64(), [1, -5, 1 << 53, None]),
        (pa.float32(), pa.float64(), [0.5, -0.0, float("nan"), float("inf"), 3.0, None]),
        (pa.date32(), TIME, [date(1, 1, 1), date(2015, 5, 17), None]),
        (pa.timestamp("ms", tz="UTC"), TIME, [datetime(1969, 12, 31, tzinfo=UTC)]),
    ):
        before = pa.array(values, narrow)
        for after in (before, before.cast(wide)):
            inside = pa.StructArray.from_arrays([after], names=["y"])
            found = [row_checksums(pa.table({"x": column})).tolist() for column in (after, inside)]
            if after is before:
                expected = found
            assert found == expected, (narrow, wide)


def test_different_values_have_different_checksums() -> None:
    kinds: list[tuple[pa.DataType, list[Any]]] = [
        (pa.float64(), [0.5, -0.5, 1.0, float("nan"), float("inf"), None]),
        (pa.list_(pa.int64()), [[], [None], [0], [0, 0], [1, 2], [2, 1], None]),
        (pa.struct([("a", pa.int64()), ("b", pa.int64())]), [{"a": 1}, {"b": 1}, {}, {"a": 1, "b": 1}, None]),
        (pa.string(), ["", "a", "b", "ab", None]),
        (pa.decimal128(38, 2), [Decimal("0.01"), Decimal("-0.01"), Decimal(10) ** 30, None]),
        (pa.list_(pa.list_(pa.int64())), [[[1], [2]], [[1, 2]], [[2], [1]], [[], [1, 2]]]),
    ]
    for kind, values in kinds:
        found = row_checksums(pa.table({"x": pa.array(values, kind)})).tolist()
        assert len(set(found)) == len(values), kind


def test_a_quarantined_record_has_its_records_checksum() -> None:
    records: list[Record] = [(b"k", b"v", [("h", None)], 5), (None, None, [], -1)]
    batch = batch_of(records)
    kept = pa.table(
        {
            "topic": pa.array(["t", "t"]),
            "reason": pa.array(["a", "b"]),
            "raw": batch["value"],
            **{name: batch[name] for name in ("partition", "offset", "record_time", "key", "headers")},
        }
    )
    assert quarantine_checksums(kept).tolist() == record_checksums(batch).tolist()


@given(st.lists(st.integers(0, (1 << 64) - 1), min_size=1, max_size=600), st.integers(0, 1000))
def test_reports_have_the_sums_of_what_was_acknowledged(checksums: list[int], first: int) -> None:
    counter = ProducedCounter("p")
    half = len(checksums) // 2
    counter.acknowledged_run("web", 0, first + half, 5, len(checksums) - half, checksums[half:])
    for offset, checksum in enumerate(checksums[:half], first):
        counter.acknowledged("web", 0, offset, 5, checksum)
    (report,) = counter.reports()
    assert parse_count(report.value) == report
    total = ContentSum()
    for run in report.runs:
        total = total.plus(run.sums)
    assert total == content_sum(first, checksums)
