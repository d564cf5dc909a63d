"""A JVM of Spark that is up, for drivers that a test starts as processes one after the other: each saves starting its own.

PySpark connects to the JVM that two variables name in place of starting one. Options and log of the JVM are then not
those of the driver, its directory is not either, and it outlives the driver: its end cannot be tested so.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

from tests.support.jvm import SHORT_RUN, java

STOP_S = 30.0


class SparkJava:
    """A running JVM, without a Spark context until a driver makes one. Raises `JavaNotFound`."""

    def __init__(self, log: Path) -> None:
        conf = SparkConf(loadDefaults=False).set("spark.driver.extraJavaOptions", " ".join(SHORT_RUN))
        with log.open("ab") as output, pytest.MonkeyPatch.context() as patched:
            patched.setenv("JAVA_HOME", str(java().parents[1]))
            patched.setenv("SPARK_LOCAL_IP", "127.0.0.1")
            self._gateway = launch_gateway(conf, {"stdout": output, "stderr": output})  # type: ignore[no-untyped-call]

    def variables(self) -> dict[str, str]:
        """Return what the environment of a driver says to connect to this JVM."""
        found = self._gateway.java_parameters
        return {"PYSPARK_GATEWAY_PORT": str(found.port), "PYSPARK_GATEWAY_SECRET": found.auth_token}

    def end_context(self) -> None:
        """Stop the context of a driver that was killed; one that came to its end has done so itself."""
        companion = getattr(getattr(self._gateway.jvm.org.apache.spark, "SparkContext$"), "MODULE$")
        active = companion.getActive()
        if active.isDefined():
            active.get().stop()

    def stop(self) -> None:
        """End the JVM."""
        self._gateway.shutdown()
        self._gateway.proc.stdin.close()  # whose end it waits for
        self._gateway.proc.wait(STOP_S)
