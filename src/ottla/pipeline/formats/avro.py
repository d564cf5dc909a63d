"""Decodes Avro records: with a schema registry's header (a zero byte and the schema's id), or of one schema in a file.

Each record is decoded with the schema it was written with, and the rows of a batch are gathered by schema; a reader's
schema is not needed, for the table takes new and wider fields as it does from any format. What a union of several types
or a type that refers to itself would be as a column is not known: records of such a schema are not understood.

Types: int, long, float, double, boolean, string, bytes, fixed (bytes), enum and uuid (texts), date, timestamps (UTC, to
the microsecond), times of day (numbers, in their own unit), decimal, record (struct), array (list), map. A union with
null is the other type; every column may be null.
"""

from __future__ import annotations

import io
import json
import struct
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc

from ottla.pipeline.formats.avro_schema import DEPTH_MAX, PlainSchema, UnsupportedSchema
from ottla.pipeline.formats.format import NO_VALUE, Parsed
from ottla.pipeline.formats.registry import NoSuchSchema, RegisteredSchema, SchemaRegistry
from ottla.pipeline.formats.typed import typed_fields
from ottla.pipeline.lake.schema import Path as LeafPath
from ottla.pipeline.lake.schema import conform, exact_longs, fit

_NO_COLUMN = (pa.ArrowException, ValueError, TypeError, OverflowError)
"""The exceptions of Arrow over values that are not of a column's type."""
_MAGIC, _HEADER_BYTES = 0, 5
_VALUE = "value"
_SCHEMA_ID_MAX = (1 << 31) - 1
_NOT_AVRO = (EOFError, ValueError, TypeError, IndexError, KeyError, OverflowError, struct.error)
"""The exceptions of `fastavro` over bytes that are not what the schema says."""


@dataclass(frozen=True, slots=True)
class _Reader:
    """A schema ready to read with."""

    parsed: Any
    """A record of one field with the value: its bytes are the value's, and a union at the top has a place in it."""
    columns: pa.Schema


