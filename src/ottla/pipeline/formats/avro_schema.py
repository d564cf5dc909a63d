"""Converts Avro schemas to columns, and to the plain schemas that records are read with.

A plain schema has only what reading needs, and each named type where it is first used, under a name of its own. So
neither a type that is used twice, nor references of references, nor any attribute is left for the reader to resolve.
Times have no logical type there: Arrow makes times of whole columns at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from ottla.pipeline.formats.by_schema import DEPTH_MAX, LEAVES_MAX, UnsupportedSchema
from ottla.pipeline.lake.schema import wider

_DECIMAL_DIGITS_MAX = 38
_SIMPLE = {
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
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


@dataclass(frozen=True, slots=True)
class PlainType:
    """A type as it is read, and its column."""

    avro: Any
    kind: pa.DataType
    is_empty: bool = False
    """Whether a value takes no bytes."""
    leaves: int = 1
    depth: int = 0
    """Greatest number of records, arrays and maps in each other."""


class PlainSchema:
    """Converts the types of one parsed schema."""

    def __init__(self, named: Mapping[str, Any], *, by_alias: bool = False) -> None:
        """Take the named types; with `by_alias` a field that has aliases is the column of the last of them."""
        self._named, self._by_alias = named, by_alias
        self._done: dict[str, PlainType] = {}
        """The named types so far, as references to them."""

    def convert(self, avro: Any, path: str, deep: int = 0, above: tuple[str, ...] = ()) -> PlainType:
        """Convert a type; `above` are the named types that it is part of. Raises UnsupportedSchema."""
        plain_type = self._convert(avro, path, deep, above)
        if deep > DEPTH_MAX or plain_type.depth > DEPTH_MAX:
            raise UnsupportedSchema(f"the schema is more than {DEPTH_MAX} deep")
        if plain_type.leaves > LEAVES_MAX:
            raise UnsupportedSchema(f"{path} has more than {LEAVES_MAX} fields, counted wherever they are used")
        return plain_type

    def _convert(self, avro: Any, path: str, deep: int, above: tuple[str, ...]) -> PlainType:
        match avro:
            case list():
                return self._union(avro, path, deep, above)
            case str() if avro in _SIMPLE:
                return PlainType(avro, _SIMPLE[avro], is_empty=avro == "null")
            case str():
                return self._reference(avro, path, deep, above)
            case {"type": "record" | "error" | "enum" | "fixed" as kind, "name": str(name)}:
                if name in above:
                    raise UnsupportedSchema(f"{path} refers to {name}, which it is part of")
                unique = f"ottla.T{len(self._done)}"
                make = self._record if kind in {"record", "error"} else self._enum if kind == "enum" else self._fixed
                self._done[name] = PlainType(unique, pa.null())  # takes the number
                plain_type = make(avro, unique, path, deep, (*above, name))
                self._done[name] = replace(plain_type, avro=unique)
                return plain_type
            case {"type": "array", "items": items}:
                item = self.convert(items, f"{path}[]", deep + 1, above)
                if item.is_empty:
                    raise UnsupportedSchema(f"{path} is an array of values that take no bytes")
                array = {"type": "array", "items": item.avro}
                return PlainType(array, pa.list_(item.kind), leaves=item.leaves, depth=item.depth + 1)
            case {"type": "map", "values": values}:
                item = self.convert(values, f"{path}{{}}", deep + 1, above)
                entries = {"type": "map", "values": item.avro}
                return PlainType(entries, pa.map_(pa.string(), item.kind), leaves=item.leaves + 1, depth=item.depth + 1)
            case {"type": "bytes"} if _is_decimal(avro):
                return _decimal(avro, {"type": "bytes"})
            case {"type": str(simple)} if simple in _SIMPLE:
                kind = _LOGICAL.get((simple, str(avro.get("logicalType"))), _SIMPLE[simple])
                return PlainType(simple, kind, is_empty=simple == "null")
            case {"type": inner}:
                return self.convert(inner, path, deep + 1, above)
            case _:
                raise UnsupportedSchema(f"{path} is {avro!r}, which is no Avro type")

    def _reference(self, name: str, path: str, deep: int, above: tuple[str, ...]) -> PlainType:
        if name in above:
            raise UnsupportedSchema(f"{path} refers to {name}, which it is part of")
        if name in self._done:
            return self._done[name]
        if name not in self._named:
            raise UnsupportedSchema(f"{path} is {name}, which is no Avro type")
        return self.convert(self._named[name], path, deep, above)

    def _record(self, avro: Any, name: str, path: str, deep: int, above: tuple[str, ...]) -> PlainType:
        fields: dict[str, PlainType] = {}
        for f in avro["fields"]:
            if not isinstance(f["name"], str):
                raise UnsupportedSchema(f"{path} has a field whose name is {f['name']!r}, which is no text")
            column = self._column_name(f)
            if column in fields:
                raise UnsupportedSchema(f"{path} has the field {column} twice")
            fields[column] = self.convert(f["type"], f"{path}.{f['name']}", deep + 1, above)
        plain = [{"name": field, "type": found.avro} for field, found in fields.items()]
        return PlainType(
            {"type": "record", "name": name, "fields": plain},
            pa.struct([(field, found.kind) for field, found in fields.items()]),
            all(field.is_empty for field in fields.values()),
            sum(field.leaves for field in fields.values()),
            1 + max((field.depth for field in fields.values()), default=0),
        )

    def _column_name(self, f: Mapping[str, Any]) -> str:
        """Return the column of a field: it follows from the schema alone, whichever name a table saw first."""
        aliases = f.get("aliases") if self._by_alias else None
        return str(aliases[-1] if aliases else f["name"])

    @staticmethod
    def _enum(avro: Any, name: str, _path: str, _deep: int, _above: tuple[str, ...]) -> PlainType:
        return PlainType({"type": "enum", "name": name, "symbols": avro["symbols"]}, pa.string())

    @staticmethod
    def _fixed(avro: Any, name: str, _path: str, _deep: int, _above: tuple[str, ...]) -> PlainType:
        plain = {"type": "fixed", "name": name, "size": avro["size"]}
        if _is_decimal(avro):
            return _decimal(avro, plain)
        return PlainType(plain, pa.binary(), is_empty=avro["size"] == 0)

    def _union(self, avro: list[Any], path: str, deep: int, above: tuple[str, ...]) -> PlainType:
        plain_types = [self.convert(item, path, deep + 1, above) for item in avro]
        kind = pa.null()
        for branch in plain_types:
            if pa.types.is_null(branch.kind):
                continue
            nested = pa.types.is_nested(branch.kind) and not pa.types.is_null(kind)
            both = None if nested else wider(kind, branch.kind)
            if both is None:
                raise UnsupportedSchema(f"{path} is a union of {kind} and {branch.kind}, which is no column")
            kind = both
        leaves = max((branch.leaves for branch in plain_types), default=0)
        depth = max((branch.depth for branch in plain_types), default=0)
        return PlainType([branch.avro for branch in plain_types], kind, leaves=leaves, depth=depth)


def _is_decimal(avro: Mapping[str, Any]) -> bool:
    """Return whether a column can hold the decimal; larger ones stay the bytes they are."""
    digits, scale = avro.get("precision"), avro.get("scale", 0)
    if avro.get("logicalType") != "decimal" or not (isinstance(digits, int) and isinstance(scale, int)):
        return False
    return 0 <= scale <= digits and 0 < digits <= _DECIMAL_DIGITS_MAX


def _decimal(avro: Mapping[str, Any], plain: dict[str, Any]) -> PlainType:
    digits, scale = avro["precision"], avro.get("scale", 0)
    logical = {"logicalType": "decimal", "precision": digits, "scale": scale}
    return PlainType(plain | logical, pa.decimal128(digits, scale))
