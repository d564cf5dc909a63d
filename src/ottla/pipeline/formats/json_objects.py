"""Parses JSON objects, one per record: fields become columns, nested objects structs, arrays lists.

A batch goes through Arrow's compiled reader as one text. It may not let one record's text run into the next one's, so
every value must begin with `{` and end with `}`: then between two values the reader stands outside of any object or
refuses the text, and as many rows as values means one of each. Where the reader refuses a batch, a second look in
Python at the part that is to blame finds the records that are wrong or do not go with the others; the rest is read as
before.

Texts stay texts: a time is one only where the load's `columns` say so. Whole numbers are longs, others doubles. Arrow
reads a field as doubles where one number of the batch is a fraction or beyond 64 bits, which changes whole numbers
beyond 2^53 of the other records. So a batch with a double that large is read in parts too, by each record's digits. A
number that neither a long nor a double holds digit for digit is refused, unless a declared type (a decimal, a string)
takes it. An empty object or array has no type until a record shows what is in it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from ottla.pipeline.formats.port import Parsed, place, reasons_where, texts
from ottla.pipeline.formats.typed import EPOCHS, column_type, no_value_of, typed_fields
from ottla.pipeline.lake.schema import ELEMENT, EXACT_IN_A_DOUBLE, Path, column_name, conform, exact_longs, wider

NO_OBJECT = "not a JSON object"
DEPTH_MAX = 32
_BRACKETS_MAX = 2_000
"""More opening brackets than this are counted by hand before the reader sees them: it recurses."""
_LOOK_AT = 256
"""Records of a refused batch that are tried together, so that a wrong one costs its neighbours only."""
_DECIMAL_DIGITS = 38
Signature = frozenset[tuple[str, str]]
"""The kinds that the declared fields of a record have."""
_EXACT_BELOW = {
    "float": 1 << 24,
    "string": 0,  # the text of a number in a column of doubles is not the one that the record has
    **{name: EXACT_IN_A_DOUBLE // us for name, us in EPOCHS.items()},
}
"""By declared type: whole numbers below this are the same to it whether Arrow reads longs or doubles."""


@dataclass(frozen=True, slots=True)
class JsonObjects:
    """Parses values that are JSON objects."""

    declared: Mapping[str, str] = field(default_factory=dict)
    """The types that a load declares, by field: such a field may be a number in one record and a text in the next."""

    def columns(self) -> pa.Schema:
        """Return no columns: they come from the records."""
        return pa.schema([])

    def parse(self, records: pa.RecordBatch, known: pa.Schema, fixed: Collection[Path] = ()) -> Parsed:
        """Read whole batches; look closer only at what is refused."""
        values, reasons = texts(records.column("value"))
        reasons = pc.coalesce(reasons, reasons_where(pc.invert(_in_braces(values)), NO_OBJECT))
        good = pc.is_null(reasons)
        expected = {f.name: _kind_of_type(f.type, (f.name,), fixed) for f in known}
        rows = self._read_at_once(values.filter(good), known, expected)
        has_conflicts = False
        if rows is None:
            rows, reasons, has_conflicts = self._read_in_parts(values, reasons, known, expected)
            good = pc.is_null(reasons)
        names = [column_name(name) for name in rows.column_names]
        return Parsed(place(rows.rename_columns(_numbered(names)), good), reasons, has_conflicts)

    def _read_at_once(self, values: pa.Array, known: pa.Schema, expected: dict[str, Any]) -> pa.Table | None:
        """Read all records at once; None if one is wrong, contradicts another or the table, or would lose digits."""
        if _brackets(values) > _BRACKETS_MAX:
            return None
        kinds = self._declared_decimals()
        decimals = [pa.field(name, pa.decimal128(_DECIMAL_DIGITS, kind.scale)) for name, kind in kinds.items()]
        rows = _read(values, pa.schema([*_texts_of(known), *decimals]))
        if rows is None or not self._is_exact(rows):
            return None
        try:
            _merge(self._undeclared(_kinds_of(rows)), expected, "")
        except _Refused:
            return None
        return rows

    def _is_exact(self, rows: pa.Table) -> bool:
        """Return whether no column of doubles holds a number that a column of longs would hold otherwise."""
        for f in rows.schema:
            declared = self.declared.get(f.name)
            below = _EXACT_BELOW.get(declared or "", EXACT_IN_A_DOUBLE)
            for doubles in _doubles_of(rows[f.name].combine_chunks()):
                largest = pc.max(pc.abs(doubles)).as_py()
                if declared == "string" or (largest is not None and largest >= below):
                    return False
        return True

    def _declared_decimals(self) -> dict[str, pa.DataType]:
        kinds = {name: column_type(text) for name, text in self.declared.items()}
        return {name: kind for name, kind in kinds.items() if kind is not None and pa.types.is_decimal(kind)}

    def _with_decimals(self, rows: pa.Table, count: int) -> pa.Table:
        """Add the declared decimals that no record has, as they are in batches that are read at once."""
        missing = {
            name: pa.nulls(count, kind)
            for name, kind in self._declared_decimals().items()
            if count and name not in rows.column_names
        }
        if not rows.num_columns:
            return pa.table(missing)
        for name, nulls in missing.items():
            rows = rows.append_column(name, nulls)
        return rows

    def _undeclared(self, kinds: dict[str, Any]) -> dict[str, Any]:
        """Return the kinds of the fields whose type is not declared.

        Raises _Refused if a declared one is no single value.
        """
        for name in self.declared:
            if isinstance(kinds.get(name), dict | list):
                raise _Refused(f"field {name} is {_spoken(kinds[name])}")
        return {name: kind for name, kind in kinds.items() if name not in self.declared}

    def _read_in_parts(
        self, values: pa.Array, reasons: Any, known: pa.Schema, expected: dict[str, Any]
    ) -> tuple[pa.Table, Any, bool]:
        """Read the rows of the records without a reason.

        Returns them, all the reasons, and whether some are for the sake of other records.
        """
        while True:
            look = self._look_closer(values, pc.is_null(reasons), known, expected)
            found = pc.coalesce(reasons, pa.array(look.reasons, pa.string()))
            parts = [self._read_part(values, places, look, kinds, known) for kinds, places in look.parts.items()]
            unread = [at for part in parts for at in part.unread]
            if not unread:
                break
            refused = [f"{NO_OBJECT} that a table can hold" if n in set(unread) else None for n in range(len(values))]
            reasons = pc.coalesce(reasons, pa.array(refused, pa.string()))  # they must decide nothing for the others
        for part in parts:
            found = pc.coalesce(found, _spread(part.reasons, part.places, len(values)))
        joined = _one_table(parts) if parts else pa.table({})
        if not joined.num_columns:
            return self._with_decimals(joined, found.null_count), found, look.has_conflicts
        places = [at for part in parts for at in part.places]
        in_order = pc.sort_indices(pa.array(places, pa.int64()))
        rows = joined.take(in_order)
        kept = pa.array([found[at].as_py() is None for at in sorted(places)], pa.bool_())
        return self._with_decimals(rows.filter(kept), found.null_count), found, look.has_conflicts

    def _read_part(self, values: pa.Array, places: list[int], look: _Look, kinds: Signature, known: pa.Schema) -> _Part:
        """Read records in which each declared field is of one kind, and make the declared types of these."""
        some = values.take(pa.array(places, pa.int64()))
        declared_texts = pa.schema([(name, pa.string()) for name, kind in kinds if kind == _TEXT])
        expected_texts = pa.schema([*_texts_of(known), *declared_texts])
        rows = _read(some, expected_texts)
        if rows is None:  # what Python understood and Arrow does not, like half a surrogate pair
            unread = [at for n, at in enumerate(places) if _read(some.slice(n, 1), expected_texts) is None]
            assert unread, "each of these was read alone"
            return _Part(places, pa.table({}), pa.nulls(len(places), pa.string()), unread)
        for at, name in enumerate(rows.column_names):
            column = rows.column(at)
            if name not in self.declared:
                column = conform(column, _with_longs(column.type, (name,), look.exact))[0]
            elif places[0] in look.digits.get(name, {}):
                column = pa.array([look.digits[name][at_] for at_ in places], pa.string())
            rows = rows.set_column(at, name, column)
        rows, reasons = typed_fields(rows, self.declared)
        return _Part(places, rows, reasons, [])

    def _look_closer(self, values: pa.Array, good: pa.Array, known: pa.Schema, expected: dict[str, Any]) -> _Look:
        """Give a reason to records that are wrong or contradict an earlier one (or the table), a part to the others."""
        kinds = expected
        look = _Look([None] * len(values))
        places = pc.indices_nonzero(good).to_pylist()
        for first in range(0, len(places), _LOOK_AT):
            some = places[first : first + _LOOK_AT]
            part = values.take(pa.array(some, pa.int64()))
            rows = None if _brackets(part) > _BRACKETS_MAX else _read(part, _texts_of(known))
            if rows is not None and self._is_exact(rows) and not self._has_declared_doubles(rows):
                found_kinds = _kinds_of(rows)
                try:
                    kinds = _merge(self._undeclared(found_kinds), kinds, "")
                except _Refused:
                    pass
                else:
                    look.add(some, self._signature(found_kinds))
                    continue
            for at, text in zip(some, part.to_pylist(), strict=True):
                kinds = self._look_at(at, text, kinds, look)
        look.exact.update(_leaves_of(kinds, (), _EXACT_LONG))
        return look

    def _has_declared_doubles(self, rows: pa.Table) -> bool:
        """Return whether a declared field came as doubles: whole numbers among them are longs alone."""
        return any(pa.types.is_floating(f.type) and f.name in self.declared for f in rows.schema)

    def _look_at(self, at: int, text: str, kinds: dict[str, Any], look: _Look) -> dict[str, Any]:
        try:
            record = _object_of(text)
            own = {name: self._declared_kind(name, record[name]) for name in self.declared if name in record}
            undeclared = {name: value for name, value in record.items() if name not in self.declared}
            found_kinds = {name: _kind_of_value(value, 2) for name, value in undeclared.items()}
        except RecursionError:
            look.reasons[at] = f"objects and arrays in each other, more than {DEPTH_MAX} deep"
            return kinds
        except _Refused as why:
            look.reasons[at] = str(why)
            return kinds
        try:
            kinds = _merge(found_kinds, kinds, "")
        except _Refused as why:
            look.reasons[at], look.has_conflicts = str(why), True
            return kinds
        wholes = {(_WHOLE, repr(path)) for path in _leaves_of(found_kinds, (), _WHOLE)}
        look.add([at], self._signature(own) | wholes)
        for name, kind in own.items():
            if kind in {_DOUBLE, _WHOLE, _BEYOND} and self._takes_digits(name):
                look.digits.setdefault(name, {})[at] = _digits_of(record[name])
        return kinds

    def _takes_digits(self, name: str) -> bool:
        return self.declared[name] == "string" or self.declared[name].startswith("decimal")

    def _declared_kind(self, name: str, value: Any) -> Kind:
        """Return the kind of a declared field's value. Raises _Refused where none of this kind can be of the type."""
        kind = _kind_of_value(value, 2, exact=False)
        if isinstance(kind, dict | list):
            raise _Refused(f"field {name} is {_spoken(kind)}")
        if kind == _BEYOND and not self._takes_digits(name):
            raise _Refused(no_value_of(name, self.declared[name]))
        return kind

    def _signature(self, kinds: dict[str, Any]) -> Signature:
        """Return the kinds of the declared fields."""
        found = ((name, kinds.get(name)) for name in self.declared)
        return frozenset((name, {_EXACT_LONG: _LONG, _WHOLE: _DOUBLE}.get(kind, kind)) for name, kind in found if kind)


