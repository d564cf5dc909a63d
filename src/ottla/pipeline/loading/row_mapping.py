"""From records to the rows of a table and of its quarantine: a batch at a time, whole columns, no wall clock.

`RowMapper` keeps what it has learnt about the table's columns, batch after batch: new fields make it grow, wider values
widen it (`lake/schema.py`). A table's columns are, in this order: the record's coordinates, the event time and what
rows are filed by, the key and the headers where they are wanted, and the fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ottla.pipeline.event_time import EVENT_TIME, TimeFrom, TimeRule
from ottla.pipeline.formats.plain import Raw
from ottla.pipeline.formats.port import Format, Parsed
from ottla.pipeline.formats.typed import column_type, typed
from ottla.pipeline.lake.port import TableSpec
from ottla.pipeline.lake.schema import fit
from ottla.pipeline.log import HEADERS, TIME

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
"""What was not understood, whole, so that it can be looked at and loaded later."""
COLUMNS_MAX = 1000


@dataclass(frozen=True, slots=True)
class RowMapping:
    """How the records of a topic become rows: what a load declares."""

    value: Format
    time: TimeRule = field(default_factory=TimeRule)
    columns: Mapping[str, str] = field(default_factory=dict)
    """Declared types by field; such a column never widens."""
    keep: tuple[str, ...] = ()
    """Parts of the record that are columns too: "key", "headers"."""

    @property
    def own_columns(self) -> pa.Schema:
        """Every table's columns that are no fields."""
        kept = [pa.field(name, _PARTS[name]) for name in ("key", "headers") if name in self.keep]
        return pa.schema([*COORDINATES, *self.time.columns, *kept])

    def spec(self) -> TableSpec:
        """A new table."""
        fields = [
            pa.field(name, column_type(self.columns[name]) if name in self.columns else kind)
            for name, kind in self._fields()
        ]
        declared = [pa.field(n, column_type(t)) for n, t in self.columns.items() if n not in {f.name for f in fields}]
        return TableSpec(pa.schema([*self.own_columns, *fields, *declared]), self.time.partition_by)

    @property
    def may_quarantine(self) -> bool:
        """Return whether a record may be quarantined, so that all of it is needed."""
        return not isinstance(self.value, Raw)

    def _fields(self) -> list[tuple[str, pa.DataType]]:
        return [(self.field_name(f.name), f.type) for f in self.value.columns() if not self.is_the_time(f.name)]

    def is_the_time(self, name: str) -> bool:
        """Whether a field of the format is the event time itself, and no column of its own."""
        return name == EVENT_TIME and self.time.source is TimeFrom.FORMAT

    def field_name(self, name: str) -> str:
        """A field's column: one that has the name of a column of ours gets an underscore."""
        taken = {own.lower() for own in self.own_columns.names}
        while name.lower() in taken:
            name += "_"
        return name


@dataclass(frozen=True, slots=True)
class MappedRows:
    """What became of a batch."""

    rows: pa.Table
    quarantined: pa.Table
    late: int


class RowMapper:
    """Makes rows. `fields` are the table's field columns so far; `fixed` are those that must not widen."""

    def __init__(self, shape: RowMapping, topic: str, fields: pa.Schema, fixed: frozenset[str] = frozenset()) -> None:
        self._shape, self._topic = shape, topic
        self.fields = fields
        self._fixed = fixed | set(shape.columns)

    def shape(self, records: pa.RecordBatch) -> MappedRows:
        """Rows for the table, and for the quarantine."""
        shape, count = self._shape, len(records)
        undeclared = pa.schema([f for f in self.fields if f.name not in shape.columns])
        parsed = shape.value.parse(records, undeclared)
        if not parsed.rows.num_columns:  # a table without a column has no rows either
            parsed = Parsed(pa.table({"": pa.nulls(count)}), parsed.reasons)
        times, timeless = shape.time.find(records, parsed.rows)
        reasons = pc.coalesce(parsed.reasons, timeless)
        rows, misfits = self._declared(self._named(parsed.rows))
        reasons = pc.coalesce(reasons, misfits)
        good = pc.is_null(reasons)
        fitted = fit(
            _blank(rows, good),
            self.fields,
            fixed=self._fixed,
            columns_max=COLUMNS_MAX - len(shape.own_columns),
        )
        if fitted.conflicts is not None:
            reasons = pc.coalesce(reasons, fitted.conflicts)
            good = pc.is_null(reasons)
        self.fields = fitted.schema
        columns = self._own(records, times) | {f.name: fitted.columns[f.name] for f in self.fields}
        whole = pa.table(columns)
        if pc.all(good).as_py():
            return MappedRows(whole, QUARANTINE.empty_table(), _count_late(whole))
        whole = whole.filter(good)
        bad = pc.invert(good)
        return MappedRows(
            whole, self._aside(records.filter(bad), reasons.filter(bad)), _count_late(whole) if count else 0
        )

    def _named(self, rows: pa.Table) -> pa.Table:
        rows = rows.select([name for name in rows.column_names if not self._shape.is_the_time(name)])
        return rows.rename_columns([self._shape.field_name(name) for name in rows.column_names])

    def _declared(self, rows: pa.Table) -> tuple[pa.Table, Any]:
        """Declared columns in their types, and reasons."""
        reasons = pa.nulls(len(rows), pa.string())
        for name, kind in self._shape.columns.items():
            at = rows.schema.get_field_index(name)
            if at < 0:
                continue
            values, lost = typed(rows[name], kind)
            rows = rows.set_column(at, name, values)
            if lost is not None:
                why = pc.if_else(lost, pa.scalar(f"field {name} is no {kind}"), pa.scalar(None, pa.string()))
                reasons = pc.coalesce(reasons, why)
        return rows, reasons

    def _own(self, records: pa.RecordBatch, times: Any) -> dict[str, Any]:
        columns: dict[str, Any] = {"topic": pa.repeat(self._topic, len(records))}
        columns |= {name: records.column(name) for name in ("partition", "offset", "record_time")}
        columns[EVENT_TIME] = times
        columns |= self._shape.time.file(records, times)
        for name in ("key", "headers"):
            if name in self._shape.keep:
                columns[name] = part(records, name)
        return columns

    def _aside(self, records: pa.RecordBatch, reasons: Any) -> pa.Table:
        columns: dict[str, Any] = {
            "topic": pa.repeat(self._topic, len(records)),
            "reason": reasons,
            "key": part(records, "key"),
            "raw": records.column("value"),
            "headers": part(records, "headers"),
        }
        columns |= {name: records.column(name) for name in ("partition", "offset", "record_time")}
        return pa.table([columns[f.name] for f in QUARANTINE], schema=QUARANTINE)


def part(records: pa.RecordBatch, name: str) -> Any:
    """A part of the records; nulls where the reader did not bring it."""
    if name in records.schema.names:
        return records.column(name)
    return pa.nulls(len(records), _PARTS[name])


def _blank(rows: pa.Table, good: Any) -> pa.Table:
    """What was not understood must not decide a type."""
    if pc.all(good).as_py() or not rows.num_columns:
        return rows
    counted = pa.array(range(len(rows)), pa.int64())
    return rows.take(pc.if_else(good, counted, pa.scalar(None, pa.int64())))


def _count_late(rows: pa.Table) -> int:
    return int(pc.sum(rows["late"].cast(pa.int64())).as_py() or 0)
