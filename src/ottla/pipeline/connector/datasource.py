"""Implements Spark's data source `format("ottla")` for PySpark 4.0 to 4.3, without a jar.

Spark pickles the class by its name: wherever this package is installed, on driver and executors alike, it is found.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from ottla.pipeline.connector.brief_errors import brief
from ottla.pipeline.connector.columns import COLUMNS, ddl
from ottla.pipeline.connector.offset_client import check_brokers
from ottla.pipeline.connector.options import InvalidOption, source_options
from ottla.pipeline.connector.reader import BatchReader, FilteringBatchReader, StreamReader
from ottla.pipeline.connector.record_rows import row_reader
from ottla.pipeline.connector.sink import BatchWriter, StreamWriter, WriteJob, new_job
from ottla.pipeline.connector.sink_options import sink_options
from ottla.pipeline.connector.spark_api import pushes_filters

FORMAT = "ottla"


class OttlaDataSource(DataSource):
    """Kafka topics: `spark.read`, `spark.readStream`, `df.write` and `df.writeStream`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return FORMAT

    @brief
    def schema(self) -> str:
        """Return the columns, for readers that bring no schema of their own. First the options' names are checked."""
        columns = self.options.get("columns")
        if columns is None:
            with_headers = str(self.options.get("includeheaders", "false")).lower() == "true"
            return ddl(name for name in COLUMNS if name != "headers" or with_headers)
        unknown = [name.strip() for name in columns.split(",") if name.strip() not in COLUMNS]
        if unknown:
            raise InvalidOption(f"columns: {', '.join(unknown)} is none of {', '.join(COLUMNS)}")
        return ddl(name.strip() for name in columns.split(","))

    @brief
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        options = source_options(self.options, streaming=False)
        kind = FilteringBatchReader if pushes_filters() else BatchReader
        return kind(options, wanted_columns(schema))

    @brief
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a streaming query."""
        options = source_options(self.options, streaming=True)
        return StreamReader(options, wanted_columns(schema))

    @brief
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer for a batch: `mode("append")`."""
        if overwrite:
            raise InvalidOption('mode: a log can only be appended to; write .mode("append")')
        return BatchWriter(self._job(schema))

    @brief
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, N802
        """Return a stream's writer. Output mode complete writes the whole table each time, as Spark's own sink does."""
        return StreamWriter(self._job(schema))

    def _job(self, schema: StructType) -> WriteJob:
        options = sink_options(self.options)
        check_brokers(options.connection)
        return new_job(options, row_reader(schema, options.topic))


def wanted_columns(schema: StructType) -> tuple[str, ...]:
    """Return the columns to decode: those of the reader's own schema, which may be fewer. Raises InvalidOption."""
    for field in schema.fields:
        if field.name not in COLUMNS:
            raise InvalidOption(f"schema: there is no column {field.name!r}; there are {', '.join(COLUMNS)}")
        column = COLUMNS[field.name]
        if field.dataType.simpleString() != column.spark:
            raise InvalidOption(f"schema: {field.name} is {column.spark}, not {field.dataType.simpleString()}")
    names = tuple(field.name for field in schema.fields)
    if not names:
        raise InvalidOption("schema: it has no columns")
    return names