@dataclass(slots=True)
class _Look:
    """The result of decoding records one by one: errors by record, and groups of records that can be read together."""

    reasons: list[str | None]
    parts: dict[Signature, list[int]] = field(default_factory=dict)
    """By what the declared fields are in them."""
    digits: dict[str, dict[int, str]] = field(default_factory=dict)
    """The texts of the numbers that must not become doubles, by declared field and record."""
    exact: set[Path] = field(default_factory=set)
    """The leaves that must be longs."""
    has_conflicts: bool = False

    def add(self, places: list[int], signature: Signature) -> None:
        self.parts.setdefault(signature, []).extend(places)


@dataclass(frozen=True, slots=True)
class _Part:
    """Records that were read together."""

    places: list[int]
    rows: pa.Table
    reasons: Any
    unread: list[int]
    """Those that Arrow refuses alone, too."""


def _spread(reasons: Any, places: list[int], count: int) -> pa.Array:
    found: list[str | None] = [None] * count
    for at, why in zip(places, reasons.to_pylist(), strict=True):
        found[at] = why
    return pa.array(found, pa.string())


def _one_table(parts: list[_Part]) -> pa.Table:
    """Join the parts to one table. Their types differ only where one is wider than the other."""
    kinds: dict[str, pa.DataType] = {}
    for part in parts:
        for f in part.rows.schema:
            kinds[f.name] = wider(kinds.get(f.name, f.type), f.type)
            assert kinds[f.name] is not None, "contradictions were refused"
    return pa.concat_tables([pa.table({name: _as(part, name, kind) for name, kind in kinds.items()}) for part in parts])


