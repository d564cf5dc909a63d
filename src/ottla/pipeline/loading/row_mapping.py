"""Maps records to the rows of a table and of its quarantine: a batch at a time, whole columns, no wall clock.

`RowMapper` keeps what it has learnt about the table's columns, batch after batch: new fields make it grow, wider values
widen it (`lake/schema.py`). A table's columns are, in this order: the record's coordinates, the event time and what
rows are partitioned by, the key and the headers where they are wanted, and the fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ottla.pipeline.changes.rule import ChangeRule
from ottla.pipeline.event_time import EVENT_TIME, TimeFrom, TimeRule
from ottla.pipeline.formats.format import Format
from ottla.pipeline.formats.registry import RegistryFailed
from ottla.pipeline.formats.typed import column_type, typed_fields
from ottla.pipeline.lake.lake_table import TableSpec
from ottla.pipeline.lake.schema import (
    Path,
    canonical,
    conform,
    exact_longs,
    fit,
    outside_of_years,
    storable_columns,
    without,
)
from ottla.pipeline.loading.header_columns import header_columns
from ottla.pipeline.topic_reader import HEADERS, TIME

COORDINATES = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("record_time", TIME),
    ]
)
_PARTS = {"key": pa.binary(), "headers": HEADERS}
QUARANTINE = pa.schema(
    [
        *COORDINATES,
        pa.field("reason", pa.string()),
        pa.field("key", pa.binary()),
        pa.field("raw", pa.binary()),
        pa.field("headers", HEADERS),
    ]
)
"""The columns of records that were not understood, whole, so that they can be looked at and loaded later."""
COLUMNS_MAX = 1000
UNFORESEEN = "the record could not be mapped"
_OF_NO_RECORD = (RegistryFailed, OSError, MemoryError)
"""Errors that say nothing about a record: the load fails, and can be repeated."""


@dataclass(frozen=True, slots=True)
class RowMapping:
    """The mapping of a topic's records to rows, as a load declares it."""

    value: Format
    time: TimeRule = field(default_factory=TimeRule)
    columns: Mapping[str, str] = field(default_factory=dict)
    """Declared types by field; such a column never widens."""
    keep: tuple[str, ...] = ()
    """Parts of the record that are columns too: "key", "headers"."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Types of headers that are columns, by name: the last header of that name."""
    changes: ChangeRule | None = None
    """The rule by which records change rows; None: every record is a row of its own."""

    @property
    def declared(self) -> dict[str, str]:
        """The declared types by column, of fields and of headers."""
        return {**self.columns, **self.headers}

    @property
    def own_columns(self) -> pa.Schema:
        """Every table's columns that are no fields."""
        kept = [pa.field(name, _PARTS[name]) for name in ("key", "headers") if name in self.keep]
        more = self.changes.columns if self.changes is not None else ()
        return pa.schema([*COORDINATES, *self.time.columns, *more, *kept])

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The columns the table is partitioned by."""
        return self.time.partition_by if self.changes is None else self.changes.partition_by

    @property
    def fixed(self) -> frozenset[Path]:
        """The leaves whose type never changes: the fields that are declared, and those that are the key."""
        keys = self.changes.key_fields if self.changes is not None else ()
        return frozenset((name,) for name in (*self.declared, *keys))

    def spec(self) -> TableSpec:
        """Return the specification of a new table."""
        fields = [
            pa.field(name, column_type(self.columns[name]) if name in self.columns else canonical(kind))
            for name, kind in self._fields()
        ]
        declared = [pa.field(n, column_type(t)) for n, t in self.declared.items() if n not in {f.name for f in fields}]
        return TableSpec(pa.schema([*self.own_columns, *fields, *declared]), self.partition_by)

    def _fields(self) -> list[tuple[str, pa.DataType]]:
        return [(self.field_name(f.name), f.type) for f in self.value.columns() if not self.is_the_time(f.name)]

    def is_the_time(self, name: str) -> bool:
        """Return whether a field of the format is the event time itself, and no column of its own."""
        return name == EVENT_TIME and self.time.source is TimeFrom.FORMAT

    def field_name(self, name: str) -> str:
        """Return a field's column: one that has the name of a column of ours, or of a header, gets an underscore."""
        taken = {own.lower() for own in (*self.own_columns.names, *self.headers)}
        while name.lower() in taken:
            name += "_"
        return name


@dataclass(frozen=True, slots=True)
class MappedRows:
    """Holds the rows and the refused records of a batch."""

    rows: pa.Table
    quarantined: pa.Table
    late: int


