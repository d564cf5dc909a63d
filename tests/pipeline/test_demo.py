"""The main job as a person runs it, judged from outside: DuckDB on the tables' files, a consumer on the topics."""

from __future__ import annotations

import gzip
import io
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import pytest
from confluent_kafka import Consumer
from deltalake import DeltaTable
from rich.console import Console

from ottla.pipeline import demo
from ottla.pipeline.demo_broker import free_port, start_demo_broker
from ottla.pipeline.demo_job import DemoJob
from ottla.pipeline.job_file.job import read_job
from ottla.pipeline.produce import keyed, lines_of
from tests.conftest import Broker
from tests.pipeline.demo_process import run_demo
from tests.support.processes import until, wait_for_line
from tests.support.spark_java import SparkJava

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.external, pytest.mark.xdist_group("drivers")]

LINE = '203.0.113.%d - - [17/May/2015:%02d:%02d:03 +0000] "GET /%s HTTP/1.1" %d 100 "-" "agent"'
LINES = [LINE % (n % 50, n % 6, n % 60, ("blog/x", "", "img")[n % 3], (200, 200, 404, 301)[n % 4]) for n in range(400)]
BAD = ["this is no access log", "", '203.0.113.1 - - [31/Feb/2015:00:00:00 +0000] "GET / HTTP/1.1" 200 1']


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    path = tmp_path / "my-access.log.gz"
    path.write_bytes(gzip.compress("\r\n".join([*LINES, *BAD]).encode()))
    return path


@pytest.fixture
def topics() -> tuple[str, str]:
    """Names of the log's and the aggregates' topic that no other test uses, for the broker is shared."""
    name = uuid.uuid4().hex[:8]
    return f"web-access-{name}", f"web-traffic-{name}"


def rows_in(table: Path, what: str, rest: str = "") -> list[tuple[Any, ...]]:
    files = [unquote(uri.removeprefix("file://")) for uri in DeltaTable(table).file_uris()]
    return duckdb.execute(f"select {what} from read_parquet($1, hive_partitioning = true) {rest}", [files]).fetchall()


def offsets_in(lake: Path) -> Counter[tuple[Any, ...]]:
    return Counter(
        rows_in(lake / "requests", 'partition, "offset"') + rows_in(lake / "requests_quarantine", 'partition, "offset"')
    )


def last_values(bootstrap: str, topic: str) -> dict[bytes, dict[str, Any]]:
    """What a compacted topic says: the last value of each key."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": uuid.uuid4().hex,
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
    }
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    found: dict[bytes, dict[str, Any]] = {}
    at_end: set[int | None] = set()
    while len(at_end) < 4:
        message = consumer.poll(30)
        assert message is not None, "the topic gives nothing"
        if message.error():
            at_end.add(message.partition())
        else:
            found[message.key() or b""] = json.loads(message.value() or b"null")
    consumer.close()
    return found


def program(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`ottla` as at a prompt."""
    command = [str(Path(sys.executable).with_name("ottla")), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)


