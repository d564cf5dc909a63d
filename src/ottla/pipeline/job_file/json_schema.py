"""Describes job files as a JSON schema, for editors and for programs that write them: docs/job-file.schema.json.

It says what a key may hold, not which keys contradict each other: `ottla pipeline check` says that too, with lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ottla.pipeline.job_file.schema import Key, SectionSchema, ValueType

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TEXT: dict[str, Any] = {"type": "string"}
_KINDS: dict[ValueType, dict[str, Any]] = {
    ValueType.TEXT: _TEXT,
    ValueType.TEXTS: {"oneOf": [_TEXT, {"type": "array", "items": _TEXT}]},
    ValueType.NUMBER: {"type": "integer", "minimum": 0},
    ValueType.FLAG: {"type": "boolean"},
    ValueType.SPAN: _TEXT,
    ValueType.SIZE: {"oneOf": [_TEXT, {"type": "integer", "minimum": 0}]},
    ValueType.SHARE: {"type": "string", "pattern": "%\\s*$"},
    ValueType.OFFSET_SPEC: {"type": ["string", "integer"]},
    ValueType.PATH: {"type": "string", "minLength": 1},
    ValueType.LOCATION: {"type": "string", "minLength": 1},
}


def json_schema(sections: Sequence[SectionSchema]) -> dict[str, Any]:
    """Return the JSON schema of a job file with these sections."""
    return {
        "$schema": DIALECT,
        "title": "A job file of ottla pipeline",
        "type": "object",
        "properties": {section.name: _section(section) for section in sections},
        "additionalProperties": False,
    }


def _section(section: SectionSchema) -> dict[str, Any]:
    properties = {key.name: _key(key) for key in section.keys}
    properties |= {inside.name: _section(inside) for inside in section.sections}
    table: dict[str, Any] = {"type": "object", "description": section.doc, "properties": properties}
    table["additionalProperties"] = False if section.entries is None else _key(section.entries)
    if required := [key.name for key in section.keys if key.required]:
        table["required"] = required
    return {"description": section.doc, "type": "array", "items": table} if section.many else table


def _key(key: Key) -> dict[str, Any]:
    key_schema = dict(_KINDS[key.kind])
    if key.choices:
        key_schema["enum"] = [str(choice) for choice in key.choices]
    return {"description": f"{key.doc} {key.kind.value.capitalize()}.", **key_schema}
