"""Decides how a table's columns may change, and converts rows to them.

- A field that is new becomes a new column at the end, in the order of first appearance; missing fields are null. Every
  field is nullable.
- A type is promoted: int -> long -> double, float -> double, date -> timestamp, decimals in their whole digits; also
  inside structs (which get new fields the same way) and lists. A wider column takes narrower values.
- Anything else is a conflict: the table keeps its type, and the rows go to the quarantine. A type is decided by the
  first row that has one; nothing ever becomes a text by itself.
- A number that the wider type cannot hold exactly (a long beyond 2^53 in a column of doubles) is a conflict too, and
  once a leaf of longs holds such a number, it stays long and fractions are the conflict (`exact_longs`).
- What an empty list or object contains is unknown, `null` in its type, until a row shows it. `storable` drops it.
- Names that differ only in case are one field at every depth, for Spark and Delta take them for one; the first spelling
  stays. A record with both is a conflict, and so is a field whose dotted path is another one's (`field_names.py`).
- A date or time outside of the years 1 to 9999 is a conflict: neither Python nor the tables' statistics can hold it.

Pure: Arrow schemas and arrays in, and out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ottla.pipeline.lake.field_names import DottedPaths, Spelling
from ottla.pipeline.topic_reader import TIME

Path = tuple[str, ...]
"""The path of a leaf: the column, then the fields of structs; ELEMENT for the elements of a list or map."""
ELEMENT = "[]"
EXACT_IN_A_DOUBLE = 1 << 53
_EXACT_IN_A_FLOAT = 1 << 24
_INT64_END = float(1 << 63)
FIRST_US, END_US = -62_135_596_800_000_000, 253_402_300_800_000_000
"""The years 1 to 9999, in microseconds from 1970."""
_DAY_US = 86_400_000_000
_NO_COLUMN_NAME = re.compile(r"[ ,;{}()\n\t=]")
_INTEGER_RANKS = {
    pa.int8(): 0,
    pa.int16(): 0,
    pa.int32(): 1,
    pa.uint8(): 0,
    pa.uint16(): 1,
    pa.uint32(): 2,
    pa.int64(): 2,
}


def canonical(kind: pa.DataType) -> pa.DataType:
    """Return the type a table has for values of an Arrow type; `null` for the parts of which nothing is known yet.

    >>> canonical(pa.large_string()), canonical(pa.int16()), canonical(pa.list_(pa.null()))
    (DataType(string), DataType(int32), ListType(list<item: null>))
    """
    t = pa.types
    if t.is_dictionary(kind):
        return canonical(kind.value_type)
    if kind in _INTEGER_RANKS:
        return pa.int64() if _INTEGER_RANKS[kind] == 2 else pa.int32()
    if t.is_timestamp(kind):
        return TIME
    if t.is_struct(kind):
        return pa.struct([pa.field(f.name, canonical(f.type)) for f in kind])
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        return pa.list_(canonical(kind.value_type))
    if t.is_map(kind):
        return pa.map_(pa.string(), canonical(kind.item_type))
    simple = (
        (t.is_large_string, pa.string()),
        (t.is_string_view, pa.string()),
        (t.is_large_binary, pa.binary()),
        (t.is_binary_view, pa.binary()),
        (t.is_fixed_size_binary, pa.binary()),
        (t.is_date, pa.date32()),
        (t.is_float16, pa.float32()),
        (t.is_uint64, pa.decimal128(20, 0)),
    )
    return next((found for test, found in simple if test(kind)), kind)


def storable(kind: pa.DataType) -> pa.DataType | None:
    """Drop the parts of a canonical type of which nothing is known; None if nothing is left.

    >>> storable(pa.struct([("a", pa.int64()), ("b", pa.list_(pa.null()))])), storable(pa.struct([]))
    (StructType(struct<a: int64>), None)
    """
    t = pa.types
    if t.is_null(kind):
        return None
    if t.is_struct(kind):
        fields = [pa.field(f.name, found) for f in kind if (found := storable(f.type)) is not None]
        return pa.struct(fields) if fields else None
    if t.is_list(kind):
        item = storable(kind.value_type)
        return None if item is None else pa.list_(item)
    if t.is_map(kind):
        item = storable(kind.item_type)
        return None if item is None else pa.map_(pa.string(), item)
    return kind


def storable_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns that a table can have; those of which nothing is known are left out."""
    return pa.schema([pa.field(f.name, kind) for f in schema if (kind := storable(f.type)) is not None])


