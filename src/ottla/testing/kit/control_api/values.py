"""Reads the arguments of the control API from JSON by their types, writes results, and describes both as JSON Schema.

A type is one of Python's annotations: text, numbers, booleans, lists, maps by name, dataclasses, `X | None`, and
`Annotated` with a description and limits. Bytes are text in JSON, or base64 where they are not UTF-8, as in records of
`ottla produce`: under the field's name, or that name with `_base64`.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import math
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Union

BASE64 = "_base64"
_LONG_MAX = (1 << 63) - 1
_NOTHING: Any = object()


class WrongArgument(ValueError):
    """Reports an argument that is missing, unknown, or has another type; the message names the field."""


class Limits(NamedTuple):
    """The least and the largest number that an argument may be."""

    least: float
    most: float


class Field(NamedTuple):
    """One argument of an operation, or one field of an object."""

    name: str
    type: Any  # without Annotated and None
    doc: str
    limits: Limits | None
    may_be_null: bool
    default: Any = _NOTHING

    @property
    def is_required(self) -> bool:
        """Return whether there is no default."""
        return self.default is _NOTHING


def field_of(name: str, annotation: Any, default: Any = _NOTHING) -> Field:
    """Return the field with an annotation."""
    doc, limits = "", None
    if typing.get_origin(annotation) is Annotated:
        annotation, *notes = typing.get_args(annotation)
        doc = next((note for note in notes if isinstance(note, str)), "")
        limits = next((note for note in notes if isinstance(note, Limits)), None)
    may_be_null = False
    if typing.get_origin(annotation) in {Union, types.UnionType}:
        arms = [arm for arm in typing.get_args(annotation) if arm is not types.NoneType]
        if len(arms) > 1:
            return Field(name, annotation, doc, limits, may_be_null, default)
        return field_of(name, arms[0], default)._replace(doc=doc, limits=limits, may_be_null=True)
    return Field(name, annotation, doc, limits, may_be_null, default)


def fields_of(kind: type[Any]) -> list[Field]:
    """Return the fields of a dataclass."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return [field_of(each.name, hints[each.name], _default(each)) for each in dataclasses.fields(kind)]


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return _NOTHING if field.default is dataclasses.MISSING else field.default


# ---- From JSON


def read_arguments(
    fields: Collection[Field], given: object, *, where: str = "", is_text: bool = False
) -> dict[str, Any]:
    """Return the arguments by name, checked and with defaults. `is_text`: all are texts, as in a query.

    Raises WrongArgument.
    """
    if not isinstance(given, Mapping):
        raise WrongArgument(f"{where or 'the body'}: an object is needed, not {_kind(given)}")
    left: dict[str, Any] = dict(given)
    arguments: dict[str, Any] = {}
    for field in fields:
        path = f"{where}.{field.name}" if where else field.name
        encoded = left.pop(field.name + BASE64, None) if field.type is bytes else None
        if encoded is not None:
            if field.name in left:
                raise WrongArgument(f"{path}: it is there as {field.name}{BASE64} too")
            arguments[field.name] = _decoded(path + BASE64, encoded)
        elif field.name in left:
            arguments[field.name] = _read(path, field, left.pop(field.name), is_text=is_text)
        elif field.is_required and not (field.type is bytes and field.may_be_null):
            raise WrongArgument(f"{path}: it is missing")
        else:
            arguments[field.name] = None if field.is_required else field.default
    if left:
        known = ", ".join(field.name for field in fields) or "none"
        raise WrongArgument(f"{where + '.' if where else ''}{min(left)}: it is unknown; known are: {known}")
    return arguments


def _read(path: str, field: Field, given: object, *, is_text: bool) -> Any:
    if given is None and field.may_be_null:
        return None
    kind, origin = field.type, typing.get_origin(field.type)
    if is_text and isinstance(given, str):
        given = _from_text(path, kind, given)
    if origin is list or origin is tuple:
        if not isinstance(given, list):
            raise WrongArgument(f"{path}: a list is needed, not {_kind(given)}")
        item = field_of("", typing.get_args(kind)[0])
        return [_read(f"{path}[{place}]", item, each, is_text=is_text) for place, each in enumerate(given)]
    if origin is dict:
        if not isinstance(given, dict):
            raise WrongArgument(f"{path}: an object is needed, not {_kind(given)}")
        item = field_of("", typing.get_args(kind)[1])
        return {name: _read(f"{path}.{name}", item, each, is_text=is_text) for name, each in given.items()}
    if origin is Literal:
        if given not in typing.get_args(kind) or not isinstance(given, str):
            raise WrongArgument(f"{path}: one of {', '.join(typing.get_args(kind))} is needed, not {given!r}")
        return given
    if dataclasses.is_dataclass(kind):
        assert isinstance(kind, type)
        return kind(**read_arguments(fields_of(kind), given, where=path, is_text=is_text))
    if kind is Any:
        return given
    return _scalar(path, field, given)