@dataclass(slots=True)
class _Memory:
    """Caches the client of the registry, and a reader for each schema id."""

    registry: SchemaRegistry | None = None
    readers: dict[int, _Reader | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Avro:
    """A `Format`: of a registry's schemas, or of one in a file. It remembers the schemas it has met."""

    registry_url: str | None = None
    schema_text: str | None = None
    declared: Mapping[str, str] = field(default_factory=dict)
    """The types that a load declares, by field: such a field may be of different types in different schemas."""
    _memory: _Memory = field(default_factory=_Memory, compare=False, repr=False)

    @staticmethod
    def of_file(path: Path) -> Avro:
        """Make the format of a schema in an .avsc file. Raises OSError or UnsupportedSchema."""
        text = path.read_text(encoding="utf-8")
        reader_of(RegisteredSchema("AVRO", text))
        return Avro(schema_text=text)

    def columns(self) -> pa.Schema:
        """Return the columns of the file's schema; those of a registry's schemas are found with the records."""
        if self.schema_text is None:
            return pa.schema([])
        return reader_of(RegisteredSchema("AVRO", self.schema_text)).columns

    def parse(self, records: pa.RecordBatch, known: pa.Schema, fixed: Collection[LeafPath] = ()) -> Parsed:
        """Parse records. Raises RegistryFailed if the registry cannot be asked: that says nothing about the records."""
        values = records.column("value").to_pylist()
        reasons: list[str | None] = [None] * len(values)
        rows: dict[int, dict[int, dict[str, Any]]] = defaultdict(dict)
        for at, value in enumerate(values):
            schema_id, start, why = self._schema_of(value)
            reader = self._reader(schema_id) if why is None else why
            if isinstance(reader, str):
                reasons[at] = reader
                continue
            try:
                rows[schema_id][at] = _decode(reader, value, start)
            except _NOT_AVRO as error:
                reasons[at] = f"not a record of its Avro schema: {error}"
        return self._combine(rows, reasons, known, fixed)

    def _combine(
        self,
        rows: dict[int, dict[int, dict[str, Any]]],
        reasons: list[str | None],
        known: pa.Schema,
        fixed: Collection[LeafPath],
    ) -> Parsed:
        """Convert the rows of each schema to columns, then all of them.

        A schema that came first decides a column's type.
        """
        tables, indexes, conflicts = [], [], []
        schema = known
        for schema_id, found in sorted(rows.items(), key=lambda item: min(item[1])):
            reader = self._reader(schema_id)
            assert isinstance(reader, _Reader)
            columns, lost = _columns(found, reader.columns)
            for at, why in lost.items():
                reasons[at] = why
            if not len(columns):
                continue
            columns, why_not = typed_fields(columns, self.declared)
            fitted = fit(columns, schema, fixed=fixed)
            schema = fitted.schema
            fixed = {*fixed, *(path for f in schema for path in exact_longs(fitted.columns[f.name], (f.name,)))}
            kept = [at for at in found if at not in lost]
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

    def _schema_of(self, value: bytes | None) -> tuple[int, int, str | None]:
        """Return the id of the schema (0 for the file's), where the record begins, and a reason if neither is known."""
        if value is None:
            return 0, 0, NO_VALUE
        if self.registry_url is None:
            return 0, 0, None
        if len(value) < _HEADER_BYTES or value[0] != _MAGIC:
            return 0, 0, "no header of a schema registry: a zero byte and the schema's id"
        schema_id = int.from_bytes(value[1:_HEADER_BYTES])
        if schema_id > _SCHEMA_ID_MAX:  # to a registry that is no number, and its answer says nothing about the record
            return 0, 0, f"{schema_id} is no id of a schema"
        return schema_id, _HEADER_BYTES, None

    def _reader(self, schema_id: int) -> _Reader | str:
        """Return the reader of a schema, or why there is none to read with."""
        memory = self._memory
        if schema_id not in memory.readers:
            memory.readers[schema_id] = self._new_reader(schema_id)
        return memory.readers[schema_id]

    def _new_reader(self, schema_id: int) -> _Reader | str:
        try:
            if self.schema_text is not None:
                return reader_of(RegisteredSchema("AVRO", self.schema_text))
            assert self.registry_url is not None
            self._memory.registry = self._memory.registry or SchemaRegistry(self.registry_url)
            return reader_of(self._memory.registry.schema(schema_id))
        except (NoSuchSchema, UnsupportedSchema) as error:
            return str(error)


def _of(table: pa.Table, field_: pa.Field) -> Any:
    return table[field_.name] if field_.name in table.column_names else pa.nulls(len(table), field_.type)


def reader_of(schema: RegisteredSchema) -> _Reader:
    """Prepare a schema for reading. Raises UnsupportedSchema where it makes no table, and nothing else."""
    if schema.kind != "AVRO":
        raise UnsupportedSchema(f"the schema is {schema.kind}, not AVRO")
    try:
        named: dict[str, Any] = {}
        for text in schema.references:
            fastavro.parse_schema(json.loads(text), named_schemas=named)
        parsed = fastavro.parse_schema(json.loads(schema.text), named_schemas=named)
        plain = PlainSchema(named).convert(parsed, "the schema")
        kind = plain.kind
        if not pa.types.is_struct(kind):
            raise UnsupportedSchema("the schema is no record, so there are no fields")
        row = {"type": "record", "name": "ottla.Row", "fields": [{"name": _VALUE, "type": plain.avro}]}
        return _Reader(fastavro.parse_schema(row), pa.schema(list(kind)))
    except UnsupportedSchema:
        raise
    except RecursionError:
        raise UnsupportedSchema(f"the schema is more than {DEPTH_MAX} deep") from None
    except Exception as error:
        raise UnsupportedSchema(f"the schema cannot be read: {type(error).__name__}: {error}") from error


def _decode(reader: _Reader, value: bytes, start: int) -> dict[str, Any]:
    source = io.BytesIO(value)
    source.seek(start)
    read = fastavro.schemaless_reader(source, reader.parsed, None)
    assert isinstance(read, dict), "a record was read, with the value in its one field"
    row: Any = read[_VALUE]
    if (left := len(value) - source.tell()) != 0:
        raise ValueError(f"{left} bytes are left over")
    if not isinstance(row, dict):
        raise ValueError("it is null")  # noqa: TRY004 - of a record's bytes
    return row


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
