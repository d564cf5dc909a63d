"""Jobs end to end, against a broker and a Spark session: what the stages say of each other's work, and of corruption."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from ottla.cli.errors import ExitCode
from ottla.client.offset_spec import parse
from ottla.pipeline.audit.run import COMPLETE_UNTIL
from ottla.pipeline.errors import failure_kind_of, is_expected
from ottla.pipeline.loading.load import BackfillRange
from ottla.pipeline.loading.plan import CannotLoad
from ottla.pipeline.loading.spark_host import SparkHost
from ottla.pipeline.reporting.values import InvalidReportSection
from ottla.pipeline.session import SparkFailed, SparkOptions, spark_step
from ottla.pipeline.stages.load import load_stage
from ottla.pipeline.stream.errors import InvalidExpression, InvalidFunction
from tests.conftest import Broker
from tests.pipeline.staged_job import AUDIT, OWN_STREAM, PARTITIONS, REPORT, STREAM, StagedJob, corrupt
from tests.support.lakes import directory_of
from tests.support.spark_java import SparkJava

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.external]

ROOT = Path(__file__).parents[2]
OWN_MODULE = """\
from pyspark.sql import functions as F
def per_kind(rows):
    cut = rows.groupBy(F.window("event_time", "10 minutes").getField("start").alias("window_start"), "kind")
    return cut.agg(F.count("*").alias("events"), F.sum("n").alias("total"))
def wrong(rows):
    return rows.groupBy("kinds").count()
