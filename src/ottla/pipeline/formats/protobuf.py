"""Decodes Protobuf records: with a schema registry's header, or of one message in a file of descriptors.

A registry's record has after the schema's id the place of its message in the file: the indexes of the message and of
those around it. A registry gives schemas as file descriptors, and a file without a registry is what `protoc
--include_imports --descriptor_set_out` writes, so nothing is compiled here; Google's library decodes.

Types: int32, int64, float, double, bool, string, bytes; uint32 is a long, uint64 a decimal(20,0); an enum is the name
of its value, a message a struct, a repeated field a list, a map a map with texts as keys. A field without presence has
its default where the record says nothing; every other is null then, members of a oneof too. `Timestamp` is a timestamp,
to the microsecond; the wrappers (`StringValue` and others) are their values; `Struct`, `Value` and `ListValue` are JSON
texts. A message that contains itself makes no column: records of such a schema are not understood.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from ottla.pipeline.formats.by_schema import (
    DEPTH_MAX,
    LEAVES_MAX,
    Context,
    SchemaMemory,
    SchemaReader,
    UnsupportedSchema,
    parse_by_schema,
)
from ottla.pipeline.formats.format import Parsed
from ottla.pipeline.formats.registered_protobuf import ProtobufSchema, read_indexes
from ottla.pipeline.formats.registry import SchemaRegistry
from ottla.pipeline.lake.schema import Path as LeafPath
from ottla.pipeline.topic_reader import TIME

_SIMPLE = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
}
_GOOGLE = "google.protobuf."
_WRAPPERS = frozenset(
    f"{_GOOGLE}{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_JSON = frozenset({f"{_GOOGLE}Struct", f"{_GOOGLE}Value", f"{_GOOGLE}ListValue"})
_TIMESTAMP = f"{_GOOGLE}Timestamp"
_LONG_MAX = (1 << 63) - 1

Convert = Callable[[Any], Any]
"""Makes of a field's value what Arrow makes a column of. Raises ValueError."""


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    kind: pa.DataType
    read: Callable[[Any], Any]
    """Reads the field of a message."""


@dataclass(frozen=True, slots=True)
class _Message:
    """One message ready to read with. A `SchemaReader`."""

    make: Any
    columns: pa.Schema
    convert: Convert

    def select(self, _value: bytes, start: int) -> tuple[SchemaReader, int]:
        """Return this reader: the record is of this message."""
        return self, start

    def decode(self, value: bytes, start: int) -> dict[str, Any]:
        """Decode the record that begins at `start`. Raises ValueError."""
        try:
            message = self.make.FromString(value[start:])
        except (DecodeError, RecursionError) as error:
            raise ValueError(str(error)) from error
        row: dict[str, Any] = self.convert(message)
        return row


@dataclass(slots=True)
class _Schema:
    """The messages of a registered schema, of which each record names one. A `SchemaReader`."""

    schema: ProtobufSchema
    columns: pa.Schema = field(default_factory=lambda: pa.schema([]))
    _messages: dict[tuple[int, ...], _Message | str] = field(default_factory=dict)

    def select(self, value: bytes, start: int) -> tuple[SchemaReader, int]:
        """Return the reader of the record's message. Raises ValueError."""
        indexes, length = read_indexes(value[start:])
        if indexes not in self._messages:
            self._messages[indexes] = self._find(indexes)
        message = self._messages[indexes]
        if isinstance(message, str):
            raise ValueError(message)  # noqa: TRY004 - of a record that names no message with columns
        return message, start + length

    def decode(self, _value: bytes, _start: int) -> dict[str, Any]:
        """Refuse: the message of a record decodes it."""
        raise AssertionError("a record is decoded by its message")

    def _find(self, indexes: tuple[int, ...]) -> _Message | str:
        try:
            return message_of(self.schema.class_of(indexes).DESCRIPTOR)
        except ValueError as error:
            return str(error)


