"""Where Spark finds `format("ottla")` by itself: PySpark 4 looks into every top-level module named `pyspark_...`."""

from ottla.pipeline.connector.datasource import OttlaDataSource as DefaultSource

__all__ = ["DefaultSource"]