def storable_columns(columns: Mapping[str, Any], schema: pa.Schema) -> dict[str, Any]:
    """Convert columns to the types of `storable_schema`."""
    return {f.name: conform(columns[f.name], f.type)[0] for f in storable_schema(schema)}


def canonical_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema with all its columns in the table's types; those of which nothing is known are left out."""
    return storable_schema(pa.schema([pa.field(f.name, canonical(f.type)) for f in schema]))


def column_name(name: str) -> str:
    r"""Return a field's name as a column's: Parquet and Delta refuse some characters.

    >>> column_name("a b(c)"), column_name("")
    ('a_b_c_', '_')
    """
    return _NO_COLUMN_NAME.sub("_", name) or "_"


def wider(have: pa.DataType, new: pa.DataType, fixed: Collection[Path] = (), path: Path = ()) -> pa.DataType | None:
    """Return the type that holds both, or None where they conflict. Both are canonical.

    Leaves in `fixed` keep their type.
    """
    t = pa.types
    if have == new or t.is_null(new):
        return have
    if t.is_null(have):
        return new
    pair = {have, new}
    if t.is_struct(have) and t.is_struct(new):
        return _wider_struct(have, new, fixed, path)
    if t.is_list(have) and t.is_list(new):
        item = wider(have.value_type, new.value_type, fixed, (*path, ELEMENT))
        return None if item is None else pa.list_(item)
    if t.is_map(have) and t.is_map(new):
        item = wider(have.item_type, new.item_type, fixed, (*path, ELEMENT))
        return None if item is None else pa.map_(pa.string(), item)
    if path in fixed:
        return None if wider(have, new) is None else have
    if pair == {pa.int32(), pa.int64()}:
        return pa.int64()
    if t.is_floating(have) or t.is_floating(new):
        return pa.float64() if all(t.is_floating(k) or t.is_integer(k) for k in pair) else None
    if pair == {pa.date32(), TIME}:
        return TIME
    if t.is_decimal(have) and t.is_decimal(new) and have.scale == new.scale:
        return pa.decimal128(max(have.precision, new.precision), have.scale)
    return None


def _wider_struct(have: pa.DataType, new: pa.DataType, fixed: Collection[Path], path: Path) -> pa.DataType | None:
    fields = {f.name: f.type for f in have}
    spelling = Spelling(fields)
    for f in new:
        name = spelling.of(f.name)
        kind = wider(fields[name], f.type, fixed, (*path, name)) if name in fields else f.type
        if kind is None:
            return None
        fields[name] = kind
    return pa.struct(list(fields.items()))


def _one_spelling(kind: pa.DataType) -> pa.DataType | None:
    """Return a canonical type with one field for names that differ only in case; None where their types conflict."""
    t = pa.types
    if t.is_struct(kind):
        fields = [(f.name, _one_spelling(f.type)) for f in kind]
        known = [(name, inner) for name, inner in fields if inner is not None]
        return None if len(known) < len(fields) else _wider_struct(pa.struct([]), pa.struct(known), (), ())
    if t.is_list(kind):
        item = _one_spelling(kind.value_type)
        return None if item is None else pa.list_(item)
    if t.is_map(kind):
        item = _one_spelling(kind.item_type)
        return None if item is None else pa.map_(pa.string(), item)
    return kind