"""
MakeJob = Callable[..., StagedJob]


@pytest.fixture
def make(tmp_path: Path, broker: Broker, spark: SparkSession, spark_options: SparkOptions) -> MakeJob:
    def made(**options: Any) -> StagedJob:
        host = SparkHost.of(spark, spark_options)
        return StagedJob(tmp_path, broker.bootstrap, f"events-{uuid.uuid4().hex[:8]}", host, **options)

    return made


def ottla(*arguments: str | Path, code: int) -> subprocess.CompletedProcess[str]:
    program = str(Path(sys.executable).with_name("ottla"))
    done = subprocess.run(
        [program, "pipeline", *map(str, arguments)], capture_output=True, text=True, check=False, timeout=180
    )
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.parametrize("table_format", [pytest.param("delta", marks=pytest.mark.oldest_spark), "iceberg"])
def test_the_stages_of_a_job_agree_on_the_data(make: MakeJob, table_format: str) -> None:
    job = make(table_format=table_format)
    job.send(range(30), bad=2, reported=True)
    first = job.run()
    assert first.ok
    assert list(first.results) == ["load", "stream", "audit", "report"]
    job.send(range(20, 40), reported=True)
    (books,) = job.run().results["audit"].data
    total = {n: books["total"][n] for n in ("produced", "in_log", "loaded", "quarantined", "missing", "duplicated")}
    every = 50 * PARTITIONS
    assert total == {
        "produced": every,
        "in_log": every,
        "loaded": every - 2 * PARTITIONS,
        "quarantined": 2 * PARTITIONS,
        "missing": 0,
        "duplicated": 0,
    }
    assert (books["balanced"], books["complete_until"]) == (True, "2015-05-17T10:30:00Z")
    assert job.table.properties()[COMPLETE_UNTIL] == books["complete_until"]
    assert job.windows() == job.batch() == job.published()
    assert sum(events for _, _, events, _ in job.windows()) == total["loaded"]
    page = (job.directory / "report.html").read_text()
    assert f"<b>{total['loaded']}</b><span>events" in page
    assert "the books balance" in page


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_the_completeness_watermark_waits_for_the_load_and_goes_back_after_a_loss(
    make: MakeJob, table_format: str
) -> None:
    job = make(table_format=table_format, sections=AUDIT)
    job.send(range(25), reported=True)
    job.run("load")
    job.send(range(15, 45))
    books = job.audit()
    assert (books["balanced"], books["total"]["waiting"]) == (True, 30 * PARTITIONS)
    assert job.table.properties()[COMPLETE_UNTIL] == "2015-05-17T10:10:00Z", "the oldest that waits is of 10:15"
    job.run("load")
    assert job.audit()["complete_until"] == "2015-05-17T10:40:00Z"
    assert job.table.properties()[COMPLETE_UNTIL] == "2015-05-17T10:40:00Z"
    job.report(partition=1, first_offset=3, last_offset=12, count=11, minute=10)
    lost = job.audit()
    assert (lost["balanced"], lost["complete_until"]) == (False, "2015-05-17T10:10:00Z")
    assert job.table.properties()[COMPLETE_UNTIL] == "2015-05-17T10:10:00Z"


def without_a_row(rows: pa.Table) -> pa.Table:
    at = rows["offset"].to_pylist().index(7)
    return pa.concat_tables([rows.slice(0, at), rows.slice(at + 1)])


def with_a_row_twice(rows: pa.Table) -> pa.Table:
    at = rows["offset"].to_pylist().index(7)
    return pa.concat_tables([rows, rows.slice(at, 1)])


@pytest.mark.parametrize(
    ("change", "kind", "expected"),
    [
        (without_a_row, "missing", "1 records of the log are in neither table"),
        (with_a_row_twice, "duplicated", "1 rows repeat an offset"),
    ],
)
def test_a_row_too_few_or_too_many_is_named_with_partition_and_offset(
    make: MakeJob, change: Callable[[pa.Table], pa.Table], kind: str, expected: str
) -> None:
    job = make(sections=AUDIT)
    job.send(range(30))
    job.run("load")
    assert job.audit()["complete_until"] == "2015-05-17T10:20:00Z"
    corrupt(directory_of(job.table), change)
    text = ottla("audit", "--job", job.file, code=ExitCode.FAILED)
    assert "THE BOOKS DO NOT BALANCE" in text.stdout
    (line,) = [line for line in text.stdout.splitlines() if expected in line]
    assert line == f"{job.topic}: partition 0, offset 7: {expected}"
    assert job.table.properties()[COMPLETE_UNTIL] == "2015-05-17T10:00:00Z", "from the bucket of the fault on"
    (books,) = json.loads(ottla("audit", "--job", job.file, "--format", "json", code=ExitCode.FAILED).stdout)
    (fault,) = books["faults"]
    assert {name: fault[name] for name in ("kind", "partition", "first_offset", "end_offset", "count", "bucket")} == {
        "kind": kind,
        "partition": 0,
        "first_offset": 7,
        "end_offset": 8,
        "count": 1,
        "bucket": "2015-05-17T10:00:00Z",
    }
    load_stage(job.context(), BackfillRange(parse("7", now_ms=0), parse("8", now_ms=0)))
    assert job.audit()["balanced"], "after a backfill the range is complete again"
    assert job.table.properties()[COMPLETE_UNTIL] == "2015-05-17T10:20:00Z"


def test_offsets_deleted_before_they_were_loaded_are_named_and_those_deleted_after_are_no_fault(make: MakeJob) -> None:
    job = make(sections=AUDIT)
    job.send(range(20))
    job.run("load")
    job.delete_before(0, 15)
    books = job.audit()
    assert (books["balanced"], books["total"]["expired"]) == (True, 15), "these were loaded in time"
    job.send(range(20, 30))
    job.delete_before(0, 26)
    (fault,) = job.audit()["faults"]
    assert (fault["kind"], fault["partition"], fault["first_offset"], fault["end_offset"]) == ("unread", 0, 20, 26)
    assert not job.run("audit").ok
    with pytest.raises(CannotLoad, match="offsets 20 to 25 were deleted"):
        job.run("load")


def test_the_audit_names_acknowledged_records_that_the_log_lacks(make: MakeJob) -> None:
    job = make(sections=AUDIT)
    job.send(range(12), reported=True)
    job.run("load")
    assert job.audit()["balanced"]
    job.report(partition=1, first_offset=0, last_offset=9, count=13, minute=0)
    (fault,) = job.audit()["faults"]
    assert {name: fault[name] for name in ("kind", "partition", "first_offset", "end_offset", "count")} == {
        "kind": "lost",
        "partition": 1,
        "first_offset": 0,
        "end_offset": 10,
        "count": 13,
    }
    printed = ottla("audit", "--job", job.file, code=ExitCode.FAILED).stdout
    assert "partition 1, offsets 0 to 9: 13 records that producers had acknowledged are not in the log" in printed


@pytest.mark.parametrize("moment", ["before the commit", "after the commit"])
def test_a_stream_killed_with_9_and_started_again_ends_with_the_windows_of_a_batch(
    make: MakeJob, moment: str, spark_java: SparkJava
) -> None:
    job = make(sections=STREAM)
    job.send(range(20))
    job.run()
    job.send(range(15, 35), bad=1)
    job.run("load")
    command = [sys.executable, "-m", "tests.pipeline.staged_job", str(job.file), moment]
    killed = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, timeout=180)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    spark_java.end_context()
    assert job.published() != job.batch(), "it was killed before it had published"
    assert (job.windows() == job.batch()) == (moment == "after the commit")
    job.run()
    assert job.windows() == job.batch() == job.published()


def test_a_user_defined_function_is_kept_up_to_date_by_a_job(
    make: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_functions.py").write_text(OWN_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    job = make(sections=OWN_STREAM, function="my_functions:per_kind")
    for minutes in (range(20), range(10, 30)):
        job.send(minutes)
        job.run()
        assert job.windows() == job.batch() == job.published()
    job.use("my_functions:wrong")
    with pytest.raises(InvalidExpression, match=r"stream per_kind: .*kinds"):
        job.run("stream")
    job.use("my_functions:none")
    with pytest.raises(InvalidFunction, match="has no function none"):
        job.run("stream")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("sum(n)", "sum(nothing)", r"stream per_kind: values\.total = 'sum\(nothing\)': .*nothing"),
        ("sum(n)", "sum(n +)", r"stream per_kind: values\.total = 'sum\(n \+\)': .*PARSE_SYNTAX_ERROR"),
        ("top(cast(n as string), 1)", "top(m, 1)", r"stream per_kind: values\.best = 'top\(m, 1\)': .*`m`"),
        ('by = ["kind"]', 'by = ["kine"]', r"stream per_kind: by = 'kine': .*kine"),
        ('window = "10m"', 'window = "10m"\nwhere = "n >"', "stream per_kind: where = 'n >': "),
        ("values = {", 'columns.k = "left(kin, 1)"\nvalues = {', r"stream per_kind: columns\.k = 'left\(kin, 1\)': "),
    ],
)
def test_an_expression_that_spark_does_not_understand_is_named_with_its_stream(
    loaded: StagedJob, old: str, new: str, expected: str
) -> None:
    with loaded.rewritten(old, new), pytest.raises(InvalidExpression, match=expected) as failure:
        loaded.run("stream")
    assert_is_a_mistake_in_the_job(failure.value)


def assert_is_a_mistake_in_the_job(failure: Exception) -> None:
    """It ends a command with one line and the code for bad input."""
    assert "\n" not in str(failure)
    assert is_expected(failure)
    assert failure_kind_of(failure)[0].name == "BAD_INPUT"


@pytest.fixture(scope="module")
def loaded(
    tmp_path_factory: pytest.TempPathFactory, broker: Broker, spark: SparkSession, spark_options: SparkOptions
) -> StagedJob:
    """A job whose table is loaded, for tests that leave it alone."""
    directory = tmp_path_factory.mktemp("loaded")
    job = StagedJob(directory, broker.bootstrap, f"events-{uuid.uuid4().hex[:8]}", SparkHost.of(spark, spark_options))
    job.send(range(6))
    job.run("load")
    return job


@pytest.mark.usefixtures("spark_java")
@pytest.mark.parametrize(
    ("command", "old", "new", "expected"),
    [
        ("stream", STREAM, "", ["the job has no [[stream]]"]),
        ("report", REPORT, "", ["the job has no [report]"]),
        ("stream", "sum(n)", "total(n)", ["'total(n)' is no measure"]),
        ("stream", "sum(n)", "sum(nothing)", ["stream per_kind: values.total = 'sum(nothing)'", "job file"]),
    ],
)
def test_a_mistake_in_the_job_ends_a_command_with_a_line_and_code_5(
    loaded: StagedJob, tmp_path: Path, command: str, old: str, new: str, expected: list[str]
) -> None:
    text = loaded.file.read_text()
    for section in (STREAM, REPORT):
        old = section.format(**vars(loaded)) if old == section else old
    assert old in text
    file = tmp_path / "job.toml"
    lake = f'path = "{loaded.directory / "lake"}"'
    file.write_text(text.replace(old, new).replace('path = "lake"', lake))
    done = ottla(
        command, "--job", file, "--quiet", *(["--no-load"] if command == "stream" else []), code=ExitCode.BAD_INPUT
    )
    for piece in expected:
        assert piece in done.stderr
    assert len(done.stderr.splitlines()) <= 3, done.stderr


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ("sum(n) as total from nowhere", "section '': .*nowhere"),
        ("sum(n) total total from events", "section '': .*PARSE_SYNTAX_ERROR"),
        ("1 / (count(*) - count(*)) as total from events", "section '': .*DIVIDE_BY_ZERO"),
        ("sum(n) as total from events group by kind", "section '': figures needs one row; there are 3 rows"),
    ],
)
def test_a_query_of_the_report_that_does_not_work_is_named_by_its_section(
    loaded: StagedJob, new: str, expected: str
) -> None:
    asks = loaded.rewritten("sum(n) as total from events", new)
    with asks, pytest.raises(InvalidReportSection, match=expected) as failure:
        loaded.run("report")
    assert_is_a_mistake_in_the_job(failure.value)


def test_a_function_that_is_not_there_ends_a_command_before_spark_starts(make: MakeJob) -> None:
    job = make(sections=OWN_STREAM, function="no_such_module:f")
    done = ottla("stream", "--no-load", "--job", job.file, "--function", job.function, code=ExitCode.BAD_INPUT)
    assert "No module named 'no_such_module'" in done.stderr
    assert "module:function" in done.stderr
    assert not (job.directory / "spark").exists()


def test_a_failing_step_says_what_failed_and_where_the_rest_is(
    spark: SparkSession, spark_options: SparkOptions
) -> None:
    def fail(_: object) -> object:
        raise ValueError("the third piece is broken")

    match = "landing failed: ValueError: the third piece is broken"
    with pytest.raises(SparkFailed, match=match) as failure, spark_step("landing", spark_options.log):
        spark.range(1).mapInArrow(fail, "id long").collect()  # type: ignore[arg-type]
    assert str(spark_options.log) in str(failure.value)
    assert "Traceback" in spark_options.log.read_text()
