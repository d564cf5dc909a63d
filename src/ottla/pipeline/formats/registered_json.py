"""Decodes what producers with a schema registry write to JSON: Avro, and JSON with a schema.

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
from typing import Any

import fastavro

from ottla.pipeline.formats.registry import NoSuchSchema, SchemaRegistry

_MAGIC, _HEADER_BYTES = 0, 5
_NOT_OF_SCHEMA = (EOFError, ValueError, TypeError, IndexError, KeyError, OverflowError, RecursionError, struct.error)


class RegisteredJson:
    """Decodes values by the schemas of a registry."""

    def __init__(self, url: str) -> None:
        self._registry = SchemaRegistry(url)
        self._schemas: dict[int, Any] = {}  # of Avro, parsed

    def decode(self, value: bytes) -> Any:
        """Return the value as JSON has it. Raises ValueError if it is of no schema, and RegistryFailed."""
        if len(value) < _HEADER_BYTES or value[0] != _MAGIC:
            raise ValueError("it has no schema's id")
        schema_id, body = int.from_bytes(value[1:_HEADER_BYTES]), value[_HEADER_BYTES:]
        try:
            schema = self._registry.schema(schema_id)
            if schema.kind == "JSON":
                return json.loads(body)
            if schema.kind != "AVRO":
                raise ValueError(f"schema {schema_id} is of {schema.kind}, which is not decoded")
            return _plain(fastavro.schemaless_reader(io.BytesIO(body), self._parsed(schema_id), None))
        except (NoSuchSchema, *_NOT_OF_SCHEMA) as error:
            raise ValueError(f"schema {schema_id}: {error}") from error

    def to_text(self, value: bytes | None) -> bytes | None:
        """Return the value as a JSON text, or as it is if it is of no schema. Raises RegistryFailed."""
        if value is None:
            return None
        try:
            return json.dumps(self.decode(value), ensure_ascii=False, separators=(",", ":")).encode()
        except ValueError:
            return value

    def _parsed(self, schema_id: int) -> Any:
        if schema_id not in self._schemas:
            schema, named = self._registry.schema(schema_id), dict[str, Any]()
            for text in schema.references:
                fastavro.parse_schema(json.loads(text), named_schemas=named)
            self._schemas[schema_id] = fastavro.parse_schema(json.loads(schema.text), named_schemas=named)
        return self._schemas[schema_id]


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
