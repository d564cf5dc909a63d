"""Reads values of one column: a line of text, or bytes that are not parsed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa

from ottla.pipeline.formats.format import Parsed, no_reasons, texts
from ottla.pipeline.lake.schema import Path


@dataclass(frozen=True, slots=True)
class Text:
    """A `Format`: the column `text`. Bytes that are not UTF-8 are not understood."""

    def columns(self) -> pa.Schema:
        """Return the one column."""
        return pa.schema([pa.field("text", pa.string())])

    def parse(self, records: pa.RecordBatch, known: pa.Schema, fixed: Collection[Path] = ()) -> Parsed:  # noqa: ARG002
        """Return the values unchanged."""
        values, reasons = texts(records.column("value"))
        return Parsed(pa.table({"text": values}), reasons)


@dataclass(frozen=True, slots=True)
class Raw:
    """A `Format`: the column `value`, null where a record has none. Every record is understood."""

    def columns(self) -> pa.Schema:
        """Return the one column."""
        return pa.schema([pa.field("value", pa.binary())])

    def parse(self, records: pa.RecordBatch, known: pa.Schema, fixed: Collection[Path] = ()) -> Parsed:  # noqa: ARG002
        """Return the values unchanged."""
        return Parsed(pa.table({"value": records.column("value")}), no_reasons(len(records)))
