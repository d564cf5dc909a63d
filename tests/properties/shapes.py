"""Hypothesis strategies for the generated shapes, made from what each declares about its place on the wire."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from ottla.core.errors import ErrorCode
from ottla.wire.schema import NEVER, Field
from tests.support.newer_messages import NEWER_ERRORS

_RANGES = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
_DURATION_MS_MAX = 2**31 - 1


def _primitive(field: Field, kind: str) -> st.SearchStrategy[Any]:
    if field.name.endswith("error_code"):
        return st.sampled_from([code for code in ErrorCode if code.name not in NEWER_ERRORS]).map(int)  # kio's
    if field.name.endswith("_ms"):
        return st.integers(0, _DURATION_MS_MAX)
    match kind:
        case "bool":
            return st.booleans()
        case "uint16":
            return st.integers(0, 65535)
        case "float64":
            return st.floats(allow_nan=False, allow_infinity=False)
        case "string":
            return st.text(max_size=6)
        case "bytes" | "records":
            return st.binary(max_size=6)
        case "uuid":
            return st.sampled_from([UUID(int=0), UUID(int=1), UUID(int=2**128 - 1)])
        case _:
            bits = _RANGES[kind]
            return st.one_of(st.integers(-1, 9), st.integers(-(2**bits), 2**bits - 1))


def shapes(cls: Any) -> st.SearchStrategy[Any]:
    """Instances of a generated shape with every field of every version drawn."""
    return st.builds(cls, **{field.name: _values(cls, field) for field in cls.WIRE})


def _values(cls: Any, field: Field) -> st.SearchStrategy[Any]:
    values = _primitive(field, field.type) if isinstance(field.type, str) else shapes(field.type)
    if field.array:
        values = st.lists(values, max_size=2)
    if field.null_since != NEVER:
        values = st.one_of(st.none(), values)
    if field.tag is not None:
        values = st.one_of(st.just(getattr(cls(), field.name)), values)
    return values


def in_version(shape: Any, version: int) -> Any:
    """Reduce `shape` to the fields of `version`: absent ones at their defaults, no null where it is not allowed."""
    cls = type(shape)
    default = cls()
    values = {}
    for field in cls.WIRE:
        value = getattr(shape, field.name)
        if not field.in_version(version):
            value = getattr(default, field.name)
        elif value is None and version < field.null_since:
            value = [] if field.array else "" if field.type == "string" else b""
        elif isinstance(value, list) and not isinstance(field.type, str):
            value = [in_version(item, version) for item in value]
        elif hasattr(value, "WIRE"):
            value = in_version(value, version)
        values[field.name] = value
    return cls(**values)


def without_illegal_nulls(shape: Any, version: int) -> Any:
    """`shape` with all its fields, also those the version lacks, but no null where the version has none."""
    cls = type(shape)
    values = {}
    for field in cls.WIRE:
        value = getattr(shape, field.name)
        if value is None and field.in_version(version) and version < field.null_since:
            value = [] if field.array else "" if field.type == "string" else b""
        elif isinstance(value, list) and not isinstance(field.type, str):
            value = [without_illegal_nulls(item, version) for item in value]
        elif hasattr(value, "WIRE"):
            value = without_illegal_nulls(value, version)
        values[field.name] = value
    return cls(**values)
