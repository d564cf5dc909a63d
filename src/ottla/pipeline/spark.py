"""Makes `format("ottla")` known to Spark by hand: `import ottla.pipeline.spark`, before or after the session starts.

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
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession as _SparkSession

from ottla.pipeline.connector.datasource import FORMAT, OttlaDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["FORMAT", "OttlaDataSource", "register"]


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
