"""Batches of records for the formats' tests."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ottla.pipeline.formats.format import Format
from ottla.pipeline.topic_reader import RECORDS

NOTHING = pa.schema([])


def records(*values: bytes | None) -> pa.RecordBatch:
    """Values as the log has them, a record a second."""
    count = len(values)
    return pa.record_batch(
        [
            pa.array([0] * count, pa.int32()),
            pa.array(range(count), pa.int64()),
            pa.array([n * 1_000_000 for n in range(count)], RECORDS.field("record_time").type),
            pa.nulls(count, pa.binary()),
            pa.array(values, pa.binary()),
        ],
        schema=RECORDS,
    )


def parse(
    form: Format, *values: bytes | None, known: pa.Schema = NOTHING
) -> tuple[list[dict[str, Any]], list[str | None]]:
    """Rows and reasons."""
    parsed = form.parse(records(*values), known)
    assert len(parsed.reasons) == len(values)
    rows = parsed.rows.to_pylist() if parsed.rows.num_columns else [{} for _ in values]
    assert len(rows) == len(values)
    return rows, parsed.reasons.to_pylist()
