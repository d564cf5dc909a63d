"""Keeps the classes that Spark loads in an archive which the JVM maps: a start takes 7 s of processor time, not 12.

The archive is of one Java and one PySpark, and is made once, by a short job: `python -m tests.support.spark_classes`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from tests.support.class_archive import LIMIT_S, archive_in, make_archive

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "SPARK_SUBMIT_OPTS"
"""Spark's launcher gives its value to the JVM of every driver."""


def archive() -> Path:
    """The archive, made on first use; the JVM maps it only for the same Java and the same jars. Raises `JavaNotFound`."""
    return make_archive(archive_in(ROOT / "build" / "spark-classes", pyspark.__file__, pyspark.__version__), _write)


def _write(option: str) -> None:
    """Run a job in a JVM that writes the archive at its end."""
    subprocess.run(
        [sys.executable, "-m", "tests.support.spark_classes"],
        env={**os.environ, VARIABLE: option},
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=LIMIT_S,
    )


def run_job(directory: Path) -> None:
    """Use what most jobs use, and wait for the end of the JVM."""
    from pyspark import SparkContext

    from ottla.pipeline.session import SparkOptions, start_session

    session = start_session(SparkOptions(directory / "work", cores=1, short_run=True), print)
    frame = session.range(100).mapInArrow(lambda batches: batches, "id long").selectExpr("id % 3 as k", "'x' as v")
    frame.groupBy("k").count().toPandas()
    frame.write.parquet(str(directory / "table"))
    session.read.parquet(str(directory / "table")).orderBy("k").collect()
    gateway = SparkContext._gateway
    assert gateway is not None
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(LIMIT_S)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        run_job(Path(made))
