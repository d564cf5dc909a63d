"""Decodes records each by the schema it was written with: the header of a schema registry, and rows of several schemas.

Each record is decoded with its own schema, and the rows of a batch are gathered by schema; a reader's schema is not
needed, for the table takes new and wider fields as it does from any format. A schema that came first decides a column's
type. The formats with schemas (`avro.py`, `protobuf.py`) say what a schema's columns are and how a record is decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ottla.pipeline.formats.format import NO_VALUE, Parsed
from ottla.pipeline.formats.registry import NoSuchSchema, SchemaRegistry
from ottla.pipeline.formats.typed import typed_fields
from ottla.pipeline.lake.schema import Path, conform, exact_longs, fit

_NO_COLUMN = (pa.ArrowException, ValueError, TypeError, OverflowError)
"""The exceptions of Arrow over values that are not of a column's type."""
_MAGIC, HEADER_BYTES = 0, 5
_SCHEMA_ID_MAX = (1 << 31) - 1
DEPTH_MAX = 32
LEAVES_MAX = 10_000
"""Of all columns inside one record: types that are used twice by types that are used twice become very many."""


class UnsupportedSchema(ValueError):
    """A schema that makes no table; the message says where."""


class SchemaReader(Protocol):
    """Reads the records of one schema."""

    def select(self, value: bytes, start: int, /) -> tuple[SchemaReader, int]:
        """Return the reader of a record, and where it begins: a schema may describe several kinds of records.

        Raises ValueError if the schema does not describe the record.
        """
        ...

    @property
    def columns(self) -> pa.Schema:
        """Return the columns of the schema."""
        ...

    def decode(self, value: bytes, start: int, /) -> dict[str, Any]:
        """Decode a record that begins at a byte of the value. Raises ValueError if it is none of the schema."""
        ...


ReaderOf = Callable[[int], SchemaReader | str]
"""Returns the reader of a schema by its id, or why there is none to read with."""


@dataclass(slots=True)
class SchemaMemory:
    """Caches the client of the registry, and a reader for each schema id."""

    registry: SchemaRegistry | None = None
    readers: dict[int, SchemaReader | str] = field(default_factory=dict)

    def reader(
        self, schema_id: int, registry_url: str | None, make: Callable[[SchemaRegistry | None, int], SchemaReader]
    ) -> SchemaReader | str:
        """Return a reader, made now if it is not known, or why there is none. Raises RegistryFailed."""
        if schema_id not in self.readers:
            if registry_url is not None:
                self.registry = self.registry or SchemaRegistry(registry_url)
            try:
                self.readers[schema_id] = make(self.registry, schema_id)
            except (NoSuchSchema, UnsupportedSchema) as error:
                self.readers[schema_id] = str(error)
        return self.readers[schema_id]


@dataclass(frozen=True, slots=True)
class Context:
    """The known columns of the table."""

    known: pa.Schema
    fixed: Collection[Path] = ()
    declared: Mapping[str, str] = field(default_factory=dict)
    """The types that a load declares, by field: such a field may be of different types in different schemas."""


def parse_by_schema(
    records: pa.RecordBatch, reader_of: ReaderOf, context: Context, *, with_header: bool, what: str
) -> Parsed:
    """Parse records, each by its schema: without headers all by that with id 0. Raises what `reader_of` raises."""
    values = records.column("value").to_pylist()
    reasons: list[str | None] = [None] * len(values)
    rows: dict[int, _Rows] = {}
    for at, value in enumerate(values):
        schema_id, start, why = record_header(value) if with_header or value is None else (0, 0, None)
        reader = reader_of(schema_id) if why is None else why
        if isinstance(reader, str):
            reasons[at] = reader
            continue
        try:
            reader, start = reader.select(value, start)
            row = reader.decode(value, start)
        except ValueError as error:
            reasons[at] = f"not a record of {what}: {error}"
            continue
        rows.setdefault(id(reader), _Rows(reader)).rows[at] = row
    return _combine(list(rows.values()), reasons, context)


@dataclass(slots=True)
class _Rows:
    """The rows of a batch that one reader read, by their index in the batch."""

    reader: SchemaReader
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)


def record_header(value: bytes | None) -> tuple[int, int, str | None]:
    """Return the id of a record's schema, where the record begins, and a reason if neither is known."""
    if value is None:
        return 0, 0, NO_VALUE
    if len(value) < HEADER_BYTES or value[0] != _MAGIC:
        return 0, 0, "no header of a schema registry: a zero byte and the schema's id"
    schema_id = int.from_bytes(value[1:HEADER_BYTES])
    if schema_id > _SCHEMA_ID_MAX:  # to a registry that is no number, and its answer says nothing about the record
        return 0, 0, f"{schema_id} is no id of a schema"
    return schema_id, HEADER_BYTES, None


def _combine(read: list[_Rows], reasons: list[str | None], context: Context) -> Parsed:
    """Convert the rows of each schema, in the order of their first, to columns, then all of them."""
    tables, indexes, conflicts = [], [], []
    schema, fixed = context.known, context.fixed
    for one in read:
        rows = one.rows
        columns, lost = _columns(rows, one.reader.columns)
        for at, why in lost.items():
            reasons[at] = why
        if not len(columns):
            continue
        columns, why_not = typed_fields(columns, context.declared)
        fitted = fit(columns, schema, fixed=fixed)
        schema = fitted.schema
        fixed = {*fixed, *(path for f in schema for path in exact_longs(fitted.columns[f.name], (f.name,)))}
        kept = [at for at in rows if at not in lost]
        for at, why in zip(kept, why_not.to_pylist(), strict=True):
            reasons[at] = why
        indexes += kept
        conflicts.append(fitted.conflicts if fitted.conflicts is not None else pa.nulls(len(columns), pa.string()))
        tables.append(pa.table({f.name: fitted.columns[f.name] for f in schema}))
    if not tables:
        return Parsed(pa.table({"": pa.nulls(len(reasons))}).drop_columns(""), pa.array(reasons, pa.string()))
    joined = pa.concat_tables(
        [pa.table({f.name: conform(_of(t, f), f.type)[0] for f in schema}) for t in tables]
    ).append_column("", pa.chunked_array(conflicts))
    order: list[int | None] = [None] * len(reasons)
    for n, at in enumerate(indexes):
        order[at] = n
    spread = joined.take(pa.array(order, pa.int64()))
    against_others = spread[""].combine_chunks()
    why = pc.coalesce(pa.array(reasons, pa.string()), against_others)
    return Parsed(spread.drop_columns(""), why, has_conflicts=against_others.null_count < len(reasons))


def _of(table: pa.Table, field_: pa.Field) -> Any:
    return table[field_.name] if field_.name in table.column_names else pa.nulls(len(table), field_.type)


def _columns(rows: dict[int, dict[str, Any]], schema: pa.Schema) -> tuple[pa.Table, dict[int, str]]:
    """Convert rows to columns; return them, and those that Arrow cannot hold, by index."""
    try:
        return pa.Table.from_pylist(list(rows.values()), schema=schema), {}
    except _NO_COLUMN:
        lost = {}
    for at, row in rows.items():
        try:
            pa.Table.from_pylist([row], schema=schema)
        except _NO_COLUMN as error:
            lost[at] = f"a value that no column can hold: {error}"
    return pa.Table.from_pylist([row for at, row in rows.items() if at not in lost], schema=schema), lost
