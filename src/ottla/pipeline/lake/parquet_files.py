"""Reads columns of a table's Parquet files in the table's own Arrow types, also where another program wrote the file.

A Parquet file names the Arrow types its writer had: string views and dictionaries among them, for which Arrow has
neither comparisons nor filters. Columns are cast to the types a table has before anything compares them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ottla.pipeline.lake.lake_store import LakeStore
from ottla.pipeline.lake.schema import canonical, conform


@contextlib.contextmanager
def open_parquet(store: LakeStore, key: str) -> Iterator[pq.ParquetFile]:
    """Open a file and close it."""
    with store.input(key) as source:
        yield pq.ParquetFile(source, pre_buffer=store.is_remote)


def footer_of(store: LakeStore, key: str) -> Any:
    """Return a file's metadata."""
    with open_parquet(store, key) as file:
        return file.metadata


def read_columns(store: LakeStore, key: str, names: Collection[str], row_group: int | None = None) -> pa.Table:
    """Read those of the columns that a file has, of one row group or of all."""
    with open_parquet(store, key) as file:
        present = [name for name in file.schema_arrow.names if name in names]
        if row_group is None:
            return in_table_types(file.read(columns=present, use_threads=False))
        return in_table_types(file.read_row_group(row_group, columns=present, use_threads=False))


def read_row_groups(store: LakeStore, key: str, names: Collection[str] | None = None) -> Iterator[pa.Table]:
    """Yield a file's rows, row group by row group, of some columns or of all."""
    with open_parquet(store, key) as file:
        columns = None if names is None else [name for name in file.schema_arrow.names if name in names]
        for n in range(file.num_row_groups):
            rows = file.read_row_group(n, columns=columns, use_threads=False)
            if len(rows):
                yield in_table_types(rows)


def in_table_types(rows: pa.Table) -> pa.Table:
    """Cast columns to the types that a table has for their values.

    >>> in_table_types(pa.table({"a": pa.array(["x"], pa.string_view())})).schema.field("a").type
    DataType(string)
    """
    for at, field in enumerate(rows.schema):
        kind = canonical(field.type)
        if kind != field.type:
            rows = rows.set_column(at, field.name, conform(rows.column(at), kind)[0])
    return rows
