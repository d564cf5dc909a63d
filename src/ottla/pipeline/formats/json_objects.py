"""JSON objects, one per record: fields become columns, nested objects structs, arrays lists.

A batch goes through Arrow's compiled reader as one text. It may not let one record's text run into the next one's, so
every value must begin with `{` and end with `}`: then between two values the reader stands outside of any object or
refuses the text, and as many rows as values means one of each. Where the reader refuses a batch, a second look in
Python at the part that is to blame finds the records that are wrong or do not go with the others; the rest is read as
before.

Texts stay texts: a time is one only where the load's `columns` say so. Whole numbers are longs, others doubles (and
whole ones beyond 64 bits). An empty object or array has no type and makes no column.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from ottla.pipeline.formats.port import Parsed, place, reasons_where, texts
from ottla.pipeline.lake.schema import column_name, conform, wider

NO_OBJECT = "not a JSON object"
DEPTH_MAX = 32
_BRACKETS_MAX = 2_000
"""More opening brackets than this are counted by hand before the reader sees them: it recurses."""
_LOOK_AT = 256
"""Records of a refused batch that are tried together, so that a wrong one costs its neighbours only."""


@dataclass(frozen=True, slots=True)
class JsonObjects:
    """A `Format`."""

    mixed: frozenset[str] = frozenset()
    """Fields that may be a number in one record and a text in the next: those whose type a load declares."""

    def columns(self) -> pa.Schema:
        """None beforehand."""
        return pa.schema([])

    def parse(self, records: pa.RecordBatch, known: pa.Schema) -> Parsed:
        """Read whole batches; look closer only at what is refused."""
        values, reasons = texts(records.column("value"))
        reasons = pc.coalesce(reasons, reasons_where(pc.invert(_in_braces(values)), NO_OBJECT))
        good = pc.is_null(reasons)
        texts_known = _texts_of(known)
        rows = None if _brackets(values) > _BRACKETS_MAX else _read(values.filter(good), texts_known)
        if rows is None:
            rows, reasons = self._read_in_parts(values, reasons, known)
            good = pc.is_null(reasons)
        names = [column_name(name) for name in rows.column_names]
        return Parsed(place(rows.rename_columns(_numbered(names)), good), reasons)

    def _read_in_parts(self, values: pa.Array, reasons: Any, known: pa.Schema) -> tuple[pa.Table, Any]:
        """Rows of the records without a reason, and all the reasons."""
        texts_known = _texts_of(known)
        found = _look_closer(values, pc.is_null(reasons), known, texts_known, self.mixed)
        reasons = pc.coalesce(reasons, pa.array(found.reasons, pa.string()))
        tables, places = [], []
        for part in found.parts.values():
            some = pa.array(part, pa.int64())
            rows = _read(values.take(some), texts_known)
            if rows is None:  # what Python understood and Arrow does not, like half a surrogate pair
                reasons = pc.coalesce(reasons, _one_by_one(values, some, texts_known))
                some = some.filter(pc.is_null(reasons.take(some)))
                rows = _read(values.take(some), texts_known)
            assert rows is not None, "each of these was read alone"
            tables.append(rows)
            places += some.to_pylist()
        if not tables:
            return pa.table({}), reasons
        in_order = pc.sort_indices(pa.array(places, pa.int64()))
        return _one_table(tables).take(in_order), reasons


def _one_table(tables: list[pa.Table]) -> pa.Table:
    """Tables as one; a field that they have different types of becomes a text, which its declared type reads."""
    if len(tables) == 1:
        return tables[0]
    kinds: dict[str, pa.DataType] = {}
    for table in tables:
        for f in table.schema:
            have = kinds.get(f.name, f.type)
            kinds[f.name] = f.type if pa.types.is_null(have) else have if have == f.type else wider(have, f.type)
            if kinds[f.name] is None:
                kinds[f.name] = pa.string()
    return pa.concat_tables(
        [pa.table({name: _as(table, name, kind) for name, kind in kinds.items()}) for table in tables]
    )


def _as(table: pa.Table, name: str, kind: pa.DataType) -> Any:
    """A column in a type that is wider, or as texts."""
    if name not in table.column_names or pa.types.is_null(table[name].type):
        return pa.nulls(len(table), kind)
    return table[name].cast(kind) if pa.types.is_string(kind) else conform(table[name], kind)[0]


def _numbered(names: Iterable[str]) -> list[str]:
    """Names that became the same by losing characters get a number."""
    found: list[str] = []
    for name in names:
        unique, n = name, 1
        while unique in found:
            n += 1
            unique = f"{name}_{n}"
        found.append(unique)
    return found


def _read(values: pa.Array, texts_known: pa.Schema) -> pa.Table | None:
    """One row per value, or None if that is not what Arrow finds."""
    if not len(values):
        return pa.table({})
    offsets = pa.array([0, len(values)], pa.int32())
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, values), "\n")[0].as_buffer()
    rows = _read_text(joined, texts_known)
    if rows is None or len(rows) != len(values):
        return None
    guessed = _without_times(rows.schema)
    if guessed != rows.schema:  # Arrow takes a text that looks like a time for one
        wanted = pa.schema([f for f in guessed if f not in rows.schema])
        rows = _read_text(joined, _both(texts_known, _texts_of(wanted)))
    if rows is None or len(rows) != len(values) or _depth(pa.struct(list(rows.schema))) > DEPTH_MAX:
        return None
    return rows.combine_chunks()


def _read_text(joined: pa.Buffer, texts_known: pa.Schema) -> pa.Table | None:
    try:
        return pj.read_json(
            pa.BufferReader(joined),
            read_options=pj.ReadOptions(use_threads=False, block_size=joined.size + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=texts_known, newlines_in_values=True, unexpected_field_behavior="infer"
            ),
        )
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None


def _texts_of(schema: pa.Schema) -> pa.Schema:
    """The part of a schema that is text, for Arrow must not guess it."""
    return pa.schema([pa.field(f.name, found) for f in schema if (found := _text_part(f.type)) is not None])


def _text_part(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_string(kind):
        return kind
    if pa.types.is_struct(kind):
        fields = [pa.field(f.name, found) for f in kind if (found := _text_part(f.type)) is not None]
        return pa.struct(fields) if fields else None
    if pa.types.is_list(kind):
        item = _text_part(kind.value_type)
        return None if item is None else pa.list_(item)
    return None


def _both(have: pa.Schema, more: pa.Schema) -> pa.Schema:
    names = set(more.names)
    return pa.schema([*(f for f in have if f.name not in names), *more])


def _without_times(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(f.name, _without_time(f.type)) for f in schema])


def _without_time(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _without_time(f.type)) for f in kind])
    if pa.types.is_list(kind):
        return pa.list_(_without_time(kind.value_type))
    return kind


def _depth(kind: pa.DataType) -> int:
    if pa.types.is_struct(kind):
        return 1 + max((_depth(f.type) for f in kind), default=0)
    return 1 + _depth(kind.value_type) if pa.types.is_list(kind) else 0


class _NoPlaceForIt(Exception):
    """A record cannot stand in one table with the others; the message says why."""


Kind = str | dict[str, Any] | list[Any] | None
"""A field in JSON's words: "text", "number", "truth", an object by field, a list of one item's kind, unknown."""


@dataclass(slots=True)
class _Look:
    """What a closer look found: reasons by record, and the records that can be read together."""

    reasons: list[str | None]
    parts: dict[frozenset[tuple[str, str]], list[int]]
    """By what the mixed fields are in them."""


def _look_closer(
    values: pa.Array, good: pa.Array, known: pa.Schema, texts_known: pa.Schema, mixed: frozenset[str]
) -> _Look:
    """Records that are wrong or contradict an earlier one (or the table) get a reason, the others a part."""
    kinds: dict[str, Any] = {f.name: _kind_of_type(f.type) for f in known}
    look = _Look([None] * len(values), {})
    places = pc.indices_nonzero(good).to_pylist()
    for first in range(0, len(places), _LOOK_AT):
        some = places[first : first + _LOOK_AT]
        part = values.take(pa.array(some, pa.int64()))
        rows = None if _brackets(part) > _BRACKETS_MAX else _read(part, texts_known)
        if rows is not None:
            found_kinds = {f.name: _kind_of_type(f.type) for f in rows.schema}
            try:
                kinds = _merge(_without(found_kinds, mixed), kinds, "")
            except _NoPlaceForIt:
                rows = None
            else:
                look.parts.setdefault(_signature(found_kinds, mixed), []).extend(some)
        if rows is None:
            kinds = _look_at_each(part.to_pylist(), some, kinds, mixed, look)
    return look


def _look_at_each(
    found: list[str], places: list[int], kinds: dict[str, Any], mixed: frozenset[str], look: _Look
) -> dict[str, Any]:
    for at, text in zip(places, found, strict=True):
        try:
            found_kinds = _kind_of_text(text)
            kinds = _merge(_without(found_kinds, mixed), kinds, "")
        except _NoPlaceForIt as why:
            look.reasons[at] = str(why)
        else:
            look.parts.setdefault(_signature(found_kinds, mixed), []).append(at)
    return kinds


def _without(kinds: dict[str, Any], mixed: frozenset[str]) -> dict[str, Any]:
    for name in mixed:
        if isinstance(kinds.get(name), dict | list):
            raise _NoPlaceForIt(f"field {name} is {_spoken(kinds[name])}")
    return {name: kind for name, kind in kinds.items() if name not in mixed}


def _signature(kinds: dict[str, Any], mixed: frozenset[str]) -> frozenset[tuple[str, str]]:
    return frozenset((name, repr(kinds[name])) for name in mixed if kinds.get(name) is not None)


def _in_braces(values: pa.Array) -> Any:
    """Whether each value begins with `{` and ends with `}`, whatever blanks there are around."""
    bare = pc.and_(pc.starts_with(values, "{"), pc.ends_with(values, "}"))
    if pc.all(bare).as_py():  # the usual case, and much quicker
        return bare
    return pc.and_(pc.match_substring_regex(values, r"^\s*\{"), pc.match_substring_regex(values, r"\}\s*$"))


def _brackets(values: pa.Array) -> int:
    """The most opening brackets in one value."""
    if (pc.max(pc.binary_length(values)).as_py() or 0) <= _BRACKETS_MAX:
        return 0
    both = pc.add(pc.count_substring(values, "{"), pc.count_substring(values, "["))
    return int(pc.max(both).as_py() or 0)


def _one_by_one(values: pa.Array, places: pa.Array, texts_known: pa.Schema) -> pa.Array:
    reasons: list[str | None] = [None] * len(values)
    for at in places.to_pylist():
        if _read(values.slice(at, 1), texts_known) is None:
            reasons[at] = f"{NO_OBJECT} that a table can hold"
    return pa.array(reasons, pa.string())


def _kind_of_type(kind: pa.DataType) -> Kind:
    t = pa.types
    if t.is_string(kind):
        return "text"
    if t.is_boolean(kind):
        return "truth"
    if t.is_integer(kind) or t.is_floating(kind):
        return "number"
    if t.is_struct(kind):
        return {f.name: _kind_of_type(f.type) for f in kind}
    return [_kind_of_type(kind.value_type)] if t.is_list(kind) else None


def _kind_of_text(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text, object_pairs_hook=_fields, parse_float=_number)
        kind = _kind_of_value(value, 1)
        assert isinstance(kind, dict), "it begins with a brace"
        return kind
    except RecursionError:
        raise _NoPlaceForIt(f"objects and arrays in each other, more than {DEPTH_MAX} deep") from None
    except ValueError as error:
        raise _NoPlaceForIt(f"{NO_OBJECT}: {error}") from None


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _NoPlaceForIt("a field comes twice")
    return found


def _number(text: str) -> float:
    number = float(text)
    if number in {float("inf"), float("-inf")}:
        raise _NoPlaceForIt(f"{text} is beyond what a double holds")
    return number


def _kind_of_value(value: Any, depth: int) -> Kind:
    if depth > DEPTH_MAX:
        raise RecursionError
    match value:
        case None:
            return None
        case bool():
            return "truth"
        case int() | float():
            return "number"
        case str():
            return "text"
        case dict():
            return {name: _kind_of_value(item, depth + 1) for name, item in value.items()}
        case _:
            kind: Kind = None
            for item in value:
                kind = _merge_kind(_kind_of_value(item, depth + 1), kind, "an array")
            return [kind]


def _merge(new: dict[str, Any], known: dict[str, Any], path: str) -> dict[str, Any]:
    merged = dict(known)
    for name, kind in new.items():
        merged[name] = _merge_kind(kind, known.get(name), f"{path}{name}")
    return merged


def _merge_kind(new: Kind, known: Kind, path: str) -> Kind:
    if new is None or known is None:
        return known if new is None else new
    if isinstance(new, dict) and isinstance(known, dict):
        return _merge(new, known, f"{path}.")
    if isinstance(new, list) and isinstance(known, list):
        return [_merge_kind(new[0], known[0], f"{path}[]")]
    if new != known:
        raise _NoPlaceForIt(f"field {path} is {_spoken(new)}, and the table has {_spoken(known)}")
    return known


def _spoken(kind: Kind) -> str:
    match kind:
        case dict():
            return "an object"
        case list():
            return "an array"
        case _:
            return f"a {kind}"
