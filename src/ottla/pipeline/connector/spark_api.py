"""Chooses between the versions of PySpark's API for data sources: all that differs from 4.0 to 4.3 is here.

4.0 is the base. 4.1 hands Arrow batches to the writer of a stream and pushes filters down to the reader of a batch.
4.2 passes the start of a micro-batch and a read limit to the reader of a stream, and prepares it for
`Trigger.AvailableNow`. A method that an older Spark does not have is never called there.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

_FILTER_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"

if TYPE_CHECKING:

    class StreamArrowWriter(DataSourceStreamWriter):
        """A stream's writer that gets Arrow batches."""

    class SupportsTriggerAvailableNow:
        """A stream's reader that reads up to the end of the log at the start of the query, in several micro-batches."""

else:
    StreamArrowWriter = getattr(datasource, "DataSourceStreamArrowWriter", None)
    if StreamArrowWriter is None:  # 4.0 hands Arrow batches to the writers of batches only

        class StreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
            """A stream's writer that gets Arrow batches."""

    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:

        class SupportsTriggerAvailableNow:
            """Spark 4.0 and 4.1 read everything as one micro-batch."""


def pushes_filters() -> bool:
    """Return whether Spark plans a batch with filters in this process.

    With `spark.sql.python.filterPushdown.enabled` it does so in a worker of its own. In every other worker it refuses
    a reader that could take filters.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _FILTER_WORKER in sys.modules or getattr(main, "name", None) == _FILTER_WORKER


def read_limit(*, most: int | None, least: int | None) -> Any:
    """Return the limit of each micro-batch as Spark 4.2 passes it back with every request for the latest offset."""
    from pyspark.sql.streaming import datasource as limits  # type: ignore[attr-defined, unused-ignore]

    if most is not None:
        return limits.ReadMaxRows(most)
    return limits.ReadAllAvailable() if least is None else limits.ReadMinRows(least)


def ignores_options(limit: object) -> bool:
    """Return whether a trigger reads everything whatever the options limit, as `Trigger.Once` does."""
    return type(limit).__name__ == "ReadAllAvailable"
