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
- Names that differ only in case are one column, for Spark and Delta take them for one; the first spelling stays.

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

from ottla.pipeline.topic_reader import TIME

Path = tuple[str, ...]
"""The path of a leaf: the column, then the fields of structs; ELEMENT for the elements of a list or map."""
ELEMENT = "[]"
EXACT_IN_A_DOUBLE = 1 << 53
_EXACT_IN_A_FLOAT = 1 << 24
_INT64_END = float(1 << 63)
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
    for f in new:
        kind = wider(fields[f.name], f.type, fixed, (*path, f.name)) if f.name in fields else f.type
        if kind is None:
            return None
        fields[f.name] = kind
    return pa.struct(list(fields.items()))


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
    spelled = {f.name.lower(): f.name for f in known}
    types = {f.name: f.type for f in known}
    found: dict[str, Any] = {}
    conflicts: Any = None
    by_column = False
    for field in rows.schema:
        kind = canonical(field.type)
        if pa.types.is_null(kind):
            continue
        name = spelled.setdefault(field.name.lower(), field.name)
        values = rows[field.name]
        if name not in types and len(types) >= columns_max:
            conflicts = _note(
                conflicts, pc.is_valid(values), f"field {name} would be column {columns_max + 1} of the table"
            )
            continue
        have = types.get(name)
        target = kind if have is None else wider(have, kind, fixed, (name,))
        if target is None:
            by_column = by_column or pa.types.is_nested(kind)
            conflicts = _note(conflicts, pc.is_valid(values), f"field {name} is {kind}, and the table has {have}")
            continue
        cast, misfits = conform(values, target)
        if misfits is not None:
            conflicts = _note(conflicts, misfits, f"field {name} holds a value that does not fit {target}")
        if name in found:
            twice = pc.and_(pc.is_valid(found[name]), pc.is_valid(cast))
            conflicts = _note(conflicts, twice, f"two fields differ from {name} only in case")
            cast = pc.coalesce(found[name], cast)
        found[name], types[name] = cast, target
    schema = pa.schema(list(types.items()))
    count = len(rows)
    columns = {f.name: _column(found.get(f.name), f.type, count) for f in schema}
    return Fitted(columns, schema, conflicts, by_column)


def _column(values: Any, kind: pa.DataType, count: int) -> Any:
    return pa.nulls(count, kind) if values is None else conform(values, kind)[0]


def _note(conflicts: Any, where: Any, why: str) -> Any:
    """Add a reason to the rows of a mask that have none yet."""
    if not pc.any(where).as_py():
        return conflicts
    reasons = pc.if_else(where, pa.scalar(why), pa.scalar(None, pa.string()))
    return reasons if conflicts is None else pc.coalesce(conflicts, reasons)


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
        return exact_longs(values.items, (*path, ELEMENT))
    if kind != pa.int64():
        return set()
    limits = pc.min_max(values)
    low, high = limits["min"].as_py(), limits["max"].as_py()
    return {path} if low is not None and (low < -EXACT_IN_A_DOUBLE or high > EXACT_IN_A_DOUBLE) else set()


def _conform_nested(values: Any, kind: pa.DataType) -> tuple[Any, Any]:
    valid = values.is_valid()
    if pa.types.is_struct(kind):
        have = {f.name: n for n, f in enumerate(values.type)}
        children, misfits = [], None
        for f in kind:
            child = values.field(have[f.name]) if f.name in have else pa.nulls(len(values), f.type)
            if child.type != f.type and pa.types.is_null(child.type):
                child = pa.nulls(len(values), f.type)
            fitted, wrong = conform(child, f.type)
            children.append(fitted)
            if wrong is not None:
                wrong = pc.and_(wrong, valid)
                misfits = wrong if misfits is None else pc.or_(misfits, wrong)
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=pc.invert(valid)), misfits
    if pa.types.is_map(kind):
        return values.cast(kind), None
    flat = values.flatten()
    item = kind.value_type
    inner, wrong = (pa.nulls(len(flat), item), None) if pa.types.is_null(flat.type) else conform(flat, item)
    offsets = pc.cumulative_sum(pc.fill_null(pc.list_value_length(values), 0))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), offsets.cast(pa.int32())])
    lists = pa.ListArray.from_arrays(offsets, inner, type=kind, mask=pc.invert(valid))
    if wrong is None:
        return lists, None
    rows = pc.unique(pc.list_parent_indices(values).filter(wrong))
    return lists, pc.is_in(pa.array(range(len(values)), pa.int64()), value_set=rows.cast(pa.int64()))


def merge(schemas: Iterable[pa.Schema], *, fixed: Collection[Path] = ()) -> pa.Schema:
    """Merge several schemas to one, as if the first one's rows came first. A conflict is decided for the earlier."""
    types: dict[str, pa.DataType] = {}
    spelled: dict[str, str] = {}
    for schema in schemas:
        for f in schema:
            name = spelled.setdefault(f.name.lower(), f.name)
            have = types.get(name)
            if have is None:
                types[name] = f.type
            elif (both := wider(have, f.type, fixed, (name,))) is not None:
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
        new = {f.name: f.type for f in more}
        kept = [pa.field(f.name, _grown(f.type, new.get(f.name, f.type))) for f in have]
        known = {f.name for f in have}
        return pa.struct([*kept, *(f for f in more if f.name not in known)])
    if pa.types.is_list(have) and pa.types.is_list(more):
        return pa.list_(_grown(have.value_type, more.value_type))
    return have


def promoted_columns(have: pa.Schema, wanted: pa.Schema) -> Iterator[str]:
    """Yield the columns of `have` whose values `wanted` requires to rewrite; new fields of a struct do not."""
    for f in have:
        if f.name in wanted.names and not _readable_as(f.type, wanted.field(f.name).type):
            yield f.name


def leaf_type(schema: pa.Schema, path: Path) -> pa.DataType | None:
    """Return the type of a leaf, or None if the schema does not have it."""
    name, *inside = path
    kind = schema.field(name).type if name in schema.names else None
    for part in inside:
        if kind is None:
            return None
        if part == ELEMENT and not pa.types.is_struct(kind):
            kind = kind.value_type if pa.types.is_list(kind) else kind.item_type if pa.types.is_map(kind) else None
        else:
            at = kind.get_field_index(part) if pa.types.is_struct(kind) else -1
            kind = kind.field(at).type if at >= 0 else None
    return kind


def _readable_as(have: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_null(have):
        return True
    if storable(have) is None and storable(wanted) is not None:
        return False  # the file has nothing of an empty list or object
    if pa.types.is_struct(have) and pa.types.is_struct(wanted):
        names = {f.name: f.type for f in wanted}
        return all(_readable_as(f.type, names[f.name]) for f in have)
    if pa.types.is_list(have) and pa.types.is_list(wanted):
        return _readable_as(have.value_type, wanted.value_type)
    return bool(have == wanted)
