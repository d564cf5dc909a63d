"""Decodes what producers with a schema registry write to JSON: Avro, Protobuf, and JSON with a schema.

It is for people and for searches, one value at a time; loads into tables decode by `avro.py`. Bytes are base64, dates
and times ISO 8601, a decimal is a number.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import io
import json
import struct
import uuid
from dataclasses import dataclass
from typing import Any

import fastavro

from ottla.pipeline.formats.registry import NoSuchSchema, SchemaRegistry

_MAGIC, _HEADER_BYTES, _SIGN = 0, 5, 0x80
_NOT_OF_SCHEMA = (EOFError, ValueError, TypeError, IndexError, KeyError, OverflowError, RecursionError, struct.error)


@dataclass(frozen=True, slots=True)
class SchemaName:
    """The name of a schema: its kind, and the subjects and versions that have it."""

    schema_id: int
    kind: str
    subjects: tuple[tuple[str, int], ...]


def schema_id_of(value: bytes | None) -> int | None:
    """Return the id of the schema that a value begins with, as all serializers of registries write it; None without.

    >>> schema_id_of(bytes([0, 0, 0, 1, 2, 6])), schema_id_of(b"text")
    (258, None)
    """
    if value is None or len(value) < _HEADER_BYTES or value[0] != _MAGIC or value[1] >= _SIGN:
        return None
    return int.from_bytes(value[1:_HEADER_BYTES])


class RegisteredJson:
    """Decodes values by the schemas of a registry."""

    def __init__(self, url: str, *, timeout_s: float | None = None, attempts: int | None = None) -> None:
        self._registry = SchemaRegistry(url)
        self._registry.timeout_s = timeout_s or self._registry.timeout_s
        self._registry.attempts = attempts or self._registry.attempts
        self._schemas: dict[int, Any] = {}  # of Avro and Protobuf, ready to decode with

    def load(self, schema_id: int) -> SchemaName:
        """Fetch all that decoding by a schema needs, as it is now. Raises ValueError or RegistryFailed."""
        self._registry.forget(schema_id)
        self._schemas.pop(schema_id, None)
        try:
            kind = self._registry.schema(schema_id).kind
            if kind != "JSON":
                self._parsed(schema_id, kind)
            return SchemaName(schema_id, kind, tuple(self._registry.subjects(schema_id)))
        except (NoSuchSchema, fastavro.schema.SchemaParseException, *_NOT_OF_SCHEMA) as error:
            raise ValueError(f"schema {schema_id}: {error}") from error

    def decode(self, value: bytes) -> Any:
        """Return the value as JSON has it. Raises ValueError if it is of no schema, and RegistryFailed."""
        schema_id = schema_id_of(value)
        if schema_id is None:
            raise ValueError("it has no schema's id")
        body = value[_HEADER_BYTES:]
        try:
            kind = self._registry.schema(schema_id).kind
            if kind == "JSON":
                return json.loads(body)
            parsed = self._parsed(schema_id, kind)
            if kind == "PROTOBUF":
                return parsed.decode(body)
            source = io.BytesIO(body)
            read = _plain(fastavro.schemaless_reader(source, parsed, None))
            if (left := len(body) - source.tell()) != 0:
                raise ValueError(f"{left} bytes are left over")
            return read
        except (NoSuchSchema, fastavro.schema.SchemaParseException, *_NOT_OF_SCHEMA) as error:
            raise ValueError(f"schema {schema_id}: {error}") from error

    def to_text(self, value: bytes | None) -> bytes | None:
        """Return the value as a JSON text, or as it is if it is of no schema. Raises RegistryFailed."""
        if value is None:
            return None
        try:
            return json.dumps(self.decode(value), ensure_ascii=False, separators=(",", ":")).encode()
        except ValueError:
            return value

    def _parsed(self, schema_id: int, kind: str) -> Any:
        if schema_id not in self._schemas:
            match kind:
                case "AVRO":
                    self._schemas[schema_id] = self._parsed_avro(schema_id)
                case "PROTOBUF":
                    self._schemas[schema_id] = self._parsed_protobuf(schema_id)
                case _:
                    raise ValueError(f"it is of {kind}, which is not decoded")
        return self._schemas[schema_id]

    def _parsed_avro(self, schema_id: int) -> Any:
        schema, named = self._registry.schema(schema_id), dict[str, Any]()
        for text in schema.references:
            fastavro.parse_schema(json.loads(text), named_schemas=named)
        return fastavro.parse_schema(json.loads(schema.text), named_schemas=named)

    def _parsed_protobuf(self, schema_id: int) -> Any:
        try:
            from ottla.pipeline.formats.registered_protobuf import ProtobufSchema
        except ModuleNotFoundError as error:
            raise ValueError(f"Protobuf needs {error.name}, which is not installed") from None
        return ProtobufSchema(self._registry.serialized_files(schema_id))


def _plain(value: Any) -> Any:
    """Return a value of Avro with JSON's types only."""
    match value:
        case dict():
            return {name: _plain(inner) for name, inner in value.items()}
        case list():
            return [_plain(inner) for inner in value]
        case bytes():
            return base64.b64encode(value).decode()
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat()
        case decimal.Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case uuid.UUID():
            return str(value)
        case _:
            return value
