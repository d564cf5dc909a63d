"""Parses JSON objects, one per record: fields become columns, nested objects structs, arrays lists.

Arrow's compiled reader reads a batch at once (`json_arrow.py`). Where it refuses one, the records are tried in small
groups, and those of a refused group are parsed in Python one by one (`json_kinds.py`): this finds the records that are
wrong or contradict others. The rest is read as before.

Texts stay texts: a time is one only where the load's `columns` say so. Whole numbers are longs, others doubles. Arrow
reads a field as doubles where one number of the batch is a fraction or beyond 64 bits, which changes whole numbers
beyond 2^53 of the other records. So a batch with a double that large is read in parts too, by each record's digits. A
number that neither a long nor a double holds digit for digit is refused, unless a declared type (a decimal, a string)
takes it. An empty object or array has no type until a record shows what is in it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ottla.pipeline.formats.format import Parsed, reasons_where, spread_rows, texts
from ottla.pipeline.formats.json_arrow import BRACKETS_MAX, in_braces, most_brackets, read_objects, texts_of
from ottla.pipeline.formats.json_kinds import (
    BEYOND_LONG,
    DEPTH_MAX,
    DOUBLE,
    EXACT_LONG,
    LONG,
    NO_OBJECT,
    TEXT,
    WHOLE_DOUBLE,
    JsonKind,
    RefusedRecord,
    digits_of,
    kind_of_type,
    kind_of_value,
    kind_text,
    kinds_of_columns,
    leaves_of,
    merge_kinds,
    parse_object,
)
from ottla.pipeline.formats.typed import EPOCHS, column_type, no_value_of, typed_fields
from ottla.pipeline.lake.schema import EXACT_IN_A_DOUBLE, Path, column_name, conform, wider

_TRIED_TOGETHER = 256
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
        """Read whole batches; examine groups of records only where a batch is refused."""
        values, reasons = texts(records.column("value"))
        reasons = pc.coalesce(reasons, reasons_where(pc.invert(in_braces(values)), NO_OBJECT))
        good = pc.is_null(reasons)
        expected = {f.name: kind_of_type(f.type, (f.name,), fixed) for f in known}
        rows = self._read_at_once(values.filter(good), known, expected)
        has_conflicts = False
        if rows is None:
            rows, reasons, has_conflicts = self._read_in_parts(values, reasons, known, expected)
            good = pc.is_null(reasons)
        names = [column_name(name) for name in rows.column_names]
        return Parsed(spread_rows(rows.rename_columns(_numbered(names)), good), reasons, has_conflicts)

    def _read_at_once(self, values: pa.Array, known: pa.Schema, expected: dict[str, Any]) -> pa.Table | None:
        """Read all records at once; None if one is wrong, contradicts another or the table, or would lose digits."""
        if most_brackets(values) > BRACKETS_MAX:
            return None
        kinds = self._declared_decimals()
        decimals = [pa.field(name, pa.decimal128(_DECIMAL_DIGITS, kind.scale)) for name, kind in kinds.items()]
        rows = read_objects(values, pa.schema([*texts_of(known), *decimals]))
        if rows is None or not self._is_exact(rows):
            return None
        try:
            merge_kinds(self._undeclared(kinds_of_columns(rows)), expected, "")
        except RefusedRecord:
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

        Raises RefusedRecord if a declared one is no single value.
        """
        for name in self.declared:
            if isinstance(kinds.get(name), dict | list):
                raise RefusedRecord(f"field {name} is {kind_text(kinds[name])}")
        return {name: kind for name, kind in kinds.items() if name not in self.declared}

    def _read_in_parts(
        self, values: pa.Array, reasons: Any, known: pa.Schema, expected: dict[str, Any]
    ) -> tuple[pa.Table, Any, bool]:
        """Read the rows of the records without a reason.

        Returns them, all the reasons, and whether some are for the sake of other records.
        """
        while True:
            groups = self._group_records(values, pc.is_null(reasons), known, expected)
            found = pc.coalesce(reasons, pa.array(groups.reasons, pa.string()))
            parts = [
                self._read_part(values, indexes, groups, kinds, known) for kinds, indexes in groups.by_signature.items()
            ]
            unread = [index for part in parts for index in part.unread]
            if not unread:
                break
            refused = [f"{NO_OBJECT} that a table can hold" if n in set(unread) else None for n in range(len(values))]
            reasons = pc.coalesce(reasons, pa.array(refused, pa.string()))  # they must decide nothing for the others
        for part in parts:
            found = pc.coalesce(found, _spread_reasons(part.reasons, part.indexes, len(values)))
        joined = _join_parts(parts) if parts else pa.table({})
        if not joined.num_columns:
            return self._with_decimals(joined, found.null_count), found, groups.has_conflicts
        indexes = [index for part in parts for index in part.indexes]
        in_order = pc.sort_indices(pa.array(indexes, pa.int64()))
        rows = joined.take(in_order)
        kept = pa.array([found[index].as_py() is None for index in sorted(indexes)], pa.bool_())
        return self._with_decimals(rows.filter(kept), found.null_count), found, groups.has_conflicts

    def _read_part(
        self, values: pa.Array, indexes: list[int], groups: _RecordGroups, kinds: Signature, known: pa.Schema
    ) -> _Part:
        """Read records in which each declared field is of one kind, and make the declared types of these."""
        part_values = values.take(pa.array(indexes, pa.int64()))
        declared_texts = pa.schema([(name, pa.string()) for name, kind in kinds if kind == TEXT])
        expected_texts = pa.schema([*texts_of(known), *declared_texts])
        rows = read_objects(part_values, expected_texts)
        if rows is None:  # what Python understood and Arrow does not, like half a surrogate pair
            unread = [
                index
                for n, index in enumerate(indexes)
                if read_objects(part_values.slice(n, 1), expected_texts) is None
            ]
            assert unread, "each of these was read alone"
            return _Part(indexes, pa.table({}), pa.nulls(len(indexes), pa.string()), unread)
        for n, name in enumerate(rows.column_names):
            column = rows.column(n)
            if name not in self.declared:
                column = conform(column, _with_longs(column.type, (name,), groups.exact))[0]
            elif indexes[0] in groups.digits.get(name, {}):
                column = pa.array([groups.digits[name][index] for index in indexes], pa.string())
            rows = rows.set_column(n, name, column)
        rows, reasons = typed_fields(rows, self.declared)
        return _Part(indexes, rows, reasons, [])

    def _group_records(
        self, values: pa.Array, good: pa.Array, known: pa.Schema, expected: dict[str, Any]
    ) -> _RecordGroups:
        """Give a reason to records that are wrong or contradict an earlier one or the table, a group to the others."""
        kinds = expected
        groups = _RecordGroups([None] * len(values))
        good_indexes = pc.indices_nonzero(good).to_pylist()
        for first in range(0, len(good_indexes), _TRIED_TOGETHER):
            indexes = good_indexes[first : first + _TRIED_TOGETHER]
            part = values.take(pa.array(indexes, pa.int64()))
            rows = None if most_brackets(part) > BRACKETS_MAX else read_objects(part, texts_of(known))
            if rows is not None and self._is_exact(rows) and not self._has_declared_doubles(rows):
                found_kinds = kinds_of_columns(rows)
                try:
                    kinds = merge_kinds(self._undeclared(found_kinds), kinds, "")
                except RefusedRecord:
                    pass
                else:
                    groups.add(indexes, self._signature(found_kinds))
                    continue
            for index, text in zip(indexes, part.to_pylist(), strict=True):
                kinds = self._classify_record(index, text, kinds, groups)
        groups.exact.update(leaves_of(kinds, (), EXACT_LONG))
        return groups

    def _has_declared_doubles(self, rows: pa.Table) -> bool:
        """Return whether a declared field came as doubles: whole numbers among them are longs alone."""
        return any(pa.types.is_floating(f.type) and f.name in self.declared for f in rows.schema)

    def _classify_record(self, index: int, text: str, kinds: dict[str, Any], groups: _RecordGroups) -> dict[str, Any]:
        """Add a record to its group, or note why it is refused; return the kinds of the fields so far."""
        try:
            record = parse_object(text)
            own = {name: self._declared_kind(name, record[name]) for name in self.declared if name in record}
            undeclared = {name: value for name, value in record.items() if name not in self.declared}
            found_kinds = {name: kind_of_value(value, 2) for name, value in undeclared.items()}
        except RecursionError:
            groups.reasons[index] = f"objects and arrays in each other, more than {DEPTH_MAX} deep"
            return kinds
        except RefusedRecord as why:
            groups.reasons[index] = str(why)
            return kinds
        try:
            kinds = merge_kinds(found_kinds, kinds, "")
        except RefusedRecord as why:
            groups.reasons[index], groups.has_conflicts = str(why), True
            return kinds
        wholes = {(WHOLE_DOUBLE, repr(path)) for path in leaves_of(found_kinds, (), WHOLE_DOUBLE)}
        groups.add([index], self._signature(own) | wholes)
        for name, kind in own.items():
            if kind in {DOUBLE, WHOLE_DOUBLE, BEYOND_LONG} and self._takes_digits(name):
                groups.digits.setdefault(name, {})[index] = digits_of(record[name])
        return kinds

    def _takes_digits(self, name: str) -> bool:
        return self.declared[name] == "string" or self.declared[name].startswith("decimal")

    def _declared_kind(self, name: str, value: Any) -> JsonKind:
        """Return the kind of a declared field's value. Raises RefusedRecord where its type has none of this kind."""
        kind = kind_of_value(value, 2, exact=False)
        if isinstance(kind, dict | list):
            raise RefusedRecord(f"field {name} is {kind_text(kind)}")
        if kind == BEYOND_LONG and not self._takes_digits(name):
            raise RefusedRecord(no_value_of(name, self.declared[name]))
        return kind

    def _signature(self, kinds: dict[str, Any]) -> Signature:
        """Return the kinds of the declared fields."""
        found = ((name, kinds.get(name)) for name in self.declared)
        return frozenset(
            (name, {EXACT_LONG: LONG, WHOLE_DOUBLE: DOUBLE}.get(kind, kind)) for name, kind in found if kind
        )