@dataclass(frozen=True, slots=True)
class Fitted:
    """Holds rows that were cast to a table's schema."""

    columns: dict[str, pa.ChunkedArray]
    schema: pa.Schema
    """The columns known now: those known before, maybe wider, and then the new ones."""
    conflicts: Any
    """By row, what does not fit, in words, null where everything does; or None for no conflict at all."""
    by_column: bool = False
    """Whether rows are in conflict for the type that a nested column has because of other rows of the batch."""


def fit(rows: pa.Table, known: pa.Schema, *, fixed: Collection[Path] = (), columns_max: int = 1000) -> Fitted:
    """Fit rows into the columns of `known`, which grows and widens as the head of this module says.

    Leaves in `fixed` are never promoted. More than `columns_max` columns are a conflict of the rows that bring them.
    """
    fitting = _Fitting(known, fixed, columns_max)
    for n, field in enumerate(rows.schema):
        kind = canonical(field.type)
        if not pa.types.is_null(kind):
            fitting.add(field.name, rows.column(n), kind)
    types, found, conflicts = fitting.types, fitting.columns, fitting.conflicts
    schema = pa.schema(list(types.items()))
    count = len(rows)
    columns = {f.name: _column(found.get(f.name), f.type, count) for f in schema}
    return Fitted(columns, schema, conflicts, fitting.by_column)


class _Fitting:
    """The columns of rows that are being fitted, and the conflicts so far."""

    def __init__(self, known: pa.Schema, fixed: Collection[Path], columns_max: int) -> None:
        self.types = {f.name: f.type for f in known}
        self.columns: dict[str, Any] = {}
        self.conflicts: Any = None
        self.by_column = False
        self._fixed, self._columns_max = fixed, columns_max
        self._spelling = Spelling(self.types)
        self._paths: DottedPaths | None = None

    def add(self, name: str, values: Any, kind: pa.DataType) -> None:
        """Fit a column of rows, whose canonical type is `kind`."""
        name, given = self._spelling.of(name), pc.is_valid(values)
        have = self.types.get(name)
        if have is None and len(self.types) >= self._columns_max:
            self._note(given, f"field {name} would be column {self._columns_max + 1} of the table")
            return
        own = _one_spelling(kind)
        if own is None:
            self._note(given, f"fields inside {name} differ only in case, and have different types", by_column=True)
            return
        target = own if have is None else wider(have, own, self._fixed, (name,))
        if target is None:
            self._note(given, f"field {name} is {kind}, and the table has {have}", by_column=pa.types.is_nested(kind))
            return
        if target != have and (path := self._path_of_another(name, target)) is not None:
            self._note(given, f"two fields would have the path {path}", by_column=True)
            return
        cast, misfits = conform(values, target)
        if own != kind:
            self._note(misfits, f"fields inside {name} differ only in case", by_column=True)
        self._note(misfits, f"field {name} holds a value that does not fit {target}")
        self._note(_outside_of_years(cast), f"field {name} holds a time outside of the years 1 to 9999")
        if name in self.columns:
            twice = pc.and_(pc.is_valid(self.columns[name]), pc.is_valid(cast))
            self._note(twice, f"two fields would be the column {name}")
            other, lost = conform(self.columns[name], target)
            self._note(lost, f"field {name} holds a value that does not fit {target}", by_column=True)
            cast = pc.coalesce(other, cast)
        self.columns[name], self.types[name] = cast, target

    def _path_of_another(self, name: str, kind: pa.DataType) -> str | None:
        if self._paths is None:
            self._paths = DottedPaths(self.types.items())
        return self._paths.add(name, kind)

    def _note(self, where: Any, why: str, *, by_column: bool = False) -> None:
        """Add a reason to the rows of a mask that have none yet."""
        if where is None or not pc.any(where).as_py():
            return
        self.by_column = self.by_column or by_column
        reasons = pc.if_else(where, pa.scalar(why), pa.scalar(None, pa.string()))
        self.conflicts = reasons if self.conflicts is None else pc.coalesce(self.conflicts, reasons)


