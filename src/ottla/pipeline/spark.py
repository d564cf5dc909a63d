"""The door by hand: `import ottla.pipeline.spark` makes `format("ottla")` known to the Spark session that runs.

Usually nothing needs to be imported: Spark 4 looks for data sources itself, once per JVM, and finds `pyspark_ottla`.
Where it looked before this package was installed (a notebook, a long-lived cluster), one import helps, or `register`
for a session that is not the active one. This is the one module whose import does something.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import SparkSession as _SparkSession

from ottla.pipeline.connector.datasource import FORMAT, OttlaDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["FORMAT", "OttlaDataSource", "register"]


def register(session: SparkSession) -> None:
    """Make `format("ottla")` known to a session."""
    session.dataSource.register(OttlaDataSource)


if (_active := _SparkSession.getActiveSession()) is not None:
    register(_active)