def _scalar(path: str, field: Field, given: object) -> Any:
    name, accepted = _SCALARS[field.type]
    if not isinstance(given, accepted) or (isinstance(given, bool) and field.type is not bool):
        raise WrongArgument(f"{path}: {name} is needed, not {_kind(given)}")
    if isinstance(given, int | float) and not isinstance(given, bool):
        if abs(given) > _LONG_MAX or math.isnan(given):
            raise WrongArgument(f"{path}: the number is too large")
        if field.limits is not None and not field.limits.least <= given <= field.limits.most:
            raise WrongArgument(f"{path}: {given} is not from {field.limits.least:g} to {field.limits.most:g}")
    if isinstance(given, str):
        try:
            encoded = given.encode()
        except UnicodeEncodeError:
            raise WrongArgument(f"{path}: half of a surrogate pair is no text") from None
        return encoded if field.type is bytes else given
    return given


_SCALARS: dict[Any, tuple[str, tuple[type, ...]]] = {
    str: ("text", (str,)),
    bytes: ("text", (str,)),
    int: ("a whole number", (int,)),
    float: ("a number", (int, float)),
    bool: ("true or false", (bool,)),
    int | str: ("a whole number or text", (int, str)),
}


def _from_text(path: str, kind: Any, given: str) -> object:
    """Return what a text of a query stands for."""
    convert: Callable[[str], object] = {int: int, float: float}.get(kind, str)
    if kind is bool:
        return {"true": True, "false": False}.get(given, given)
    try:
        return convert(given)
    except ValueError:
        raise WrongArgument(f"{path}: {_SCALARS[kind][0]} is needed, not {given!r}") from None


def _decoded(path: str, given: object) -> bytes:
    try:
        if isinstance(given, str):
            return base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError):
        pass
    raise WrongArgument(f"{path}: base64 is needed, not {_kind(given)}")


def _kind(given: object) -> str:
    match given:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case _:
            return "an object"


# ---- To JSON


def encode(value: Any) -> Any:
    """Return a result as it is written in JSON."""
    if dataclasses.is_dataclass(value):
        shown: dict[str, Any] = {}
        for each in dataclasses.fields(value):
            _put(shown, each.name, getattr(value, each.name))
        return shown
    if isinstance(value, dict):
        shown = {}
        for name, each in value.items():
            _put(shown, str(name), each)
        return shown
    if hasattr(value, "_asdict"):
        return encode(value._asdict())
    if isinstance(value, list | tuple):
        return [encode(each) for each in value]
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return value


def _put(shown: dict[str, Any], name: str, value: Any) -> None:
    if isinstance(value, bytes):
        try:
            shown[name] = value.decode()
        except UnicodeDecodeError:
            shown[name + BASE64] = base64.b64encode(value).decode()
    else:
        shown[name] = encode(value)


# ---- JSON Schema


def schema_of(field: Field) -> dict[str, Any]:
    """Return the schema of a field."""
    schema = _schema(field.type)
    if field.limits is not None:
        schema |= {"minimum": field.limits.least, "maximum": field.limits.most}
    if field.may_be_null:
        schema = {**schema, "type": [schema["type"], "null"]} if "type" in schema else schema
    if field.doc:
        schema["description"] = field.doc
    if not field.is_required and field.default not in (None, (), {}):
        schema["default"] = field.default
    return schema


def object_schema(fields: Collection[Field], *, is_closed: bool = False) -> dict[str, Any]:
    """Return the schema of an object; a closed one has no other fields."""
    properties: dict[str, Any] = {}
    required = []
    for field in fields:
        properties[field.name] = schema_of(field)
        if field.type is bytes:
            doc = f"{field.name} in base64, where it is not UTF-8"
            properties[field.name + BASE64] = {"type": "string", "contentEncoding": "base64", "description": doc}
        elif field.is_required:
            required.append(field.name)
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    if is_closed:
        schema["additionalProperties"] = False
    return schema


def _schema(kind: Any) -> dict[str, Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is list or origin is tuple:
        return {"type": "array", "items": schema_of(field_of("", arguments[0]))}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema_of(field_of("", arguments[1]))}
    if origin is Literal:
        return {"type": "string", "enum": list(arguments)}
    if dataclasses.is_dataclass(kind):
        assert isinstance(kind, type)
        return object_schema(fields_of(kind))
    if hasattr(kind, "_fields"):
        return object_schema([field_of(name, hint) for name, hint in typing.get_type_hints(kind).items()])
    if kind is Any:
        return {}
    return {"type": _JSON_TYPES[kind]}


_JSON_TYPES: dict[Any, str | list[str]] = {
    str: "string",
    bytes: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    int | str: ["integer", "string"],
}