def _as(part: _Part, name: str, kind: pa.DataType) -> Any:
    """Return a column in a type that is wider."""
    if name not in part.rows.column_names:
        return pa.nulls(len(part.places), kind)
    return conform(part.rows[name], kind)[0]


def _doubles_of(values: Any) -> Iterator[Any]:
    """Yield the doubles in a column, at any depth."""
    kind = values.type
    if pa.types.is_struct(kind):
        for child in values.flatten():
            yield from _doubles_of(child)
    elif pa.types.is_list(kind):
        yield from _doubles_of(values.flatten())
    elif pa.types.is_floating(kind):
        yield values


def _numbered(names: Iterable[str]) -> list[str]:
    """Number the names that became the same by losing characters."""
    found: list[str] = []
    for name in names:
        unique, n = name, 1
        while unique in found:
            n += 1
            unique = f"{name}_{n}"
        found.append(unique)
    return found


def _read(values: pa.Array, texts_known: pa.Schema) -> pa.Table | None:
    """Read one row per value; None if that is not what Arrow finds."""
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
    """Return the part of a schema that is text, for Arrow must not guess it."""
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


class _Refused(Exception):
    """A record that no table can have, or not together with the others; the message is the reason."""


_TEXT, _TRUTH = "text", "truth"
_LONG, _EXACT_LONG, _BEYOND = "number", "whole number beyond 2^53", "whole number beyond 64 bits"
_DOUBLE, _WHOLE = "fraction", "fraction of nothing"
Kind = str | dict[str, Any] | list[Any] | None
"""A field in JSON's words: one of the above, an object by field, a list of one item's kind, unknown.

A column of longs may hold a _LONG or an _EXACT_LONG; one of doubles a _LONG or a _DOUBLE. No column holds a _BEYOND.
A _WHOLE like 4.0 is a _DOUBLE, except that a column with an _EXACT_LONG takes it as a long.
"""