def test_the_demo_with_a_broker_of_its_own_carries_every_line_into_the_lake(
    tmp_path: Path, log_file: Path, spark_java: SparkJava
) -> None:
    output = tmp_path / "the output"
    done = run_demo(input_file=log_file, output=output, output_format="json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["balanced"], result["faults"], result["lines"], result["unacknowledged"]) == (True, [], 403, 0)
    total = result["books"]["total"]
    assert {name: total[name] for name in ("produced", "in_log", "loaded", "quarantined", "missing", "waiting")} == {
        "produced": 403,
        "in_log": 403,
        "loaded": 400,
        "quarantined": 3,
        "missing": 0,
        "waiting": 0,
    }
    assert len(result["books"]["partitions"]) == 4
    assert Counter(status for (status,) in rows_in(output / "lake" / "requests", "status")) == {
        200: 200,
        404: 100,
        301: 100,
    }
    kept = rows_in(output / "lake" / "requests_quarantine", "topic, raw, reason is not null")
    assert Counter(kept) == {("web-access", line.encode(), True): 1 for line in BAD}
    assert set(offsets_in(output / "lake").values()) == {1}
    page = (output / "report.html").read_text()
    assert "<b>400</b><span>requests" in page
    assert "the books balance" in page

    printed, logged = stay_until_ctrl_c(tmp_path, "-i", str(log_file), "--repeat", "2", "--output", output.name)
    assert "the books balance" in printed
    assert str(output / "report.html") in printed
    assert "800 rows, 6 quarantined" in logged, "only what is new is loaded"
    assert len(offsets_in(output / "lake")) == 3 * 403
    assert set(offsets_in(output / "lake").values()) == {1}
    closing = [line.split("  # ")[0].strip() for line in printed.splitlines() if "  # " in line]
    assert [shlex.split(command)[:3] for command in closing] == [
        ["ottla", "server", "--port"],
        ["ottla", "pipeline", "run"],
        ["ottla", "pipeline", "status"],
        ["ottla", "pipeline", "audit"],
    ]
    check_that_a_person_can_go_on(closing)


def stay_until_ctrl_c(directory: Path, *arguments: str) -> tuple[str, str]:
    """Run `ottla demo` with a JVM of its own, as at a prompt; it opens a browser and stays. Returns what it printed."""
    browser = directory / "browser"
    browser.write_text('#!/bin/sh\necho "$1" > opened\n')
    browser.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_GATEWAY")}
    with subprocess.Popen(
        [str(Path(sys.executable).with_name("ottla")), "demo", "--stay", "--open", *arguments],
        cwd=directory,
        env=environment | {"BROWSER": str(browser)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        logged = ""
        for line in running.stderr:
            logged += line
            if "the broker stays at " in line:
                break
        host, _, port = logged.split("stays at ")[1].split(",")[0].rpartition(":")
        output = directory / arguments[-1]
        assert f'bootstrap = "{host}:{port}"' in (output / "job.toml").read_text()
        assert listens(host, int(port))
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0
        printed = running.stdout.read()
    assert not listens(host, int(port))
    assert (directory / "opened").read_text().strip() == (output / "report.html").as_uri()
    return printed, logged


def check_that_a_person_can_go_on(closing: list[str]) -> None:
    """The closing lines' commands as they stand: the broker is where the job looks for it, and nothing is new."""
    start, *others = (shlex.split(command)[1:] for command in closing)
    with subprocess.Popen(
        [str(Path(sys.executable).with_name("ottla")), *start], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as server:
        try:
            wait_for_line(server, b"ottla ready:", timeout_s=30)
            done = [program(*arguments) for arguments in others]
        finally:
            server.terminate()
    assert [run.returncode for run in done] == [0, 0, 0], [run.stderr for run in done]
    ran, status, books = (run.stdout for run in done)
    assert "0 rows; lag 0" in ran
    assert "the books balance" in ran
    assert status.count("web-access") == 4
    assert "complete until" in books


def test_a_killed_and_repeated_demo_loads_every_offset_once_and_publishes_the_traffic_table(
    tmp_path: Path, log_file: Path, broker: Broker, topics: tuple[str, str], spark_java: SparkJava
) -> None:
    """Killed between the quarantine's commit and the table's; test_killed_load.py tries the other moments."""
    output = tmp_path / "out"
    arguments: dict[str, Any] = {
        "topics": topics,
        "input_file": log_file,
        "output": output,
        "bootstrap": broker.bootstrap,
    }
    killed = run_demo(commits=1, **arguments)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert list((output / "lake" / "requests").rglob("*.parquet")), "it was killed before it had written files"
    spark_java.end_context()
    for lines in (2 * 403, 3 * 403):
        repeated = run_demo(**arguments)
        assert repeated.returncode == 0, repeated.stderr
        found = offsets_in(output / "lake")
        assert set(found.values()) == {1}
        ends = Counter(partition for partition, _ in found)
        assert all((partition, offset) in found for partition, end in ends.items() for offset in range(end)), "a gap"
        assert len(found) == lines
    check_the_traffic_table(output / "lake", broker, topics[1])


def check_the_traffic_table(lake: Path, broker: Broker, topic: str) -> None:
    """It was published twice, the second time with other counts, and equals its compacted topic."""
    values = last_values(broker.bootstrap, topic)
    what = "strftime(window_start at time zone 'UTC', '%Y-%m-%dT%H:%M:%SZ'), status_class, path_prefix, requests, errors, bytes, clients"
    table = rows_in(lake / "traffic", what)
    names = ("window_start", "status_class", "path_prefix", "requests", "errors", "bytes", "clients")
    assert sorted(tuple(value[n] for n in names) for value in values.values()) == sorted(table)
    lines = "regexp_extract(path, '^(/[^/]*)', 1)"
    counted = rows_in(
        lake / "requests",
        "strftime(time_bucket(interval 5 minutes, event_time) at time zone 'UTC', '%Y-%m-%dT%H:%M:%SZ') as w, "
        f"(status // 100)::text || 'xx' as c, {lines} as p, count(*), count(*) filter (status >= 400), "
        "sum(bytes)::bigint, count(distinct client)",
        "group by w, c, p",
    )
    assert sorted(table) == sorted(counted), "by DuckDB from the requests"
    assert sum(row[3] for row in table) == 3 * 400
    assert sum(row[4] for row in table) == 3 * 100
    assert {key.decode() for key in values} == {"|".join(map(str, row[:3])) for row in table}


@pytest.mark.usefixtures("spark_java")
def test_planted_losses_are_reported_with_exit_code_1(
    tmp_path: Path, log_file: Path, broker: Broker, topics: tuple[str, str]
) -> None:
    """A line that was read and not sent, and a record that was acknowledged and is not in the log."""
    output = tmp_path / "out"
    done = run_demo(
        topics=topics,
        loses_a_line=True,
        input_file=log_file,
        output=output,
        bootstrap=broker.bootstrap,
        output_format="json",
    )
    assert done.returncode == 1, done.stderr
    result = json.loads(done.stdout)
    (fault,) = result["books"]["faults"]
    assert (fault["kind"], fault["partition"], fault["count"], fault["first_offset"]) == ("lost", 2, 1, 0)
    assert result["faults"] == [fault["text"], "1 of 403 lines read were not acknowledged as records"]
    assert not result["balanced"]
    assert "THE BOOKS DO NOT BALANCE" in (output / "report.html").read_text()


def test_the_job_file_keeps_its_values_with_special_characters() -> None:
    nasty = 'a "b" \\ = <topic> <master> \x7f\t'
    job, found = read_job(DemoJob("a:1", "web", "traffic", nasty, "spark://x:1").text(), directory=Path("/d"), now_ms=0)
    assert job is not None, found.faults
    assert job.sections["report"]["subtitle"] == nasty
    assert (job.brokers.bootstrap, job.master, job.loads[0].topics) == ("a:1", "spark://x:1", ("web",))


@pytest.mark.parametrize("how", ["killed", "let go"])
def test_the_demos_broker_ends_with_the_process_that_started_it(tmp_path: Path, how: str) -> None:
    """A demo killed with -9 leaves no process; and a broker stopped so has stopped cleanly."""
    code = (
        "import sys; from pathlib import Path; from ottla.pipeline.demo_broker import start_demo_broker\n"
        "with start_demo_broker(Path('data'), Path('log')) as broker: print(broker.bootstrap, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as starter:
        assert starter.stdout is not None
        host, _, port = starter.stdout.readline().decode().strip().rpartition(":")
        socket.create_connection((host, int(port)), timeout=10).close()
        if how == "killed":
            starter.kill()
        else:
            starter.communicate()
    until(lambda: not listens(host, int(port)), what="the broker's end")
    until(lambda: "stopped: " in (tmp_path / "log").read_text(), what="a clean stop")


def test_the_demos_broker_takes_the_usual_port_if_it_is_free(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        usual = taken.getsockname()[1]
        assert free_port(usual) == 0
    with start_demo_broker(tmp_path / "data", tmp_path / "log", usual_port=usual) as broker:
        assert broker.bootstrap == f"127.0.0.1:{usual}"


def test_ctrl_c_right_after_the_line_ends_the_wait_quietly() -> None:
    class Interrupted(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            super().print(*objects, **options)
            signal.raise_signal(signal.SIGINT)

    shown = io.StringIO()
    before = signal.getsignal(signal.SIGINT)
    demo._wait_for_ctrl_c(Interrupted(file=shown), "127.0.0.1:9092")
    assert shown.getvalue().startswith("the broker stays at 127.0.0.1:9092, ")
    assert signal.getsignal(signal.SIGINT) is before


def test_stay_without_a_broker_of_its_own_is_refused() -> None:
    done = program("demo", "--stay", "--brokers", "127.0.0.1:1")
    assert (done.returncode, "--stay keeps the demo's own broker" in done.stderr) == (2, True)


def listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.mark.usefixtures("spark_java")
def test_without_a_broker_the_failure_is_one_line(tmp_path: Path) -> None:
    done = run_demo(output=tmp_path, bootstrap="127.0.0.1:1")
    assert done.returncode == 1
    assert "ottla demo: cannot connect to 127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr
    assert "temporary" not in done.stderr


@pytest.mark.usefixtures("spark_java")
def test_a_temporary_directory_is_reported_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = run_demo(bootstrap="127.0.0.1:1")
    (output,) = tmp_path.glob("ottla-demo-*")
    assert f"all files are in {output}, a temporary directory; --output DIR keeps them" in done.stderr


def test_lines_are_keyed_by_client_and_counted_as_they_are_read(log_file: Path) -> None:
    read: Counter[int] = Counter()
    records = list(keyed(lines_of(log_file), 4, read))
    assert [record.value.decode() for record in records] == [*LINES, *BAD]
    assert {record.key for record in records if record.value} == {
        line.split(" ")[0].encode() for line in [*LINES, *BAD] if line
    }
    assert read == Counter(record.partition for record in records)
    assert len({record.partition for record in records if record.key == b"203.0.113.7"}) == 1


def test_a_plain_file_is_read_like_a_packed_one(tmp_path: Path, log_file: Path) -> None:
    plain = tmp_path / "access.log.gz"  # the name says nothing
    plain.write_bytes(gzip.decompress(log_file.read_bytes()))
    assert list(lines_of(plain)) == list(lines_of(log_file))


def test_the_example_is_found_from_the_checkout() -> None:
    assert sum(1 for _ in lines_of(demo.example_log())) == 10_000
