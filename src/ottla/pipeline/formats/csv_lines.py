"""Parses lines of separated values, one row per record: each column is text unless the load's `columns` declare a type.

A batch goes through Arrow's compiled reader as one text. Records that could run into the next one (a line break inside,
an odd number of quotes) are read alone, by Python's reader; a quoted line break is then part of its field.

An empty field is null. A record with too few or too many fields is not understood,
and neither is the header where a producer sent one: it is quarantined with that reason.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from ottla.pipeline.formats.format import Parsed, reasons_where, spread_rows, texts
from ottla.pipeline.lake.schema import Path, column_name

HEADER = "the header line"


@dataclass(frozen=True, slots=True)
class CsvLines:
    """Parses values that are lines of CSV."""

    names: tuple[str, ...]
    delimiter: str = ","
    quote: str = '"'
    """The quoting character; "" where nothing is quoted."""
    header: bool = False
    """Whether the names may come as a record, as they do where whole files were sent."""

    def columns(self) -> pa.Schema:
        """Return all columns, as strings."""
        return pa.schema([pa.field(column_name(name), pa.string()) for name in self.names])

    @property
    def line(self) -> str:
        """Return the header line."""
        return _line(self.names, self.delimiter)

    def parse(self, records: pa.RecordBatch, known: pa.Schema, fixed: Collection[Path] = ()) -> Parsed:  # noqa: ARG002
        """Parse the plain lines at once, the others one by one."""
        values, reasons = texts(records.column("value"))
        values = pc.replace_substring_regex(values, r"\r?\n$", "")
        if self.header:
            heads = [_line(self.names, self.delimiter), _line(self.names, self.delimiter, quoting=csv.QUOTE_ALL)]
            reasons = pc.coalesce(reasons, reasons_where(pc.is_in(values, value_set=pa.array(heads)), HEADER))
        good = pc.is_null(reasons)
        alone = pc.and_(good, self._needs_care(values))
        plain = pc.and_(good, pc.invert(alone))
        rows, wrong = self._read_plain(values.filter(plain))
        reasons = pc.coalesce(reasons, spread_rows(pa.table({"reason": wrong}), plain)["reason"].combine_chunks())
        rows = spread_rows(rows, plain)
        if pc.any(alone).as_py():
            hard, wrong = self._read_alone(values.filter(alone))
            reasons = pc.coalesce(reasons, spread_rows(pa.table({"reason": wrong}), alone)["reason"].combine_chunks())
            hard = spread_rows(hard, alone)
            rows = pa.table([pc.if_else(alone, hard[n], rows[n]) for n in rows.column_names], names=rows.column_names)
        return Parsed(rows, reasons)

    def _needs_care(self, values: pa.Array) -> pa.Array:
        care = pc.match_substring_regex(values, r"[\r\n]")
        if self.quote:
            odd = pc.equal(pc.bit_wise_and(pc.count_substring(values, self.quote), 1), 1)
            care = pc.or_(care, odd)
        return pc.fill_null(pc.or_(care, pc.equal(pc.binary_length(values), 0)), fill_value=False)

    def _read_plain(self, values: pa.Array) -> tuple[pa.Table, pa.Array]:
        """Read the rows, all nulls where the count of fields is wrong, and the reasons."""
        schema = self.columns()
        if not len(values):
            return schema.empty_table(), pa.array([], pa.string())
        wrong: dict[int, int] = {}

        def note(row: pacsv.InvalidRow) -> str:
            wrong[row.number - 1] = row.actual_columns
            return "skip"

        offsets = pa.array([0, len(values)], pa.int32())
        joined = pc.binary_join(pa.ListArray.from_arrays(offsets, values), "\n")[0].as_buffer()
        rows = pacsv.read_csv(
            pa.BufferReader(joined),
            read_options=pacsv.ReadOptions(
                use_threads=False,
                block_size=joined.size + 1,
                column_names=schema.names,
                autogenerate_column_names=False,
            ),
            parse_options=pacsv.ParseOptions(
                delimiter=self.delimiter,
                quote_char=self.quote or False,
                double_quote=True,
                newlines_in_values=False,
                ignore_empty_lines=False,
                invalid_row_handler=note,
            ),
            convert_options=pacsv.ConvertOptions(column_types=schema, strings_can_be_null=True, null_values=[""]),
        )
        if len(rows) + len(wrong) != len(values):
            return self._read_alone(values)
        found = [self._wrong_count(wrong[n]) if n in wrong else None for n in range(len(values))]
        reasons = pa.array(found, pa.string())
        return spread_rows(rows, pc.is_null(reasons)), reasons

    def _read_alone(self, values: pa.Array) -> tuple[pa.Table, pa.Array]:
        read = [self._read_one(text) for text in values.to_pylist()]
        columns = [[fields[n] for fields, _ in read] for n in range(len(self.names))]
        rows = pa.table([pa.array(column, pa.string()) for column in columns], schema=self.columns())
        return rows, pa.array([why for _, why in read], pa.string())

    def _read_one(self, text: str) -> tuple[list[str | None], str | None]:
        """Return the fields of one record, or nulls and why."""
        nothing: list[str | None] = [None] * len(self.names)
        quoting: Any = csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE
        reader = csv.reader(
            io.StringIO(text, newline=""),
            delimiter=self.delimiter,
            quotechar=self.quote or None,
            quoting=quoting,
            strict=True,
        )
        try:
            lines = list(reader) or [[""]]
        except csv.Error as error:
            return nothing, f"not a line of separated values: {error}"
        if len(lines) > 1:
            return nothing, "more than one line"
        if len(lines[0]) != len(self.names):
            return nothing, self._wrong_count(len(lines[0]))
        return [field or None for field in lines[0]], None

    def _wrong_count(self, count: int) -> str:
        return f"{count} fields where there are {len(self.names)} columns"


def names_in(line: str, form: CsvLines) -> tuple[str, ...]:
    """Return the names that a header line has; an empty one gets its number, a second one of a name gets it too."""
    quoting: Any = csv.QUOTE_MINIMAL if form.quote else csv.QUOTE_NONE
    fields = next(csv.reader([line], delimiter=form.delimiter, quotechar=form.quote or None, quoting=quoting), [""])
    found: list[str] = []
    for n, field in enumerate(fields, 1):
        name = field.strip() or f"column_{n}"
        found.append(name if name not in found else f"{name}_{n}")
    return tuple(found)


def _line(names: tuple[str, ...], delimiter: str, *, quoting: Any = csv.QUOTE_MINIMAL) -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, quoting=quoting, lineterminator="").writerow(names)
    return text.getvalue()