def _column(values: Any, kind: pa.DataType, count: int) -> Any:
    return pa.nulls(count, kind) if values is None else conform(values, kind)[0]


def _outside_of_years(values: Any) -> Any:
    """Return a mask of the rows with a date or time outside of the years 1 to 9999, or None for none."""
    kind = values.type
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks() if values.num_chunks != 1 else values.chunk(0)
    if pa.types.is_struct(kind):
        outside = None
        for child in values.flatten():
            mask = _outside_of_years(child)
            outside = mask if outside is None else outside if mask is None else pc.or_kleene(outside, mask)
        return outside
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        lists = _as_lists(values)
        items = _outside_of_years(_items(lists, kind))
        return None if items is None else _rows_of_items(lists, items)
    if pa.types.is_date(kind):
        return _outside(values.cast(pa.int32()), FIRST_US // _DAY_US, END_US // _DAY_US)
    return outside_of_years(values) if pa.types.is_timestamp(kind) else None


def outside_of_years(times: Any) -> Any:
    """Return a mask of the times outside of the years 1 to 9999, null where there is no time; or None for none."""
    return _outside(times.cast(pa.int64()), FIRST_US, END_US)


def without(times: Any, where: Any) -> Any:
    """Return times with null where a mask is set; None is no mask."""
    if where is None:
        return times
    return pc.if_else(pc.fill_null(where, fill_value=False), pa.scalar(None, times.type), times)


def _outside(numbers: Any, first: int, end: int) -> Any:
    limits = pc.min_max(numbers).as_py()
    if limits["min"] is None or (limits["min"] >= first and limits["max"] < end):
        return None
    return pc.or_(pc.less(numbers, first), pc.greater_equal(numbers, end))


def conform(values: Any, kind: pa.DataType) -> tuple[Any, Any]:
    """Convert values to a wider type, with a mask of those it cannot hold exactly (null then), or None for none."""
    if values.type == kind:
        return values, None
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks() if values.num_chunks != 1 else values.chunk(0)
    t = pa.types
    if t.is_null(values.type):
        return pa.nulls(len(values), kind), None
    if t.is_nested(kind):
        return _conform_nested(values, kind)
    if t.is_decimal(kind) and (t.is_integer(values.type) or t.is_floating(values.type)):
        return _to_decimal(values, kind)
    try:
        return values.cast(kind), None
    except pa.ArrowInvalid:
        return (_to_decimal if t.is_decimal(kind) and t.is_decimal(values.type) else _cast_what_fits)(values, kind)


def _cast_what_fits(values: Any, kind: pa.DataType) -> tuple[Any, Any]:
    t = pa.types
    loose = values.cast(kind, safe=False)
    if t.is_integer(values.type) and t.is_floating(kind):
        bound = EXACT_IN_A_DOUBLE if t.is_float64(kind) else _EXACT_IN_A_FLOAT
        exact = pc.and_(pc.greater_equal(values, -bound), pc.less_equal(values, bound))
    elif t.is_floating(values.type) and t.is_integer(kind):
        inside = pc.and_(pc.greater_equal(values, -_INT64_END), pc.less(values, _INT64_END))
        exact = pc.and_(inside, pc.equal(loose.cast(values.type, safe=False), values))
    else:
        exact = pc.equal(loose.cast(values.type, safe=False), values)
    misfits = pc.and_(pc.is_valid(values), pc.invert(pc.fill_null(exact, fill_value=True)))
    return pc.if_else(misfits, pa.scalar(None, kind), loose), misfits


def _to_decimal(values: Any, kind: pa.DataType) -> tuple[Any, Any]:
    """Convert digit for digit: a fraction is the shortest decimal that stands for its double; nothing is rounded."""
    digits = values.cast(pa.string())
    exact = pa.array([_fits_decimal(text, kind) for text in digits.to_pylist()], pa.bool_())
    misfits = pc.invert(exact)
    fitting = pc.if_else(misfits, pa.scalar(None, pa.string()), digits)
    return fitting.cast(kind), misfits if pc.any(misfits).as_py() else None


def _fits_decimal(text: str | None, kind: pa.DataType) -> bool:
    if text is None:
        return True
    try:
        _, digits, exponent = Decimal(text).as_tuple()
    except InvalidOperation:
        return False
    if not isinstance(exponent, int):  # infinity, or not a number
        return False
    while exponent < 0 and len(digits) > 1 and digits[-1] == 0:
        digits, exponent = digits[:-1], exponent + 1
    return digits == (0,) or (-exponent <= kind.scale and len(digits) + exponent <= kind.precision - kind.scale)


def exact_longs(values: Any, path: Path) -> set[Path]:
    """Return the leaves of longs that hold a number which no double holds exactly."""
    kind = values.type
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks() if values.num_chunks != 1 else values.chunk(0)
    if pa.types.is_struct(kind):
        children = zip(kind, values.flatten(), strict=True)
        return {found for f, child in children for found in exact_longs(child, (*path, f.name))}
    if pa.types.is_list(kind):
        return exact_longs(values.flatten(), (*path, ELEMENT))
    if pa.types.is_map(kind):
        return exact_longs(_items(_as_lists(values), kind), (*path, ELEMENT))
    if kind != pa.int64():
        return set()
    limits = pc.min_max(values)
    low, high = limits["min"].as_py(), limits["max"].as_py()
    return {path} if low is not None and (low < -EXACT_IN_A_DOUBLE or high > EXACT_IN_A_DOUBLE) else set()


def _conform_nested(values: Any, kind: pa.DataType) -> tuple[Any, Any]:
    if pa.types.is_struct(kind):
        return _conform_struct(values, kind)
    lists, is_map = _as_lists(values), pa.types.is_map(kind)
    flat = lists.flatten()
    inner, wrong = conform(_items(lists, kind), kind.item_type if is_map else kind.value_type)
    offsets = pc.cumulative_sum(pc.fill_null(pc.list_value_length(lists), 0))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), offsets.cast(pa.int32())])
    none = pc.invert(values.is_valid())
    if is_map:
        nested = pa.MapArray.from_arrays(offsets, flat.field(0).cast(pa.string()), inner, type=kind, mask=none)
    else:
        nested = pa.ListArray.from_arrays(offsets, inner, type=kind, mask=none)
    return nested, None if wrong is None else _rows_of_items(lists, wrong)