@dataclass(frozen=True, slots=True)
class _Mapped:
    """Records with their columns, before these have the types that the whole batch brings."""

    records: pa.RecordBatch
    own: Mapping[str, Any]
    columns: Mapping[str, Any]
    fields: pa.Schema
    reasons: Any
    conflicts: Any
    """The part of the reasons that the fitted columns' values have; the values of other refused records are null."""
    depends: bool
    """Whether records were refused because of others that may be refused themselves."""
    quarantine_rows: Callable[[pa.RecordBatch, Any], pa.Table]

    @property
    def refused(self) -> bool:
        return bool(self.reasons.null_count < len(self.records))

    def is_settled(self, known: pa.Schema) -> bool:
        """Return whether every record alone would be judged the same: nothing is new, or nothing was refused."""
        return not self.refused or (self.fields == known and not self.depends)

    def rows(self, fields: pa.Schema) -> MappedRows:
        """Make the rows, in the columns of `fields`."""
        fitted = {name: values for name, values in self.columns.items() if name in fields.names}
        count = len(self.records)
        columns = {f.name: conform(fitted.get(f.name, pa.nulls(count)), f.type)[0] for f in fields}
        whole = pa.table(dict(self.own) | storable_columns(columns, fields))
        if not self.refused:
            return MappedRows(whole, QUARANTINE.empty_table(), _count_late(whole))
        good = pc.is_null(self.reasons)
        bad, whole = pc.invert(good), whole.filter(good)
        quarantined = self.quarantine_rows(self.records.filter(bad), self.reasons.filter(bad))
        return MappedRows(whole, quarantined, _count_late(whole))


