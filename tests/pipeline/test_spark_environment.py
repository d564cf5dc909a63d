"""Spark's processes around a job: which Python they run, and what is reported when the Java process dies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ottla.cli.options import OutputFormat
from ottla.cli.pipeline_jobs import Runner
from ottla.pipeline import spark as by_hand
from ottla.pipeline.java import JavaNotFound, java_home
from ottla.pipeline.stages.runner import Round, StageResult
from ottla.records.builder import NewRecord, build_batch
from tests.support.ottla_process import OttlaProcess
from tests.support.topics import create_topic, write_batches

IMPORT = "import ottla.pipeline.spark\n"
READ = """\
from pyspark.sql import SparkSession
{before}
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
{after}
reader = spark.read.format("ottla").option("kafka.bootstrap.servers", "{bootstrap}").option("subscribe", "in")
print("rows:", reader.load().count())
"""
DIE = """\
import os, signal, threading, time
from pathlib import Path
from pyspark import SparkContext
from ottla.pipeline.loading.spark_host import SparkHost
from ottla.pipeline.session import SparkFailed, SparkOptions, spark_step
options = SparkOptions(Path("{work}"), cores=1, short_run=True)
host = SparkHost(options, lambda _: None)
session = host.session()
pid = SparkContext._gateway.proc.pid
runs = Path("{work}").with_name("task-runs")
def sleepy(batches):
    runs.touch()
    time.sleep(60)
    yield from batches
if "{when}" == "it answers nothing":
    os.kill(pid, signal.SIGSTOP)  # then its end resets the connection: it has not read the command
def kill():
    while "{when}" == "tasks run" and not runs.exists():
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
threading.Timer(0.5, kill).start()
try:
    with spark_step("loading", options.log):
        session.range(1).mapInArrow(sleepy, "id long").collect()
except SparkFailed as failure:
    print(failure)
host.stop()
"""


@pytest.fixture
def java() -> Path:
    try:
        return java_home(os.environ, print)
    except JavaNotFound as error:
        pytest.skip(f"no Java for Spark: {error}")


def run_script(script: str, at: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    (at / "job.py").write_text(script)
    command = [sys.executable, str(at / "job.py")]
    without = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    return subprocess.run(
        command, env=without | environment, cwd=at, capture_output=True, text=True, check=False, timeout=240
    )


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("where", ["before", "after"])
def test_the_source_works_from_an_interpreter_whose_environment_is_not_on_path(
    tmp_path: Path, ottla_server: OttlaProcess, java: Path, where: str
) -> None:
    create_topic(ottla_server.bootstrap, "in")
    write_batches(ottla_server.bootstrap, "in", [bytes(build_batch([NewRecord(None, b"x", 0)] * 3))])
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(sys._base_executable)  # type: ignore[attr-defined]
    path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
    imports = {"before": "", "after": ""} | {where: IMPORT}
    script = READ.format(bootstrap=ottla_server.bootstrap, **imports)
    done = run_script(script, tmp_path, PATH=path, JAVA_HOME=str(java), SPARK_LOCAL_IP="127.0.0.1")
    assert "rows: 3" in done.stdout, done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("when", ["a job is planned", "it answers nothing", "tasks run"])
def test_a_java_process_that_dies_is_one_line_and_the_path_of_the_log(tmp_path: Path, java: Path, when: str) -> None:
    done = run_script(DIE.format(work=tmp_path / "spark", when=when), tmp_path, JAVA_HOME=str(java))
    reason = "Spark's Java process was killed by signal 9, often for lack of memory"
    log = tmp_path / "spark" / "spark.log"
    assert done.stdout == f"loading failed: {reason} (details: {log})\n", done.stderr
    assert done.stderr == ""


def test_the_interpreter_on_path_is_left_alone_where_it_is_the_environments(tmp_path: Path) -> None:
    assert by_hand._finds_this_environment({"PATH": str(Path(sys.executable).parent)})
    assert by_hand._finds_this_environment({"PATH": str(tmp_path), "PYSPARK_PYTHON": "/other/python"})
    assert not by_hand._finds_this_environment({"PATH": str(tmp_path)})


def test_every_and_quiet_print_faults_only(capsys: pytest.CaptureFixture[str]) -> None:
    def printed(every_ms: int | None, *, quiet: bool, shape: OutputFormat = OutputFormat.TABLE) -> str:
        job: Any = type("Job", (), {"every_ms": every_ms})
        done = Round(
            {"load": StageResult("3 rows"), "audit": StageResult("a fault", ok=False)}, {"load": 1, "audit": 1}
        )
        Runner(job, shape, None, quiet)._print_round(done)
        return capsys.readouterr().out

    assert printed(1000, quiet=True) == "audit    a fault\n"
    assert printed(1000, quiet=False) == printed(None, quiet=True) == "load     3 rows\naudit    a fault\n"
    assert "3 rows" not in printed(1000, quiet=True, shape=OutputFormat.JSON)
    assert '"load"' in printed(1000, quiet=True, shape=OutputFormat.JSON)
