"""Has Spark read a table in an object store without a jar: its Python workers read files through the `LakeStore`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from ottla.pipeline.lake.lake_table import TableFile, TableReader, TableSpec
from ottla.pipeline.lake.rewrite import read, with_all_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def remote_frame(spark: SparkSession, table: TableReader, locations: Sequence[str] | None) -> DataFrame:
    """Return the table, or these of its files, as a DataFrame. Filters are applied after the files are read."""
    from pyspark.sql.pandas.types import from_arrow_schema

    spec, store = table.spec(), table.store
    paths = None if locations is None else {store.key(location) for location in locations}
    files = [file for file in table.files() if paths is None or file.path in paths]
    schema = from_arrow_schema(spec.schema)
    if not files:
        return spark.createDataFrame([], schema)

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pa.set_cpu_count(1)  # Spark already runs one task per core
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield from _batches(table, files[index], spec)

    return spark.range(0, len(files), 1, len(files)).mapInArrow(rows, schema)


def _batches(table: TableReader, file: TableFile, spec: TableSpec) -> Iterator[pa.RecordBatch]:
    for part in read(table, file, spec):
        yield from with_all_columns(part, spec).to_batches()
