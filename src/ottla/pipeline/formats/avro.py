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
from fastavro.schema import SchemaParseException

from ottla.pipeline.formats.port import NO_VALUE, Parsed
from ottla.pipeline.formats.registry import NoSuchSchema, RegisteredSchema, SchemaRegistry
from ottla.pipeline.formats.typed import typed_fields
from ottla.pipeline.lake.schema import Path as LeafPath
from ottla.pipeline.lake.schema import conform, exact_longs, fit, wider

_MAGIC, _HEADER_BYTES = 0, 5
_DECIMAL_DIGITS_MAX = 38
_DEPTH_MAX = 32
_SIMPLE = {
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "enum": pa.string(),
    "null": pa.null(),
}
_LOGICAL = {
    ("int", "date"): pa.date32(),
    **{
        ("long", f"{local}timestamp-{unit}"): pa.timestamp(short, tz="UTC")
        for local in ("", "local-")
        for unit, short in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
    },
}
_NOT_AVRO = (EOFError, ValueError, TypeError, IndexError, KeyError, OverflowError, struct.error)
"""The exceptions of `fastavro` over bytes that are not what the schema says."""


class UnsupportedSchema(ValueError):
    """A schema that makes no table; the message says where."""


@dataclass(frozen=True, slots=True)
class _Reader:
    """A schema ready to read with."""

    parsed: Any
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
        return int.from_bytes(value[1:_HEADER_BYTES]), _HEADER_BYTES, None

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
    """Prepare a schema for reading. Raises UnsupportedSchema where it makes no table."""
    if schema.kind != "AVRO":
        raise UnsupportedSchema(f"the schema is {schema.kind}, not AVRO")
    try:
        named: dict[str, Any] = {}
        for text in schema.references:
            fastavro.parse_schema(json.loads(text), named_schemas=named)
        parsed = fastavro.parse_schema(json.loads(schema.text), named_schemas=named, expand=True)
    except (SchemaParseException, ValueError, KeyError, TypeError) as error:
        raise UnsupportedSchema(f"the schema cannot be read: {error}") from error
    kind = _column_type(parsed, "the schema", 0, ())
    if not pa.types.is_struct(kind):
        raise UnsupportedSchema("the schema is no record, so there are no fields")
    return _Reader(_plain(parsed), pa.schema(list(kind)))


def _plain(avro: Any) -> Any:
    """Return the schema with numbers for times: Arrow makes times of whole columns at once."""
    match avro:
        case dict() if avro.get("logicalType") is not None and not _is_decimal(avro):
            return _plain({name: value for name, value in avro.items() if name != "logicalType"})
        case dict():
            return {name: _plain(value) if name in _INSIDE else value for name, value in avro.items()}
        case list():
            return [_plain(item) for item in avro]
        case _:
            return avro


_INSIDE = frozenset({"fields", "type", "items", "values"})


def _is_decimal(avro: dict[str, Any]) -> bool:
    """Return whether a column can hold the decimal; larger ones stay the bytes they are."""
    digits = avro.get("precision", 0)
    return avro.get("logicalType") == "decimal" and isinstance(digits, int) and 0 < digits <= _DECIMAL_DIGITS_MAX


def _column_type(avro: Any, path: str, deep: int, above: tuple[str, ...]) -> pa.DataType:
    """Return a schema's type as a column's."""
    if deep > _DEPTH_MAX:
        raise UnsupportedSchema(f"{path} is too deep")
    match avro:
        case list():
            return _union_type(avro, path, deep, above)
        case str():
            if avro in _SIMPLE:
                return _SIMPLE[avro]
            raise UnsupportedSchema(f"{path} refers to {avro}, which it is part of")
        case {"type": "record" | "error", "fields": fields}:
            name = avro.get("name", "")
            if name in above:
                raise UnsupportedSchema(f"{path} refers to {name}, which it is part of")
            inside = [
                pa.field(f["name"], _column_type(f["type"], f"{path}.{f['name']}", deep + 1, (*above, name)))
                for f in fields
            ]
            return pa.struct(inside)
        case {"type": "array", "items": items}:
            return pa.list_(_column_type(items, f"{path}[]", deep + 1, above))
        case {"type": "map", "values": values}:
            return pa.map_(pa.string(), _column_type(values, f"{path}{{}}", deep + 1, above))
        case dict() if _is_decimal(avro):
            return pa.decimal128(int(avro["precision"]), int(avro.get("scale", 0)))
        case {"type": str(kind)} if kind in _SIMPLE:
            return _LOGICAL.get((kind, avro.get("logicalType")), _SIMPLE[kind])
        case {"type": inner}:
            return _column_type(inner, path, deep + 1, above)
        case _:
            raise UnsupportedSchema(f"{path} is {avro!r}, which is no Avro type")


def _union_type(avro: list[Any], path: str, deep: int, above: tuple[str, ...]) -> pa.DataType:
    kinds = [_column_type(item, path, deep + 1, above) for item in avro if item not in ("null", {"type": "null"})]
    if not kinds:
        return pa.null()
    found = kinds[0]
    for kind in kinds[1:]:
        both = wider(found, kind) if not pa.types.is_nested(kind) else None
        if both is None:
            raise UnsupportedSchema(f"{path} is a union of {found} and {kind}, which is no column")
        found = both
    return found


def _decode(reader: _Reader, value: bytes, start: int) -> dict[str, Any]:
    source = io.BytesIO(value)
    source.seek(start)
    row = fastavro.schemaless_reader(source, reader.parsed, None)
    if (left := len(value) - source.tell()) != 0:
        raise ValueError(f"{left} bytes are left over")
    assert isinstance(row, dict)
    return row


def _columns(rows: dict[int, dict[str, Any]], schema: pa.Schema) -> tuple[pa.Table, dict[int, str]]:
    """Convert rows to columns; return them, and those that Arrow cannot hold, by index."""
    try:
        return pa.Table.from_pylist(list(rows.values()), schema=schema), {}
    except pa.ArrowException:
        lost = {}
    for at, row in rows.items():
        try:
            pa.Table.from_pylist([row], schema=schema)
        except pa.ArrowException as error:
            lost[at] = f"a value that no column can hold: {error}"
    return pa.Table.from_pylist([row for at, row in rows.items() if at not in lost], schema=schema), lost