def _in_braces(values: pa.Array) -> Any:
    """Return whether each value begins with `{` and ends with `}`, whatever blanks there are around."""
    bare = pc.and_(pc.starts_with(values, "{"), pc.ends_with(values, "}"))
    if pc.all(bare).as_py():  # the usual case, and much quicker
        return bare
    return pc.and_(pc.match_substring_regex(values, r"^\s*\{"), pc.match_substring_regex(values, r"\}\s*$"))


def _brackets(values: pa.Array) -> int:
    """Return the largest number of opening brackets in one value."""
    if (pc.max(pc.binary_length(values)).as_py() or 0) <= _BRACKETS_MAX:
        return 0
    both = pc.add(pc.count_substring(values, "{"), pc.count_substring(values, "["))
    return int(pc.max(both).as_py() or 0)


def _kinds_of(rows: pa.Table) -> dict[str, Any]:
    """Return the kind of each field."""
    exact = {path for f in rows.schema for path in exact_longs(rows[f.name], (f.name,))}
    return {f.name: _kind_of_type(f.type, (f.name,), exact) for f in rows.schema}


def _kind_of_type(kind: pa.DataType, path: Path, exact: Collection[Path]) -> Kind:
    t = pa.types
    if t.is_string(kind):
        return _TEXT
    if t.is_boolean(kind):
        return _TRUTH
    if t.is_integer(kind):
        return _EXACT_LONG if path in exact else _LONG
    if t.is_floating(kind):
        return _DOUBLE
    if t.is_struct(kind):
        return {f.name: _kind_of_type(f.type, (*path, f.name), exact) for f in kind}
    return [_kind_of_type(kind.value_type, (*path, ELEMENT), exact)] if t.is_list(kind) else None


class _Number(float):
    """A fraction that keeps its text."""

    text: str


def _object_of(text: str) -> dict[str, Any]:
    """Return a record's fields. Raises _Refused, or RecursionError."""
    try:
        value = json.loads(text, object_pairs_hook=_fields, parse_float=_number, parse_constant=_number)
    except ValueError as error:
        raise _Refused(f"{NO_OBJECT}: {error}") from None
    assert isinstance(value, dict), "it begins with a brace"
    return value


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Refused("a field comes twice")
    return found