@dataclass(frozen=True, slots=True)
class Protobuf:
    """A `Format`: of a registry's schemas, or of one message in a file. It remembers the schemas it has met."""

    registry_url: str | None = None
    descriptors: bytes | None = None
    message: str | None = None
    declared: Mapping[str, str] = field(default_factory=dict)
    _memory: SchemaMemory = field(default_factory=SchemaMemory, compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without what was remembered: descriptors belong to a process."""
        return Protobuf, (self.registry_url, self.descriptors, self.message, self.declared)

    @staticmethod
    def of_file(path: Path, message: str, declared: Mapping[str, str]) -> Protobuf:
        """Make the format of a message in a file of descriptors. Raises OSError or UnsupportedSchema."""
        made = Protobuf(None, path.read_bytes(), message, declared)
        made.columns()
        return made

    def columns(self) -> pa.Schema:
        """Return the columns of the file's message; those of a registry's schemas are found with the records."""
        if self.descriptors is None:
            return pa.schema([])
        assert self.message is not None
        return _message_of_file(self.descriptors, self.message).columns

    def parse(self, records: pa.RecordBatch, known: pa.Schema, fixed: Collection[LeafPath] = ()) -> Parsed:
        """Parse records. Raises RegistryFailed if the registry cannot be asked: that says nothing about the records."""
        with_header = self.registry_url is not None
        context = Context(known, fixed, self.declared)
        return parse_by_schema(records, self._reader, context, with_header=with_header, what="its Protobuf schema")

    def _reader(self, schema_id: int) -> SchemaReader | str:
        return self._memory.reader(schema_id, self.registry_url, self._new_reader)

    def _new_reader(self, registry: SchemaRegistry | None, schema_id: int) -> SchemaReader:
        if registry is None:
            assert self.descriptors is not None and self.message is not None  # noqa: PT018 - one comes with the other
            return _message_of_file(self.descriptors, self.message)
        if (kind := registry.schema(schema_id).kind) != "PROTOBUF":
            raise UnsupportedSchema(f"the schema is {kind}, not PROTOBUF")
        return reader_of(registry.serialized_files(schema_id))


def reader_of(files: Mapping[str, bytes]) -> SchemaReader:
    """Prepare the files of `SchemaRegistry.serialized_files` for reading. Raises UnsupportedSchema."""
    return _Schema(_schema_of(files))


def _schema_of(files: Mapping[str, bytes]) -> ProtobufSchema:
    try:
        return ProtobufSchema(files)
    except ValueError as error:
        raise UnsupportedSchema(str(error)) from error


def _message_of_file(descriptors: bytes, name: str) -> _Message:
    """Prepare a message of a file of descriptors. Raises UnsupportedSchema."""
    try:
        descriptor_files = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file
    except DecodeError as error:
        raise UnsupportedSchema(f"the file has no descriptors: {error}") from error
    if not descriptor_files:
        raise UnsupportedSchema("the file has no descriptors")
    files = {file.name: file.SerializeToString() for file in descriptor_files}
    files[""] = files.pop(descriptor_files[-1].name)  # no file before it imports it
    try:
        return message_of(_schema_of(files).descriptor_of(name))
    except ValueError as error:
        raise UnsupportedSchema(str(error)) from error


def message_of(descriptor: Descriptor) -> _Message:
    """Prepare a message for reading. Raises UnsupportedSchema where it makes no table."""
    columns = _columns(descriptor, _Above())
    schema = pa.schema([pa.field(column.name, column.kind) for column in columns])
    return _Message(message_factory.GetMessageClass(descriptor), schema, partial(_as_row, columns))


@dataclass(frozen=True, slots=True)
class _Above:
    """The messages around a field, and how many fields were converted so far: one list for all of a message."""

    names: tuple[str, ...] = ()
    fields: list[None] = field(default_factory=list)

    def inside(self, name: str) -> _Above:
        return _Above((*self.names, name), self.fields)


def _columns(descriptor: Descriptor, above: _Above) -> list[_Column]:
    name = descriptor.full_name
    if name in above.names:
        raise UnsupportedSchema(f"message {name} contains itself")
    if len(above.names) >= DEPTH_MAX:
        raise UnsupportedSchema(f"the schema is more than {DEPTH_MAX} deep")
    above.fields.extend([None] * len(descriptor.fields))
    if len(above.fields) > LEAVES_MAX:
        raise UnsupportedSchema(f"the message has more than {LEAVES_MAX:,} fields in each other")
    return [_column(f, above.inside(name)) for f in descriptor.fields]


def _column(f: FieldDescriptor, above: _Above) -> _Column:
    entry = f.message_type
    if entry is not None and entry.GetOptions().map_entry:
        keys, values = entry.fields_by_name["key"], entry.fields_by_name["value"]
        kind, convert = _value(values, above)
        of_key = _key_text if keys.cpp_type == FieldDescriptor.CPPTYPE_BOOL else str
        return _Column(f.name, pa.map_(pa.string(), kind), partial(_read_map, f.name, of_key, convert))
    kind, convert = _value(f, above)
    if f.is_repeated:
        return _Column(f.name, pa.list_(kind), partial(_read_list, f.name, convert))
    read = partial(_read_present if f.has_presence else _read, f.name, convert)
    return _Column(f.name, kind, read)


def _value(f: FieldDescriptor, above: _Above) -> tuple[pa.DataType, Convert]:
    """Return the column's type of one value of a field, and what makes it."""
    if f.message_type is not None:
        return _message_value(f.message_type, above)
    if f.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return (pa.binary() if f.type == FieldDescriptor.TYPE_BYTES else pa.string()), _as_it_is
    if f.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        names = {number: value.name for number, value in f.enum_type.values_by_number.items()}
        return pa.string(), partial(_enum_name, names)
    return _SIMPLE[f.cpp_type], _as_it_is


def _message_value(descriptor: Descriptor, above: _Above) -> tuple[pa.DataType, Convert]:
    name = descriptor.full_name
    if name == _TIMESTAMP:
        return TIME, _microseconds
    if name in _WRAPPERS:
        kind, _ = _value(descriptor.fields_by_name["value"], above)
        return kind, lambda message: message.value
    if name in _JSON:
        return pa.string(), partial(json_format.MessageToJson, indent=None, ensure_ascii=False, sort_keys=True)
    columns = _columns(descriptor, above)
    return pa.struct([pa.field(c.name, c.kind) for c in columns]), partial(_as_row, columns)


def _as_row(columns: list[_Column], message: Any) -> dict[str, Any]:
    return {column.name: column.read(message) for column in columns}


def _read(name: str, convert: Convert, message: Any) -> Any:
    return convert(getattr(message, name))


def _read_present(name: str, convert: Convert, message: Any) -> Any:
    return convert(getattr(message, name)) if message.HasField(name) else None


def _read_list(name: str, convert: Convert, message: Any) -> list[Any]:
    return [convert(value) for value in getattr(message, name)]


def _read_map(name: str, of_key: Callable[[Any], str], convert: Convert, message: Any) -> list[tuple[str, Any]]:
    """Return the entries by their keys: their order in a record means nothing."""
    return sorted(((of_key(key), convert(value)) for key, value in getattr(message, name).items()), key=lambda e: e[0])


def _as_it_is(value: Any) -> Any:
    return value


def _key_text(key: Any) -> str:
    return str(key).lower()


def _enum_name(names: Mapping[int, str], number: int) -> str:
    return names.get(number, str(number))


def _microseconds(message: Any) -> int:
    nanos = message.nanos
    if not 0 <= nanos < 1_000_000_000:
        raise ValueError(f"a timestamp with {nanos} nanoseconds")
    if nanos % 1000:
        raise ValueError("a timestamp with a fraction of a microsecond")
    microseconds: int = message.seconds * 1_000_000 + nanos // 1000
    if abs(microseconds) > _LONG_MAX:
        raise ValueError(f"a timestamp of {message.seconds} seconds")
    return microseconds
