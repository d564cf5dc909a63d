"""A job on a Spark cluster of separate processes; a worker dies in each of its stages, and the counts are exact."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from confluent_kafka import Producer

from tests.processes.cli_runner import Cli
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import until
from tests.support.spark_cluster import SparkCluster, spark_cluster

pytestmark = [pytest.mark.spark, pytest.mark.slow]

RECORDS = 40_000
PARTITIONS = 4
JOB = """\
[brokers]
bootstrap = "{bootstrap}"
[lake]
path = "lake"
[spark]
master = "{master}"
work = "spark"
[[load]]
topics = ["events"]
commit_offsets = 1000
[load.time]
from = "field"
field = "at"
[[stream]]
name = "per_kind"
from = "events"
window = "1h"
by = ["kind"]
topic = "per-kind"
[stream.values]
events = "count"
total = "sum(n)"
[[stream]]
name = "held_up"
from = "events"
window = "1h"
by = ["kind"]
topic = "held-up"
function = "held_up:per_kind"
"""
HELD_UP = """\
import time
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import functions as F

DIRECTORY = Path({directory!r})


def per_kind(rows):
    directory = DIRECTORY

    def held_up(batches):
        (directory / f"task-{{TaskContext.get().taskAttemptId()}}").touch()
        deadline = time.monotonic() + 120
        while not (directory / "go").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield from batches

    start = F.window("event_time", "1 hour")["start"].alias("window_start")
    counted = rows.mapInArrow(held_up, rows.schema).groupBy(start, "kind")
    return counted.agg(F.count("*").alias("events"), F.sum("n").alias("total"))
"""


@pytest.fixture
def cluster(tmp_path: Path, spark_classes: None) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path / "cluster", workers=2) as found:
        yield found


def produce(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    for n in range(RECORDS):
        at = f"2015-05-17T{n % 24:02}:00:00Z"
        value = json.dumps({"at": at, "n": n, "kind": "abc"[n % 3]})
        producer.produce("events", value, partition=n % PARTITIONS)
        if n % 1000 == 0:
            producer.poll(0)
    assert producer.flush(30) == 0


def started(job: Path, **environment: str) -> subprocess.Popen[bytes]:
    """`ottla pipeline run` of it as a process."""
    program = [sys.executable, "-c", "from ottla.cli.main import main; main()"]
    command = [*program, "pipeline", "run", "--job", str(job), "--function", "held_up:per_kind"]
    around = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **environment}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=around)


def test_workers_die_during_a_load_and_a_stream_and_every_offset_and_window_is_exact(
    cluster: SparkCluster, ottla_server: OttlaProcess, tmp_path: Path
) -> None:
    cli = Cli(ottla_server.bootstrap, tmp_path)
    cli.out("topic", "create", "events", "--partitions", str(PARTITIONS))
    produce(ottla_server.bootstrap)
    job = tmp_path / "job.toml"
    job.write_text(JOB.format(bootstrap=ottla_server.bootstrap, master=cluster.url))
    (tmp_path / "held_up.py").write_text(HELD_UP.format(directory=str(tmp_path)))
    log = tmp_path / "lake" / "events" / "_delta_log"
    with started(job, PYTHONPATH=str(tmp_path)) as running:
        # the first commits are made: executors of both workers are at work, and most of the load is still to come
        until(lambda: len(list(log.glob("*.json"))) > 3, timeout_s=120, what="the load's first commits")
        before = len(list(log.glob("*.json")))
        cluster.kill_worker(0)
        cluster.add_worker()
        # a task on each of the two workers is in the middle of its rows
        until(lambda: len(list(tmp_path.glob("task-*"))) >= 2, timeout_s=240, what="two tasks of the stream")
        cluster.kill_worker(-1)
        (tmp_path / "go").touch()
        out, errors = running.communicate(timeout=240)
    assert running.returncode == 0, errors.decode()
    assert b"Traceback" not in errors
    assert len(list(log.glob("*.json"))) > before, "the first worker died too late to matter"
    assert b"40,000 rows" in out
    rows = counted('count(*), count(distinct (partition, "offset")), sum(n)', tmp_path / "lake" / "events")
    assert rows == (RECORDS, RECORDS, sum(range(RECORDS)))
    assert len(list(tmp_path.glob("task-*"))) > 2, "no task was tried again"
    for table in ("per_kind", "held_up"):
        windows = counted("sum(events), sum(total), count(*)", tmp_path / "lake" / table)
        assert windows == (RECORDS, sum(range(RECORDS)), 24), table
    assert cli.json("pipeline", "audit", "--job", str(job))[0]["balanced"]


def counted(what: str, table: Path) -> tuple[Any, ...]:
    """What an independent reader counts in a table's files."""
    query = f"select {what} from read_parquet({data_files(table)!r}, union_by_name=true)"
    return tuple(duckdb.connect().execute(query).fetchall()[0])


def data_files(table: Path) -> list[str]:
    """The files of a Delta table's newest version, from its log alone."""
    files: dict[str, bool] = {}
    for entry in sorted((table / "_delta_log").glob("*.json")):
        for line in entry.read_text().splitlines():
            action: dict[str, Any] = json.loads(line)
            if "add" in action:
                files[action["add"]["path"]] = True
            if "remove" in action:
                files.pop(action["remove"]["path"], None)
    return [str(table / path) for path in files]
