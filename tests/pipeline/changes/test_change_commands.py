"""A job of mode upsert against a broker, without Spark: its load, its audit by the command, and what it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from ottla.cli.errors import ExitCode
from ottla.cli.main import run
from ottla.client.offset_spec import START
from ottla.core.clock import SystemClock
from ottla.pipeline.job_file.job import PipelineJob, read_job
from ottla.pipeline.loading.load import BackfillRange, LoadOutcome, load_topics, replay_topics
from ottla.pipeline.progress import ProgressReporter
from tests.pipeline.changes.keyed_topic import by_duckdb
from tests.support.in_process_tasks import InThisProcess
from tests.support.lakes import directory_of
from tests.support.ottla_process import OttlaProcess
from tests.support.topics import create_topic

pytestmark = pytest.mark.slow
TOPIC = "customers"
JOB = """
[brokers]
bootstrap = "{bootstrap}"
[lake]
path = "lake"
[[load]]
topics = ["customers"]
mode = "upsert"
buckets = 2
"""


class Job:
    """The job, its topic, and commands on it."""

    def __init__(self, at: Path, server: OttlaProcess, capsys: pytest.CaptureFixture[str]) -> None:
        self.file, self.capsys, self.bootstrap = at / "job.toml", capsys, server.bootstrap
        self.file.write_text(JOB.format(bootstrap=server.bootstrap))
        create_topic(server.bootstrap, TOPIC, config={"cleanup.policy": "compact"})

    @property
    def made(self) -> PipelineJob:
        made, found = read_job(self.file.read_text(), directory=self.file.parent, now_ms=0)
        assert made is not None, found.faults
        return made

    def send(self, *records: tuple[str, dict[str, Any] | None]) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for key, value in records:
            producer.produce(TOPIC, None if value is None else json.dumps(value).encode(), key.encode())
        assert producer.flush(60) == 0

    def load(self, backfill: BackfillRange | None = None) -> LoadOutcome:
        with ProgressReporter(SystemClock(), quiet=True).stage("load") as stage:
            return load_topics(self.made.loads[0], InThisProcess(), stage, backfill=backfill)

    def replay(self) -> LoadOutcome:
        with ProgressReporter(SystemClock(), quiet=True).stage("replay") as stage:
            return replay_topics(self.made.loads[0], InThisProcess(), stage)

    def audit(self, *options: str, code: int = 0) -> str:
        self.capsys.readouterr()
        found = run(["pipeline", "audit", "--job", str(self.file), *options])
        printed = self.capsys.readouterr()
        assert found == code, printed
        return printed.out

    def rows(self, what: str) -> Sequence[Any]:
        return by_duckdb(self.made.loads[0].tables(TOPIC).table.paths(), what)


@pytest.fixture
def job(tmp_path: Path, ottla_server: OttlaProcess, capsys: pytest.CaptureFixture[str]) -> Job:
    made = Job(tmp_path, ottla_server, capsys)
    made.send(("a", {"n": 1}), ("b", {"n": 2}), ("a", {"n": 3}), ("c", {"n": 4}), ("b", None))
    (done,) = made.load().done
    assert (done.records, done.lag) == (5, 0)
    return made


def test_a_job_keeps_the_last_row_of_each_key_and_its_audit_balances(job: Job) -> None:
    assert job.rows("decode(key), n") == [("a", 3), ("c", 4)]
    job.send(("c", {"n": 5}), ("d", {"n": 6}))
    (found,) = json.loads(job.audit("--format", "json"))
    assert (found["balanced"], found["faults"], found["total"]["waiting"]) == (True, [], 2)
    assert not job.load().failures
    assert job.rows("decode(key), n") == [("a", 3), ("c", 5), ("d", 6)]
    shown = job.audit()
    assert re.search(r"loaded +late +quarantined +replaced", shown, re.IGNORECASE)
    assert "the books balance" in shown


def test_the_audit_names_the_key_whose_row_is_missing(job: Job) -> None:
    DeltaTable(str(directory_of(job.made.loads[0].tables(TOPIC).table))).delete("n = 3")
    shown = job.audit(code=ExitCode.FAILED)
    assert "partition 0, offset 2, key a: 1 records of the log are in neither table" in shown


def test_offsets_are_not_loaded_a_second_time(job: Job) -> None:
    for outcome in (job.load(BackfillRange(START)), job.replay()):
        (failure,) = outcome.failures
        assert "are not loaded a second time" in failure.text
    assert job.rows("decode(key), n") == [("a", 3), ("c", 4)]