def _conform_struct(values: Any, kind: pa.DataType) -> tuple[Any, Any]:
    """Convert the fields of a struct; fields whose names differ only in case become one, unless a row has both."""
    valid, spelling = values.is_valid(), Spelling(f.name for f in kind)
    children: dict[str, list[Any]] = {}
    for n, f in enumerate(values.type):
        children.setdefault(spelling.of(f.name), []).append(values.field(n))
    fields, misfits = [], None
    for f in kind:
        fitted: Any = None
        for child in children.get(f.name, [pa.nulls(len(values), f.type)]):
            more, wrong = conform(child, f.type)
            if fitted is not None:
                twice = pc.and_(pc.is_valid(fitted), pc.is_valid(more))
                wrong = twice if wrong is None else pc.or_kleene(wrong, twice)
                more = pc.coalesce(fitted, more)
            fitted = more
            if wrong is not None:
                wrong = pc.and_kleene(wrong, valid)
                misfits = wrong if misfits is None else pc.or_kleene(misfits, wrong)
        fields.append(fitted)
    return pa.StructArray.from_arrays(fields, fields=list(kind), mask=pc.invert(valid)), misfits


def _as_lists(values: Any) -> Any:
    """Return maps as lists of entries, for which Arrow has functions; other values as they are."""
    kind = values.type
    return values.cast(pa.list_(pa.struct([kind.key_field, kind.item_field]))) if pa.types.is_map(kind) else values


def _items(lists: Any, kind: pa.DataType) -> Any:
    """Return the elements of lists, or the values of the maps that they were."""
    return lists.flatten().field(1) if pa.types.is_map(kind) else lists.flatten()


