"""Finds the kinds of the fields of JSON records, from one record's text or from Arrow's columns, and merges them.

A kind determines which columns can hold a field. Records whose kinds contradict each other are refused.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa

from ottla.pipeline.lake.schema import ELEMENT, EXACT_IN_A_DOUBLE, Path, exact_longs

NO_OBJECT = "not a JSON object"
DEPTH_MAX = 32


class RefusedRecord(Exception):
    """A record that no table can have, or not together with the others; the message is the reason.

    A name in it may have half a surrogate pair, which no UTF-8 has: it is escaped.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why.encode("utf-8", "backslashreplace").decode())


TEXT, TRUTH = "text", "truth"
LONG, EXACT_LONG, BEYOND_LONG = "number", "whole number beyond 2^53", "whole number beyond 64 bits"
DOUBLE, WHOLE_DOUBLE = "fraction", "fraction of nothing"
JsonKind = str | dict[str, Any] | list[Any] | None
"""A field in JSON's words: one of the above, an object by field, a list of one item's kind, unknown.

A column of longs may hold a LONG or an EXACT_LONG; one of doubles a LONG or a DOUBLE. No column holds a BEYOND_LONG.
A WHOLE_DOUBLE like 4.0 is a DOUBLE, except that a column with an EXACT_LONG takes it as a long.
"""


def kinds_of_columns(rows: pa.Table) -> dict[str, Any]:
    """Return the kind of each field."""
    exact = {path for f in rows.schema for path in exact_longs(rows[f.name], (f.name,))}
    return {f.name: kind_of_type(f.type, (f.name,), exact) for f in rows.schema}


def kind_of_type(kind: pa.DataType, path: Path, exact: Collection[Path]) -> JsonKind:
    """Return the kind of a column of this type; the longs at the paths in `exact` are beyond 2^53."""
    t = pa.types
    if t.is_string(kind):
        return TEXT
    if t.is_boolean(kind):
        return TRUTH
    if t.is_integer(kind):
        return EXACT_LONG if path in exact else LONG
    if t.is_floating(kind):
        return DOUBLE
    if t.is_struct(kind):
        return {f.name: kind_of_type(f.type, (*path, f.name), exact) for f in kind}
    return [kind_of_type(kind.value_type, (*path, ELEMENT), exact)] if t.is_list(kind) else None


class _Number(float):
    """A fraction that keeps its text."""

    text: str


def parse_object(text: str) -> dict[str, Any]:
    """Return a record's fields. Raises RefusedRecord or RecursionError."""
    try:
        value = json.loads(text, object_pairs_hook=_fields, parse_float=_number, parse_constant=_number)
    except ValueError as error:
        raise RefusedRecord(f"{NO_OBJECT}: {error}") from None
    assert isinstance(value, dict), "it begins with a brace"
    return value


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise RefusedRecord("a field comes twice")
    return found


def _number(text: str) -> float:
    number = _Number(text)
    if number in {float("inf"), float("-inf")} and "n" not in text:
        raise RefusedRecord(f"{text} is beyond what a double holds")
    number.text = text
    return number


def digits_of(value: int | _Number) -> str:
    """Return a number as its record has it, digit for digit."""
    return value.text if isinstance(value, _Number) else str(value)


def kind_of_value(value: Any, depth: int, *, exact: bool = True) -> JsonKind:
    """Return the kind of a value.

    Raises RecursionError, and RefusedRecord: for a number that no column can hold only if `exact`.
    """
    if depth > DEPTH_MAX:
        raise RecursionError
    match value:
        case None:
            return None
        case bool():
            return TRUTH
        case int():
            return _kind_of_whole(value, exact=exact)
        case float():
            return WHOLE_DOUBLE if value.is_integer() and abs(value) <= EXACT_IN_A_DOUBLE else DOUBLE
        case str():
            return TEXT
        case dict():
            return {name: kind_of_value(item, depth + 1) for name, item in value.items()}
        case _:
            kind: JsonKind = None
            for item in value:
                kind = _merge_kind(_in_array(kind_of_value(item, depth + 1)), kind, "an array")
            return [kind]


def _in_array(kind: JsonKind) -> JsonKind:
    """Return a kind as it is inside an array: Arrow reads the numbers of one array together."""
    if isinstance(kind, dict):
        return {name: _in_array(inner) for name, inner in kind.items()}
    return DOUBLE if kind == WHOLE_DOUBLE else kind


def leaves_of(kind: JsonKind, path: Path, wanted: str) -> Iterator[Path]:
    """Yield the paths of the leaves of a kind."""
    if isinstance(kind, dict):
        for name, inner in kind.items():
            yield from leaves_of(inner, (*path, name), wanted)
    elif isinstance(kind, list):
        yield from leaves_of(kind[0], (*path, ELEMENT), wanted)
    elif kind == wanted:
        yield path


def _kind_of_whole(value: int, *, exact: bool) -> JsonKind:
    if abs(value) <= EXACT_IN_A_DOUBLE:
        return LONG
    if -(1 << 63) <= value < 1 << 63:
        return EXACT_LONG
    try:
        number = float(value)
    except OverflowError:
        raise RefusedRecord("a whole number is beyond what a double holds") from None
    if not exact:
        return BEYOND_LONG
    if value not in {int(number), int(Decimal(repr(number)))}:
        raise RefusedRecord(
            f"neither a long nor a double holds {value} digit for digit; declare the field as a decimal or a string"
        )
    return DOUBLE


def merge_kinds(new: dict[str, Any], known: dict[str, Any], path: str) -> dict[str, Any]:
    """Add the kinds of a record's fields to those known so far. Raises RefusedRecord where they contradict."""
    merged = dict(known)
    for name, kind in new.items():
        merged[name] = _merge_kind(kind, known.get(name), f"{path}{name}")
    return merged


_NUMBERS = {frozenset({LONG, EXACT_LONG}): EXACT_LONG, frozenset({LONG, DOUBLE}): DOUBLE}


def _merge_kind(new: JsonKind, known: JsonKind, path: str) -> JsonKind:
    if new == WHOLE_DOUBLE:
        new = EXACT_LONG if known == EXACT_LONG else DOUBLE
    known = DOUBLE if known == WHOLE_DOUBLE else known
    if new is None or known is None or new == known:
        return known if new is None else new
    if isinstance(new, dict) and isinstance(known, dict):
        return merge_kinds(new, known, f"{path}.")
    if isinstance(new, list) and isinstance(known, list):
        return [_merge_kind(new[0], known[0], f"{path}[]")]
    if isinstance(new, str) and isinstance(known, str) and (both := _NUMBERS.get(frozenset({new, known}))):
        return both
    if isinstance(new, str) and isinstance(known, str) and {new, known} == {EXACT_LONG, DOUBLE}:
        raise RefusedRecord(
            f"field {path} is a {new}, and the table has a {known}: no column holds both digit for digit"
        )
    raise RefusedRecord(f"field {path} is {kind_text(new)}, and the table has {kind_text(known)}")


def kind_text(kind: JsonKind) -> str:
    """Name a kind in a message."""
    match kind:
        case dict():
            return "an object"
        case list():
            return "an array"
        case _:
            return "a number" if kind in {EXACT_LONG, DOUBLE, WHOLE_DOUBLE, BEYOND_LONG} else f"a {kind}"
