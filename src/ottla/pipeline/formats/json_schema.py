"""Parses JSON records with the header of a schema registry, as serializers of JSON Schema write them.

The header has to name a schema of the registry, of JSON Schema. The value after it is parsed as any JSON object, for
the serializer has validated it, and a table's columns take new and wider fields by their own rules.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from ottla.pipeline.formats.by_schema import record_header
from ottla.pipeline.formats.format import Parsed
from ottla.pipeline.formats.json_objects import JsonObjects
from ottla.pipeline.formats.registry import NoSuchSchema, SchemaRegistry
from ottla.pipeline.lake.schema import Path

_JSON = "JSON"


@dataclass(slots=True)
class _Known:
    """Caches the client of the registry, and why records of a schema are refused; None if they are not."""

    registry: SchemaRegistry
    faults: dict[int, str | None] = field(default_factory=dict)

    def fault(self, schema_id: int) -> str | None:
        if schema_id not in self.faults:
            try:
                kind = self.registry.schema(schema_id).kind
                self.faults[schema_id] = None if kind == _JSON else f"the schema is {kind}, not {_JSON}"
            except NoSuchSchema as error:
                self.faults[schema_id] = str(error)
        return self.faults[schema_id]


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """A `Format`. It remembers the schemas it has met."""

    registry_url: str
    objects: JsonObjects = field(default_factory=JsonObjects)
    _known: list[_Known] = field(default_factory=list, compare=False, repr=False)

    def columns(self) -> pa.Schema:
        """Return no columns: they come from the records."""
        return self.objects.columns()

    def parse(self, records: pa.RecordBatch, known: pa.Schema, fixed: Collection[Path] = ()) -> Parsed:
        """Parse records. Raises RegistryFailed if the registry cannot be asked: that says nothing about the records."""
        if not self._known:
            self._known.append(_Known(SchemaRegistry(self.registry_url)))
        values: list[bytes | None] = []
        reasons: list[str | None] = []
        for value in records.column("value").to_pylist():
            schema_id, start, why = record_header(value)
            why = why or self._known[0].fault(schema_id)
            values.append(None if why else value[start:])
            reasons.append(why)
        at = records.schema.get_field_index("value")
        bodies = records.set_column(at, records.schema.field(at), pa.array(values, pa.binary()))
        parsed = self.objects.parse(bodies, known, fixed)
        return Parsed(parsed.rows, pc.coalesce(pa.array(reasons, pa.string()), parsed.reasons), parsed.has_conflicts)
