"""Reads JSON objects with Arrow's compiled reader: one text per record, one row per text.

The reader gets all texts as one and may not let one record's text run into the next one's. So every value must begin
with `{` and end with `}`: then between two values the reader stands outside of any object or refuses the text, and as
many rows as values means one of each.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from ottla.pipeline.formats.json_kinds import DEPTH_MAX

BRACKETS_MAX = 2_000
"""A text with more opening brackets is not given to the reader: it recurses."""


def read_objects(values: pa.Array, texts_known: pa.Schema) -> pa.Table | None:
    """Read one row per value; None if that is not what Arrow finds."""
    if not len(values):
        return pa.table({})
    offsets = pa.array([0, len(values)], pa.int32())
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, values), "\n")[0].as_buffer()
    rows = _read_text(joined, texts_known)
    if rows is None or len(rows) != len(values) or _is_deep(rows.schema):
        return None
    wanted = {f.name: _to_read_again(rows.column(f.name)) for f in rows.schema}
    again = {name: kind for name, kind in wanted.items() if kind is not None}
    if again:
        first = rows.schema
        rows = _read_text(joined, _with_fields_of(texts_known, pa.schema(list(again.items()))))
        if rows is None or len(rows) != len(values):
            return None
        rows = rows.select(first.names)
        for name in again:
            kind = _without_time(first.field(name).type)
            chunks = [_with_unknown_items(chunk, kind) for chunk in rows.column(name).chunks]
            rows = rows.set_column(rows.schema.get_field_index(name), name, pa.chunked_array(chunks, kind))
    return rows.combine_chunks()


def _to_read_again(column: pa.ChunkedArray) -> pa.DataType | None:
    """Return the type with which a column has to be read again, or None if it is right.

    Arrow takes a text that looks like a time for one. Of the nulls with which an array begins it forgets all but one,
    unless it knows the type of what follows: then the column is not valid.
    """
    kind = _without_time(column.type)
    try:
        column.validate()
    except pa.ArrowInvalid:
        return _with_texts(kind)
    return None if kind == column.type else _with_texts(kind)


def _with_texts(kind: pa.DataType) -> pa.DataType:
    """Return the type with texts for what is unknown: all of them are null."""
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _with_texts(f.type)) for f in kind])
    return pa.list_(_with_texts(kind.value_type)) if pa.types.is_list(kind) else kind


def _with_unknown_items(values: Any, kind: pa.DataType) -> Any:
    """Return values that were read with texts for what is unknown, as unknown again."""
    if values.type == kind:
        return values
    if pa.types.is_null(kind):
        return pa.nulls(len(values))
    if pa.types.is_list(kind):
        items = _with_unknown_items(values.values, kind.value_type)
        return pa.ListArray.from_arrays(values.offsets, items, type=kind, mask=values.is_null())
    children = [_with_unknown_items(values.field(f.name), f.type) for f in kind]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=values.is_null())


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


def texts_of(schema: pa.Schema) -> pa.Schema:
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


def _with_fields_of(have: pa.Schema, more: pa.Schema) -> pa.Schema:
    names = set(more.names)
    return pa.schema([*(f for f in have if f.name not in names), *more])


def _without_time(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _without_time(f.type)) for f in kind])
    if pa.types.is_list(kind):
        return pa.list_(_without_time(kind.value_type))
    return kind


def _is_deep(schema: pa.Schema) -> bool:
    """Return whether objects and arrays are in each other more than DEPTH_MAX deep; does not recurse."""
    kinds, depth = [pa.struct(list(schema))], 0
    while kinds:
        depth += 1
        if depth > DEPTH_MAX:
            return True
        children = [kind.field(n).type for kind in kinds for n in range(kind.num_fields)]
        kinds = [kind for kind in children if pa.types.is_nested(kind)]
    return False


def in_braces(values: pa.Array) -> Any:
    """Return whether each value begins with `{` and ends with `}`, whatever blanks there are around."""
    bare = pc.and_(pc.starts_with(values, "{"), pc.ends_with(values, "}"))
    if pc.all(bare).as_py():  # the usual case, and much quicker
        return bare
    return pc.and_(pc.match_substring_regex(values, r"^\s*\{"), pc.match_substring_regex(values, r"\}\s*$"))


def most_brackets(values: pa.Array) -> int:
    """Return the largest number of opening brackets in one value."""
    if (pc.max(pc.binary_length(values)).as_py() or 0) <= BRACKETS_MAX:
        return 0
    both = pc.add(pc.count_substring(values, "{"), pc.count_substring(values, "["))
    return int(pc.max(both).as_py() or 0)
