"""Reads tables in Spark without a jar, and makes `format("ottla")` known to Spark by hand.

`read_table(spark, "lake/orders")` returns a table as a DataFrame; `upsert_batches` is for `foreachBatch`.

`import ottla.pipeline.spark`, before or after the session starts, registers the data source.

Usually nothing needs to be imported: Spark 4 looks for data sources itself, once per JVM, and finds `pyspark_ottla`. It
looks with the interpreter that `PYSPARK_PYTHON` names, or else with the `python3` of PATH. Where that is another
environment's (a script run by the path of its virtual environment's interpreter), or where Spark looked before this
package was installed (a notebook), one import helps, or `register` for a session that is not the active one. This is
the one module whose import does something.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession as _SparkSession

from ottla.pipeline.changes.rule import BUCKETS
from ottla.pipeline.connector.datasource import FORMAT, OttlaDataSource
from ottla.pipeline.lake.lake import table_at
from ottla.pipeline.lake.lake_table import TableMismatch
from ottla.pipeline.lake.stores import store_at
from ottla.pipeline.lake.table_format import TableFormat, formats_at
from ottla.pipeline.loading.batch_upserts import ApplyBatch, BatchUpserts, key_rule

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["FORMAT", "OttlaDataSource", "read_table", "register", "upsert_batches"]


def read_table(session: SparkSession, path: str | Path, version: int | None = None) -> DataFrame:
    """Return a Delta or Iceberg table of a load as a DataFrame, read by Spark's own reader of Parquet, without a jar.

    The files are those of the table's newest version when this is called, or of `version`: the number of a Delta
    commit, the id of an Iceberg snapshot. Raises TableMismatch if there is no such table, version or file.
    """
    store = store_at(path)
    formats = formats_at(store)
    if len(formats) != 1:
        raise TableMismatch(f"there is no Delta or Iceberg table at {store.url}: name the location of one table")
    table = table_at(store, formats.pop(), version)
    files = table.files()
    if missing := [file for file in files if store.head(file.path) is None]:
        raise TableMismatch(
            f"{store.url}: {len(missing)} of the {len(files)} files of version {version or 'newest'} are gone: compact "
            "removes what is older than its `keep`. Read a newer version"
        )
    return table.dataframe(session, [store.location(file.path) for file in files])


def upsert_batches(
    path: str | Path,
    *,
    key: Sequence[str],
    query: str,
    deleted: str | None = None,
    history: bool = False,
    buckets: int = BUCKETS,
    table_format: str = TableFormat.DELTA,
) -> ApplyBatch:
    """Return what `foreachBatch` takes to replace rows of a table by those of a stream that reads `format("ottla")`.

    A batch has the columns topic, partition, offset and timestamp of the source, those in `key`, which identify a row,
    and any others. The last row of a key by offset is the table's; `deleted` names a column of booleans that delete it.
    With `history` former rows stay. Each batch is applied once; `query` names the stream and belongs to one checkpoint.
    """
    table = table_at(store_at(path), TableFormat(table_format))
    return BatchUpserts(table, key_rule(key, history=history, buckets=buckets), query, deleted)


def register(session: SparkSession) -> None:
    """Make `format("ottla")` known to a session, and let a session on this machine run this interpreter."""
    if not _finds_this_environment(os.environ) and (session.conf.get("spark.master") or "").startswith("local"):
        session.sparkContext.pythonExec = sys.executable
    session.dataSource.register(OttlaDataSource)


def _finds_this_environment(environment: Mapping[str, str]) -> bool:
    """Return whether Spark, started from here, runs Python where this package is installed, or where it is set to."""
    if "PYSPARK_PYTHON" in environment:
        return True
    found = shutil.which("python3", path=environment.get("PATH", os.defpath))
    return found is not None and Path(found).parent == Path(sys.executable).parent


if (_active := _SparkSession.getActiveSession()) is not None:
    register(_active)
elif not _finds_this_environment(os.environ):
    os.environ["PYSPARK_PYTHON"] = sys.executable