def _rows_of_items(lists: Any, items: Any) -> Any:
    """Return the rows that have one of the items of a mask."""
    rows = pc.unique(pc.list_parent_indices(lists).filter(pc.fill_null(items, fill_value=False)))
    return pc.is_in(pa.array(range(len(lists)), pa.int64()), value_set=rows.cast(pa.int64()))


def merge(schemas: Iterable[pa.Schema], *, fixed: Collection[Path] = ()) -> pa.Schema:
    """Merge several schemas to one, as if the first one's rows came first. A conflict is decided for the earlier."""
    types: dict[str, pa.DataType] = {}
    spelling, paths = Spelling(), DottedPaths(())
    for schema in schemas:
        for f in schema:
            name = spelling.of(f.name)
            have = types.get(name)
            both = f.type if have is None else wider(have, f.type, fixed, (name,))
            if both is not None and both != have and paths.add(name, both) is None:
                types[name] = both
    return pa.schema(list(types.items()))


def grown(have: pa.Schema, more: pa.Schema) -> pa.Schema:
    """Return the columns of `have` with their types, the new fields of its structs, then the new columns of `more`."""
    names = {f.name.lower(): f for f in more}
    kept = [pa.field(f.name, _grown(f.type, names.get(f.name.lower(), f).type)) for f in have]
    known = {f.name.lower() for f in have}
    return pa.schema([*kept, *(f for f in more if f.name.lower() not in known)])


def _grown(have: pa.DataType, more: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(have) and pa.types.is_struct(more):
        spelling = Spelling(f.name for f in have)
        new = {spelling.of(f.name): f.type for f in more}
        kept = [pa.field(f.name, _grown(f.type, new.pop(f.name, f.type))) for f in have]
        return pa.struct([*kept, *new.items()])
    if pa.types.is_list(have) and pa.types.is_list(more):
        return pa.list_(_grown(have.value_type, more.value_type))
    if pa.types.is_map(have) and pa.types.is_map(more):
        return pa.map_(pa.string(), _grown(have.item_type, more.item_type))
    return have


def promoted_columns(have: pa.Schema, wanted: pa.Schema) -> Iterator[str]:
    """Yield the columns of `have` whose values `wanted` requires to rewrite; new fields of a struct do not."""
    for f in have:
        if f.name in wanted.names and not _readable_as(f.type, wanted.field(f.name).type):
            yield f.name


def find_leaf(schema: pa.Schema, path: Path) -> tuple[Path, pa.DataType] | None:
    """Return a leaf with its spelling and its type in the schema, or None if the schema does not have it."""
    kind = pa.struct(list(schema))
    spelled: list[str] = []
    for part in path:
        if part == ELEMENT and not pa.types.is_struct(kind):
            inner = kind.value_type if pa.types.is_list(kind) else kind.item_type if pa.types.is_map(kind) else None
            name = part
        else:
            name = Spelling(f.name for f in kind).of(part) if pa.types.is_struct(kind) else part
            at = kind.get_field_index(name) if pa.types.is_struct(kind) else -1
            inner = kind.field(at).type if at >= 0 else None
        if inner is None:
            return None
        kind = inner
        spelled.append(name)
    return tuple(spelled), kind


def _readable_as(have: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_null(have):
        return True
    if storable(have) is None and storable(wanted) is not None:
        return False  # the file has nothing of an empty list or object
    if pa.types.is_struct(have) and pa.types.is_struct(wanted):
        names = {f.name: f.type for f in wanted}
        return all(f.name in names and _readable_as(f.type, names[f.name]) for f in have)
    if pa.types.is_list(have) and pa.types.is_list(wanted):
        return _readable_as(have.value_type, wanted.value_type)
    if pa.types.is_map(have) and pa.types.is_map(wanted):
        return _readable_as(have.item_type, wanted.item_type)
    return bool(have == wanted)
