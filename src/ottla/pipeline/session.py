"""Starts a Spark session with all it needs, and keeps its output in a log file.

Spark prints a page before it does anything, and a stack of Java frames when something fails. Here both go to one file,
whose path is part of the error a person sees.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from ottla.pipeline.java import Notify, java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG_NAME = "spark.log"
_JAVA_END_S = 1.0
TASK_ATTEMPTS = 4
"""Maximum attempts of a task on this machine, as on a cluster: a worker that died costs its task, not the load."""
_LOCAL = re.compile(r"local(\[(?P<cores>\d+|\*)(?P<attempts>, *\d+)?\])?$")
_EXCEPTION = re.compile(r"^(?:\w+\.)*([A-Z]\w+: .+)")
_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{ISO8601}} %p %c{{1}}: %m%n%ex
"""


class SparkFailed(RuntimeError):
    """A step on Spark failed. The message names the step, the reason in one line, and the log with the rest."""


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """The options of a Spark session."""

    work: Path
    master: str | None = None
    """A Spark master's URL; None is this machine, all its cores."""
    cores: int = 0
    """The number of cores of this machine; 0 is all."""
    short_run: bool = False
    """On this machine only: less compiling. It saves a third of a short run's CPU time and costs a long one more."""

    @property
    def log(self) -> Path:
        """The file with the output of Spark and Java."""
        return self.work / LOG_NAME

    @property
    def is_local(self) -> bool:
        """Whether driver and tasks are one process on this machine."""
        return self.master is None or _LOCAL.match(self.master) is not None

    @property
    def master_url(self) -> str:
        """Return the value of `spark.master`.

        >>> [SparkOptions(Path(), master).master_url for master in (None, "local[2]", "local[2,1]", "spark://a:7077")]
        ['local[*,4]', 'local[2,4]', 'local[2,1]', 'spark://a:7077']
        """
        master = self.master or f"local[{self.cores or '*'}]"
        local = _LOCAL.match(master)
        return f"local[{local['cores'] or 1},{TASK_ATTEMPTS}]" if local and not local["attempts"] else master


def start_session(options: SparkOptions, notify: Notify) -> SparkSession:
    """Start a session, which the caller stops. Raises JavaNotFound or SparkFailed."""
    options.work.mkdir(parents=True, exist_ok=True)
    home = java_home(os.environ, notify)
    os.environ.update(
        JAVA_HOME=str(home),
        PYSPARK_PYTHON=sys.executable,  # workers find what this process finds
        PYSPARK_DRIVER_PYTHON=sys.executable,
        PYARROW_IGNORE_TIMEZONE="1",
    )
    if options.is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # a laptop's own name often resolves to nothing
    with spark_step("starting Spark", options.log):
        return _launch(options)


def _launch(options: SparkOptions) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    log4j = options.work / "log4j2.properties"
    log4j.write_text(_LOG4J.format(log=options.log))
    _leave_former_jvm()
    conf = SparkConf().setAll(list(_settings(options, log4j).items()))
    with options.log.open("ab") as log:  # what Java prints before its own logging is configured
        gateway = launch_gateway(conf=conf, popen_kwargs={"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # its tracebacks of a lost Java process are in our error
    logging.getLogger().addFilter(_is_not_of_py4j)
    context = SparkContext(conf=conf, gateway=gateway)
    return SparkSession(context)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Filter the root logger: py4j reports a connection that was reset there, not with its own logger."""
    return "py4j" not in PurePath(record.pathname).parts


def _leave_former_jvm() -> None:
    """Shut down the former JVM.

    PySpark keeps a process's first JVM for all its sessions, with the jars and the log file of that first one.
    """
    from pyspark import SparkContext

    former = SparkContext._gateway  # noqa: SLF001 - PySpark has no other way to it
    if former is None or SparkContext._active_spark_context is not None:  # noqa: SLF001
        return
    former.shutdown()
    if former.proc is not None:
        former.proc.stdin.close()  # whose end it waits for
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001


def _settings(options: SparkOptions, log4j: Path) -> dict[str, str]:
    cores = options.cores or os.cpu_count() or 1
    java_options = f"-Dlog4j2.configurationFile={log4j.absolute().as_uri()}"  # as a URI: spaces would split options
    settings = {
        "spark.app.name": "ottla",
        "spark.master": options.master_url,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.shuffle.partitions": str(max(2, cores)),
        "spark.sql.warehouse.dir": str(options.work / "warehouse"),
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",  # listing by a job is slower
        "spark.speculation": "false",  # a task writes files: a second one would only leave orphaned files
        "spark.driver.extraJavaOptions": java_options,
    }
    if options.is_local:
        settings |= {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.extraJavaOptions": java_options
            + " -XX:+UseSerialGC"
            + (" -XX:TieredStopAtLevel=1" if options.short_run else ""),
        }
    return settings


@contextlib.contextmanager
def spark_step(step: str, log: Path) -> Iterator[None]:
    """Turn Spark's exceptions into one readable line and the log's path. Ottla's own errors pass as they are."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError, ConnectionError, EOFError) as failure:
        ended = _java_ended()
        if ended is None and isinstance(failure, ConnectionError | EOFError):
            raise
        with log.open("a") as file:
            file.write(f"{step}:\n{failure}\n")
        reason = ended or _reason(str(failure))
        raise SparkFailed(f"{step} failed: {reason} (details: {log})") from failure


def _java_ended() -> str | None:
    """Return how Spark's Java process ended, if it did: then Spark's own exceptions only name the call."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - PySpark has no other way to it
    if process is None:
        return None
    try:
        code = process.wait(timeout=_JAVA_END_S)
    except subprocess.TimeoutExpired:
        return None
    if code >= 0:
        return f"Spark's Java process ended with exit code {code}"
    memory = ", often for lack of memory" if -code == signal.SIGKILL else ""
    return f"Spark's Java process was killed by signal {-code}{memory}"


def _reason(text: str) -> str:
    r"""Return the line a person needs from Spark's many: the last exception named in it, or the first line.

    >>> _reason("An exception was thrown.\nTraceback:\n  File x\nottla.core.errors.OffsetOutOfRange: no offset 7\n")
    'OffsetOutOfRange: no offset 7'
    >>> _reason("[PATH_NOT_FOUND] Path does not exist")
    '[PATH_NOT_FOUND] Path does not exist'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [match[1] for line in lines if (match := _EXCEPTION.match(line))]
    return named[-1] if named else (lines or ["no reason given"])[0]
