"""Declares the port of record formats: from a column of values to columns of fields, batch by batch.

A format never raises over a record. What it cannot read keeps its place, with a reason in place of its fields, so that
the caller can put it aside with its offset: nothing is dropped without a trace. Formats are values that are sent to the
tasks; a new one is a module here, a name in `record_format.py` and a case in `job_file/load_section.py`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ottla.pipeline.lake.schema import Path

NO_VALUE = "the record has no value"
NO_TEXT = "the value is not UTF-8"


@dataclass(frozen=True, slots=True)
class Parsed:
    """One row per record, in their order."""

    rows: pa.Table
    """The fields; where there is a reason, they mean nothing."""
    reasons: Any
    """The reason why a record was not understood, as a column of texts; null where it was."""
    has_conflicts: bool = False
    """Whether a record was refused because of the table's columns, or of other records of the batch."""


class Format(Protocol):
    """Reads the values of records."""

    def columns(self) -> pa.Schema:
        """Return the columns that the format always gives; the others are found with the records."""
        ...

    def parse(self, records: pa.RecordBatch, known: pa.Schema, fixed: Collection[Path] = ()) -> Parsed:
        """Return the fields of a batch of records (`topic_reader.RECORDS`).

        `known` has the columns of the table so far; the leaves in `fixed` keep their type.
        """
        ...


def no_reasons(count: int) -> pa.Array:
    """Return no reasons: every record was parsed."""
    return pa.nulls(count, pa.string())


def reasons_where(mask: Any, why: str) -> Any:
    """Return a reason for the rows where the mask is set."""
    return pc.if_else(pc.fill_null(mask, fill_value=False), pa.scalar(why), pa.scalar(None, pa.string()))


def texts(values: pa.Array) -> tuple[pa.Array, Any]:
    """Decode bytes as texts; return them, and a reason for those that are none."""
    missing = reasons_where(pc.is_null(values), NO_VALUE)
    given, lost = utf8(values)
    return given, pc.coalesce(missing, reasons_where(lost, NO_TEXT))


def utf8(values: pa.Array) -> tuple[pa.Array, Any]:
    """Decode bytes as texts; return them, and which are none."""
    try:
        return values.cast(pa.string()), pa.repeat(pa.scalar(False), len(values))
    except pa.ArrowInvalid:
        given = pa.array([_text(value) for value in values.to_pylist()], pa.string())
    return given, pc.and_(pc.is_null(given), pc.is_valid(values))


def _text(value: bytes | None) -> str | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def spread_rows(rows: pa.Table, where: pa.Array) -> pa.Table:
    """Spread the rows of the records that `where` is true of over all of them; the others get nulls."""
    if len(rows) == len(where):
        return rows
    counted = pc.cumulative_sum(where.cast(pa.int64()))
    return rows.take(pc.if_else(where, pc.subtract(counted, 1), pa.scalar(None, pa.int64())))
