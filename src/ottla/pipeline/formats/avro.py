"""Decodes Avro records: with a schema registry's header (a zero byte and the schema's id), or of one schema in a file.

Each record is decoded with the schema it was written with (`by_schema.py`). What a union of several types or a type
that refers to itself would be as a column is not known: records of such a schema are not understood.

Types: int, long, float, double, boolean, string, bytes, fixed (bytes), enum and uuid (texts), date, timestamps (UTC, to
the microsecond), times of day (numbers, in their own unit), decimal, record (struct), array (list), map. A union with
null is the other type; every column may be null.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa

from ottla.pipeline.formats.avro_schema import PlainSchema
from ottla.pipeline.formats.by_schema import (
    DEPTH_MAX,
    Context,
    SchemaMemory,
    SchemaReader,
    UnsupportedSchema,
    parse_by_schema,
)
from ottla.pipeline.formats.format import Parsed
from ottla.pipeline.formats.registry import RegisteredSchema, SchemaRegistry
from ottla.pipeline.lake.schema import Path as LeafPath

_VALUE = "value"
_NOT_AVRO = (EOFError, ValueError, TypeError, IndexError, KeyError, OverflowError, struct.error)
"""The exceptions of `fastavro` over bytes that are not what the schema says."""


@dataclass(frozen=True, slots=True)
class _Reader:
    """A schema ready to read with: a `SchemaReader`."""

    parsed: Any
    """A record of one field with the value: its bytes are the value's, and a union at the top has a place in it."""
    columns: pa.Schema

    def select(self, _value: bytes, start: int) -> tuple[SchemaReader, int]:
        """Return this reader: a schema describes one kind of record."""
        return self, start

    def decode(self, value: bytes, start: int) -> dict[str, Any]:
        """Decode the record that begins at `start`. Raises ValueError."""
        try:
            return _decode(self, value, start)
        except _NOT_AVRO as error:
            raise ValueError(str(error)) from error


@dataclass(frozen=True, slots=True)
class Avro:
    """A `Format`: of a registry's schemas, or of one in a file. It remembers the schemas it has met."""

    registry_url: str | None = None
    schema_text: str | None = None
    by_alias: bool = False
    """Whether a field that has aliases is the column of the last of them, its oldest name."""
    declared: Mapping[str, str] = field(default_factory=dict)
    """The types that a load declares, by field: such a field may be of different types in different schemas."""
    _memory: SchemaMemory = field(default_factory=SchemaMemory, compare=False, repr=False)

    @staticmethod
    def of_file(path: Path, *, by_alias: bool = False) -> Avro:
        """Make the format of a schema in an .avsc file. Raises OSError or UnsupportedSchema."""
        text = path.read_text(encoding="utf-8")
        reader_of(RegisteredSchema("AVRO", text), by_alias=by_alias)
        return Avro(schema_text=text, by_alias=by_alias)

    def columns(self) -> pa.Schema:
        """Return the columns of the file's schema; those of a registry's schemas are found with the records."""
        if self.schema_text is None:
            return pa.schema([])
        return reader_of(RegisteredSchema("AVRO", self.schema_text), by_alias=self.by_alias).columns

    def parse(self, records: pa.RecordBatch, known: pa.Schema, fixed: Collection[LeafPath] = ()) -> Parsed:
        """Parse records. Raises RegistryFailed if the registry cannot be asked: that says nothing about the records."""
        with_header = self.registry_url is not None
        return parse_by_schema(
            records, self._reader, Context(known, fixed, self.declared), with_header=with_header, what="its Avro schema"
        )

    def _reader(self, schema_id: int) -> SchemaReader | str:
        """Return the reader of a schema, or why there is none to read with."""
        return self._memory.reader(schema_id, self.registry_url, self._new_reader)

    def _new_reader(self, registry: SchemaRegistry | None, schema_id: int) -> SchemaReader:
        if registry is None:
            assert self.schema_text is not None
            return reader_of(RegisteredSchema("AVRO", self.schema_text), by_alias=self.by_alias)
        return reader_of(registry.schema(schema_id), by_alias=self.by_alias)


def reader_of(schema: RegisteredSchema, *, by_alias: bool = False) -> _Reader:
    """Prepare a schema for reading. Raises UnsupportedSchema where it makes no table, and nothing else."""
    if schema.kind != "AVRO":
        raise UnsupportedSchema(f"the schema is {schema.kind}, not AVRO")
    try:
        named: dict[str, Any] = {}
        for text in schema.references:
            fastavro.parse_schema(json.loads(text), named_schemas=named)
        parsed = fastavro.parse_schema(json.loads(schema.text), named_schemas=named)
        plain = PlainSchema(named, by_alias=by_alias).convert(parsed, "the schema")
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
