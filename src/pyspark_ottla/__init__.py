"""Registers `format("ottla")` with Spark: PySpark 4 imports every top-level module named `pyspark_...`.

One module that cannot be imported would keep Spark from finding any source at all, so where the pipeline's libraries
are missing this one is empty.
"""

import contextlib

with contextlib.suppress(ImportError):
    from ottla.pipeline.connector.datasource import OttlaDataSource as DefaultSource  # noqa: F401