class RowMapper:
    """Makes rows as if every record came alone: which of them share a batch changes no row, and quarantines no other.

    `fields` are the table's field columns so far, maybe with parts of an unknown type (`schema.storable`). `fixed` are
    the leaves that must not widen: those declared, and longs of which a double could not hold a value.
    """

    def __init__(
        self, mapping: RowMapping, topic: str, fields: pa.Schema, fixed: frozenset[Path] = frozenset()
    ) -> None:
        self._mapping, self._topic = mapping, topic
        missing = [(name, column_type(text)) for name, text in mapping.declared.items() if name not in fields.names]
        self.fields = pa.schema([*fields, *missing])  # a field that differs in case is never the first spelling
        self.fixed = fixed | mapping.fixed

    def map(self, records: pa.RecordBatch) -> MappedRows:
        """Map records to rows for the table, and for the quarantine."""
        mapped = list(self._in_order(records))
        parts = [found.rows(self.fields) for found in mapped]
        if len(parts) == 1:
            return parts[0]
        return MappedRows(
            pa.concat_tables([part.rows for part in parts]),
            pa.concat_tables([part.quarantined for part in parts]),
            sum(part.late for part in parts),
        )

    def _in_order(self, records: pa.RecordBatch) -> Iterator[_Mapped]:
        """Map a batch at once, or its halves where a refused record may have changed what is known for the others.

        An error that no rule foresees stops no load either: the record that causes it is found and refused.
        """
        try:
            mapped = self._map(records)
        except _OF_NO_RECORD:
            raise
        except Exception as error:  # noqa: BLE001 - as said above
            mapped = self._unmapped(records, f"{UNFORESEEN}: {type(error).__name__}: {error}")
        if len(records) > 1 and not mapped.is_settled(self.fields):
            half = len(records) // 2
            yield from self._in_order(records.slice(0, half))
            yield from self._in_order(records.slice(half))
            return
        if len(records) == 1 and mapped.refused:
            mapped = replace(mapped, fields=self.fields, columns={}, conflicts=None)
        else:
            self.fields = mapped.fields
            self._fix_longs(mapped)
        yield mapped

    def _fix_longs(self, mapped: _Mapped) -> None:
        for f in self.fields:
            values = mapped.columns[f.name]
            if mapped.conflicts is not None:
                values = values.filter(pc.is_null(mapped.conflicts))
            self.fixed |= exact_longs(values, (f.name,))

    def _map(self, records: pa.RecordBatch) -> _Mapped:
        mapping, count = self._mapping, len(records)
        undeclared = pa.schema([f for f in self.fields if f.name not in mapping.declared])
        parsed = mapping.value.parse(records, undeclared, self.fixed)
        rows = parsed.rows
        if not rows.num_columns:  # a table without a column has no rows either
            rows = pa.table({"": pa.nulls(count)})
        rows, misfits = self._declared(rows)
        named = self._named(rows)
        if mapping.headers:
            headers, header_misfits = header_columns(records, mapping.headers)
            misfits = pc.coalesce(misfits, header_misfits)
            for name in headers.column_names:
                named = named.append_column(name, headers[name])
                if name in rows.column_names:  # the time is never that of a field if there is such a header column
                    rows = rows.set_column(rows.column_names.index(name), name, headers[name])
                else:
                    rows = rows.append_column(name, headers[name])
        times, timeless = mapping.time.find(records, rows)
        local = pc.coalesce(misfits, timeless)
        keyless = self._keyless(records, rows)
        if keyless is not None:
            local = pc.coalesce(local, keyless)
        reasons = pc.coalesce(parsed.reasons, local)
        fitted = fit(
            _blank(named, pc.is_null(reasons)),
            self.fields,
            fixed=self.fixed,
            columns_max=COLUMNS_MAX - len(mapping.own_columns),
        )
        later = local if fitted.conflicts is None else pc.coalesce(local, fitted.conflicts)
        return _Mapped(
            records,
            self.own_columns(records, times),
            fitted.columns,
            fitted.schema,
            pc.coalesce(reasons, later),
            fitted.conflicts,
            depends=(parsed.has_conflicts and later.null_count < count) or fitted.by_column or keyless is not None,
            quarantine_rows=self.quarantine_rows,
        )

    def _keyless(self, records: pa.RecordBatch, rows: pa.Table) -> Any:
        """Return a reason for each record without a key that identifies a row; None if there is none."""
        if self._mapping.changes is None:
            return None
        return self._mapping.changes.key_faults(part(records, "key"), self._named(rows))

    def _unmapped(self, records: pa.RecordBatch, why: str) -> _Mapped:
        """Refuse a whole batch: it is then mapped in halves, down to the records that are to be refused."""
        count = len(records)
        return _Mapped(
            records,
            self.own_columns(records, pa.nulls(count, TIME)),
            {},
            self.fields,
            pa.repeat(why, count),
            None,
            depends=True,
            quarantine_rows=self.quarantine_rows,
        )

    def _named(self, rows: pa.Table) -> pa.Table:
        rows = rows.select([name for name in rows.column_names if not self._mapping.is_the_time(name)])
        return rows.rename_columns([self._mapping.field_name(name) for name in rows.column_names])

    def _declared(self, rows: pa.Table) -> tuple[pa.Table, Any]:
        """Convert declared columns to their types; return the rows, and reasons."""
        fields = {
            name: self._mapping.field_name(name) for name in rows.column_names if not self._mapping.is_the_time(name)
        }
        declared = self._mapping.columns
        return typed_fields(rows, {name: declared[column] for name, column in fields.items() if column in declared})

    def own_columns(self, records: pa.RecordBatch, times: Any) -> dict[str, Any]:
        """Return the columns of records that are no fields."""
        columns: dict[str, Any] = {"topic": pa.repeat(self._topic, len(records))}
        columns |= _coordinates(records)
        columns[EVENT_TIME] = times
        columns |= self._mapping.time.partition_columns(records, times)
        for name in ("key", "headers"):
            if name in self._mapping.keep:
                columns[name] = part(records, name)
        return columns

    def quarantine_rows(self, records: pa.RecordBatch, reasons: Any) -> pa.Table:
        """Return the rows of the quarantine for refused records."""
        columns: dict[str, Any] = {
            "topic": pa.repeat(self._topic, len(records)),
            "reason": reasons,
            "key": part(records, "key"),
            "raw": records.column("value"),
            "headers": part(records, "headers"),
        }
        columns |= _coordinates(records)
        return pa.table([columns[f.name] for f in QUARANTINE], schema=QUARANTINE)


def _coordinates(records: pa.RecordBatch) -> dict[str, Any]:
    """Return the columns of a record's place and time. A time that no reader of the table could read is null."""
    times = records.column("record_time")
    return {
        "partition": records.column("partition"),
        "offset": records.column("offset"),
        "record_time": without(times, outside_of_years(times)),
    }


def part(records: pa.RecordBatch, name: str) -> Any:
    """Return a part of the records; nulls where the reader did not bring it."""
    if name in records.schema.names:
        return records.column(name)
    return pa.nulls(len(records), _PARTS[name])


def _blank(rows: pa.Table, good: Any) -> pa.Table:
    """Replace rows that could not be decoded by nulls, so that they do not decide a column's type."""
    if pc.all(good).as_py() or not rows.num_columns:
        return rows
    counted = pa.array(range(len(rows)), pa.int64())
    return rows.take(pc.if_else(good, counted, pa.scalar(None, pa.int64())))


def _count_late(rows: pa.Table) -> int:
    return int(pc.sum(rows["late"].cast(pa.int64())).as_py() or 0)
