"""Makes columns of records' headers: of the last header of a name, as a text that is cast to the declared type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ottla.pipeline.formats.format import reasons_where, utf8
from ottla.pipeline.formats.typed import typed_fields

_BINARY = "binary"


def header_columns(records: pa.RecordBatch, kinds: Mapping[str, str]) -> tuple[pa.Table, Any]:
    """Return a column for each header in `kinds`, null where a record has none, and the reasons to refuse records."""
    reasons = pa.nulls(len(records), pa.string())
    columns: dict[str, Any] = {}
    for name, kind in kinds.items():
        values = last_values(records, name)
        if kind != _BINARY:
            values, lost = utf8(values)
            reasons = pc.coalesce(reasons, reasons_where(lost, f"header {name} is not UTF-8"))
        columns[name] = values
    rows, misfits = typed_fields(pa.table(columns), kinds)
    return rows, pc.coalesce(reasons, misfits)


def last_values(records: pa.RecordBatch, name: str) -> Any:
    """Return the value of the last header of a name in each record; null where there is none."""
    count = len(records)
    if "headers" not in records.schema.names:
        return pa.nulls(count, pa.binary())
    headers = records.column("headers")
    pairs = headers.flatten()
    pair_indices = np.flatnonzero(np.asarray(pc.equal(pairs.field("key"), name).fill_null(False)))
    parents = np.asarray(pc.list_parent_indices(headers))[pair_indices]
    places = np.full(count, -1, np.int64)
    places[parents] = pair_indices  # of several the last is kept
    return pairs.field("value").take(pa.array(places, mask=places < 0))