def _number(text: str) -> float:
    number = _Number(text)
    if number in {float("inf"), float("-inf")} and "n" not in text:
        raise _Refused(f"{text} is beyond what a double holds")
    number.text = text
    return number


def _digits_of(value: int | _Number) -> str:
    return value.text if isinstance(value, _Number) else str(value)


def _kind_of_value(value: Any, depth: int, *, exact: bool = True) -> Kind:
    """Return the kind of a value. Raises RecursionError; if `exact`, _Refused for a number that no column can hold."""
    if depth > DEPTH_MAX:
        raise RecursionError
    match value:
        case None:
            return None
        case bool():
            return _TRUTH
        case int():
            return _kind_of_whole(value, exact=exact)
        case float():
            return _WHOLE if value.is_integer() and abs(value) <= EXACT_IN_A_DOUBLE else _DOUBLE
        case str():
            return _TEXT
        case dict():
            return {name: _kind_of_value(item, depth + 1) for name, item in value.items()}
        case _:
            kind: Kind = None
            for item in value:
                kind = _merge_kind(_in_array(_kind_of_value(item, depth + 1)), kind, "an array")
            return [kind]


def _in_array(kind: Kind) -> Kind:
    """Return a kind as it is inside an array: Arrow reads the numbers of one array together."""
    if isinstance(kind, dict):
        return {name: _in_array(inner) for name, inner in kind.items()}
    return _DOUBLE if kind == _WHOLE else kind


def _leaves_of(kind: Kind, path: Path, wanted: str) -> Iterator[Path]:
    """Yield the paths of the leaves of a kind."""
    if isinstance(kind, dict):
        for name, inner in kind.items():
            yield from _leaves_of(inner, (*path, name), wanted)
    elif isinstance(kind, list):
        yield from _leaves_of(kind[0], (*path, ELEMENT), wanted)
    elif kind == wanted:
        yield path


def _with_longs(kind: pa.DataType, path: Path, exact: Collection[Path]) -> pa.DataType:
    """Return the type with longs at some leaves."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _with_longs(f.type, (*path, f.name), exact)) for f in kind])
    return pa.int64() if pa.types.is_floating(kind) and path in exact else kind


def _kind_of_whole(value: int, *, exact: bool) -> Kind:
    if abs(value) <= EXACT_IN_A_DOUBLE:
        return _LONG
    if -(1 << 63) <= value < 1 << 63:
        return _EXACT_LONG
    try:
        number = float(value)
    except OverflowError:
        raise _Refused("a whole number is beyond what a double holds") from None
    if not exact:
        return _BEYOND
    if value not in {int(number), int(Decimal(repr(number)))}:
        raise _Refused(
            f"neither a long nor a double holds {value} digit for digit; declare the field as a decimal or a string"
        )
    return _DOUBLE


def _merge(new: dict[str, Any], known: dict[str, Any], path: str) -> dict[str, Any]:
    merged = dict(known)
    for name, kind in new.items():
        merged[name] = _merge_kind(kind, known.get(name), f"{path}{name}")
    return merged


_NUMBERS = {
    frozenset({_LONG, _EXACT_LONG}): _EXACT_LONG,
    frozenset({_LONG, _DOUBLE}): _DOUBLE,
}


def _merge_kind(new: Kind, known: Kind, path: str) -> Kind:
    if new == _WHOLE:
        new = _EXACT_LONG if known == _EXACT_LONG else _DOUBLE
    known = _DOUBLE if known == _WHOLE else known
    if new is None or known is None or new == known:
        return known if new is None else new
    if isinstance(new, dict) and isinstance(known, dict):
        return _merge(new, known, f"{path}.")
    if isinstance(new, list) and isinstance(known, list):
        return [_merge_kind(new[0], known[0], f"{path}[]")]
    if isinstance(new, str) and isinstance(known, str) and (both := _NUMBERS.get(frozenset({new, known}))):
        return both
    if isinstance(new, str) and isinstance(known, str) and {new, known} == {_EXACT_LONG, _DOUBLE}:
        raise _Refused(f"field {path} is a {new}, and the table has a {known}: no column holds both digit for digit")
    raise _Refused(f"field {path} is {_spoken(new)}, and the table has {_spoken(known)}")


def _spoken(kind: Kind) -> str:
    match kind:
        case dict():
            return "an object"
        case list():
            return "an array"
        case _:
            return "a number" if kind in {_EXACT_LONG, _DOUBLE, _WHOLE, _BEYOND} else f"a {kind}"
