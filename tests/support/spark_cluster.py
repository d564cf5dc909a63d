"""A Spark cluster of separate processes on this machine, from the installed PySpark: one master, some workers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from ottla.pipeline.java import java_home
from tests.support.jvm import SHORT_RUN
from tests.support.processes import wait_for_line
from tests.support.spark_classes import VARIABLE

START_TIMEOUT_S = 60.0
HERE = "127.0.0.1"
_MASTER_AT = re.compile(rb"Starting Spark master at (spark://\S+)")


@dataclass
class SparkCluster:
    """A running cluster."""

    url: str
    directory: Path
    environment: dict[str, str]
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def add_worker(self, *, cores: int = 1) -> None:
        """One more worker process, registered with the master when this returns."""
        name = f"worker-{len(self.workers)}"
        options = ["--cores", str(cores), "--memory", "1500m", "--work-dir", str(self.directory / name)]
        main = "org.apache.spark.deploy.worker.Worker"
        process = _start(main, "--host", HERE, "--webui-port", "0", *options, self.url, environment=self.environment)
        self.workers.append(process)
        wait_for_line(process, b"Successfully registered with master", timeout_s=START_TIMEOUT_S)

    def alive(self) -> list[subprocess.Popen[bytes]]:
        """Return the workers that have not been killed."""
        return [worker for worker in self.workers if worker.poll() is None]

    def kill_worker(self, number: int) -> None:
        """Kill -9 of a worker and of every executor it has started."""
        _kill(self.workers[number])


@contextmanager
def spark_cluster(directory: Path, *, workers: int) -> Iterator[SparkCluster]:
    """Start a cluster, and leave nothing of it running."""
    environment = {
        **os.environ,
        "JAVA_HOME": str(java_home(os.environ, print)),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": HERE,
        "SPARK_DAEMON_MEMORY": "256m",
        # for master, workers and the executors that they start; the archive of classes is there if a test asked for it
        "JAVA_TOOL_OPTIONS": " ".join((*SHORT_RUN, os.environ.get(VARIABLE, ""))),
    }
    main = "org.apache.spark.deploy.master.Master"
    master = _start(main, "--host", HERE, "--port", "0", "--webui-port", "0", environment=environment)
    cluster: SparkCluster | None = None
    try:
        found = _MASTER_AT.search(wait_for_line(master, b"Starting Spark master at", timeout_s=START_TIMEOUT_S))
        assert found
        cluster = SparkCluster(found[1].decode(), directory, environment)
        for _ in range(workers):
            cluster.add_worker()
        yield cluster
    finally:
        for process in [*(cluster.workers if cluster is not None else []), master]:
            _kill(process)


def _start(main: str, *arguments: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    program = Path(environment["SPARK_HOME"]) / "bin" / "spark-class"
    return subprocess.Popen(
        [str(program), main, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,  # so that a kill of the group reaches the executors too
    )


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
