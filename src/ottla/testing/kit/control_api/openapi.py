"""Describes the control API in OpenAPI, from the table of its operations."""

from __future__ import annotations

from typing import Any

from ottla.testing.kit.control_api.operations import OPERATIONS, Operation
from ottla.testing.kit.control_api.values import Field, object_schema, schema_of

API_VERSION = "1"

_PROBLEM = {
    "type": "object",
    "required": ["title", "status", "detail"],
    "properties": {
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "what is wrong, with the name of the field or of what is missing"},
    },
}
_PROBLEM_CONTENT = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}


def document() -> dict[str, Any]:
    """Return the OpenAPI document."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Control API of ottla server --memory",
            "version": API_VERSION,
            "description": "Faults, time and assertions for tests of Kafka clients: docs/control-api.md.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Problem": _PROBLEM},
        },
    }


def _query_schema(field: Field) -> dict[str, Any]:
    """Return the schema of a parameter of a query, which is left out instead of null."""
    return schema_of(field._replace(may_be_null=False))


def _described(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.run.__name__,
        "summary": operation.summary,
        "responses": {
            "200": {
                "description": "done",
                "content": {"application/json": {"schema": schema_of(operation.signature.result)}},
            },
            "default": {"description": "refused", "content": _PROBLEM_CONTENT},
        },
    }
    in_path = [field for field in operation.signature.arguments if field.name in operation.path_names]
    others = [field for field in operation.signature.arguments if field.name not in operation.path_names]
    parameters = [{"name": field.name, "in": "path", "required": True, "schema": schema_of(field)} for field in in_path]
    if operation.method == "POST":
        schema = object_schema(others, is_closed=True)
        described["requestBody"] = {
            "required": "required" in schema,
            "content": {"application/json": {"schema": schema}},
        }
    else:
        parameters += [
            {"name": field.name, "in": "query", "required": field.is_required, "schema": _query_schema(field)}
            for field in others
        ]
    if parameters:
        described["parameters"] = parameters
    return described