@dataclass(slots=True)
class _RecordGroups:
    """The result of decoding records one by one: errors by record, and groups of records that can be read together."""

    reasons: list[str | None]
    by_signature: dict[Signature, list[int]] = field(default_factory=dict)
    """The indexes of the records of each group: in a group the declared fields have the same kinds."""
    digits: dict[str, dict[int, str]] = field(default_factory=dict)
    """The texts of the numbers that must not become doubles, by declared field and record."""
    exact: set[Path] = field(default_factory=set)
    """The leaves that must be longs."""
    has_conflicts: bool = False

    def add(self, indexes: list[int], signature: Signature) -> None:
        self.by_signature.setdefault(signature, []).extend(indexes)


@dataclass(frozen=True, slots=True)
class _Part:
    """Records that were read together."""

    indexes: list[int]
    rows: pa.Table
    reasons: Any
    unread: list[int]
    """Those that Arrow refuses alone, too."""


def _spread_reasons(reasons: Any, indexes: list[int], count: int) -> pa.Array:
    found: list[str | None] = [None] * count
    for index, why in zip(indexes, reasons.to_pylist(), strict=True):
        found[index] = why
    return pa.array(found, pa.string())


def _join_parts(parts: list[_Part]) -> pa.Table:
    """Join the parts to one table. Their types differ only where one is wider than the other."""
    kinds: dict[str, pa.DataType] = {}
    for part in parts:
        for f in part.rows.schema:
            kinds[f.name] = wider(kinds.get(f.name, f.type), f.type)
            assert kinds[f.name] is not None, "contradictions were refused"
    return pa.concat_tables(
        [pa.table({name: _as_wider_type(part, name, kind) for name, kind in kinds.items()}) for part in parts]
    )


def _as_wider_type(part: _Part, name: str, kind: pa.DataType) -> Any:
    """Return a column in a type that is wider."""
    if name not in part.rows.column_names:
        return pa.nulls(len(part.indexes), kind)
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


def _with_longs(kind: pa.DataType, path: Path, exact: Collection[Path]) -> pa.DataType:
    """Return the type with longs at some leaves."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _with_longs(f.type, (*path, f.name), exact)) for f in kind])
    return pa.int64() if pa.types.is_floating(kind) and path in exact else kind
