"""`ottla pipeline` as a person uses it, against a broker: from an example job file to tables, and what mistakes say."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import duckdb
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from ottla.cli.errors import ExitCode
from ottla.pipeline.produce import ensure_topic
from tests.conftest import Broker

pytestmark = [pytest.mark.slow, pytest.mark.external, pytest.mark.xdist_group("drivers")]

ROWS = 300


def ottla(*arguments: str, at: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    program = str(Path(sys.executable).with_name("ottla"))
    done = subprocess.run(
        [program, "pipeline", *arguments], cwd=at, capture_output=True, text=True, check=False, timeout=250
    )
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


def fill(bootstrap: str, topic: str, *, first: int = 0, rows: int = ROWS) -> None:
    ensure_topic(bootstrap, topic, partitions=3, config={})
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for n in range(first, first + rows):
        value = b"no json" if n % 10 == 0 else json.dumps({"n": n, "at": f"2015-05-{17 + n % 2}T10:00:00Z"}).encode()
        producer.produce(topic, value, partition=n % 3)
    assert producer.flush(60) == 0


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"orders-{uuid.uuid4().hex[:8]}"
    fill(broker.bootstrap, name)
    return name


def job_file(at: Path, bootstrap: str, topic: str) -> Path:
    path = at / "job.toml"
    path.write_text(
        f"""\
[brokers]
bootstrap = "{bootstrap}"
[lake]
path = "lake"
[spark]
master = "local[2]"
[[load]]
topics = ["{topic}"]
table = "orders"
[load.time]
from = "field"
field = "at"
[compact]
"""
    )
    return path


def offsets(table: Path) -> list[tuple[Any, ...]]:
    files = DeltaTable(table).file_uris()
    return duckdb.execute('select partition, "offset" from read_parquet($1)', [files]).fetchall() if files else []


EVERY_OFFSET = sorted((p, o) for p in range(3) for o in range(ROWS // 3))


def test_the_example_is_written_once_and_is_valid(tmp_path: Path) -> None:
    ottla("init", at=tmp_path)
    assert "is valid" in ottla("check", at=tmp_path).stderr
    assert "--force" in ottla("init", at=tmp_path, code=ExitCode.USAGE).stderr
    ottla("init", "other.toml", at=tmp_path)
    assert (tmp_path / "other.toml").read_text() == (tmp_path / "job.toml").read_text()


WITHOUT_LIBRARIES = """
import sys
sys.modules.update(dict.fromkeys(("deltalake", "fastavro", "numpy", "pandas", "pyarrow", "pyiceberg", "pyspark")))
from ottla.cli.main import main
main()
"""


def test_the_example_is_written_where_the_pipelines_libraries_are_missing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_LIBRARIES, "pipeline"]
    subprocess.run([*command, "init"], cwd=tmp_path, check=True, timeout=60)
    checked = subprocess.run([*command, "check"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert checked.returncode == ExitCode.FAILED
    assert "which is not installed" in checked.stderr
    assert "pip install" in checked.stderr


def test_mistakes_in_a_job_file_are_reported_with_file_and_line(tmp_path: Path, broker: Broker, topic: str) -> None:
    path = job_file(tmp_path, broker.bootstrap, topic)
    path.write_text(path.read_text().replace("topics", "topcs"))
    ran = ottla("check", at=tmp_path, code=ExitCode.BAD_INPUT)
    assert "job.toml:8: [load] has no key 'topcs'; is topics meant?" in ran.stderr
    as_json = json.loads(ottla("check", "--format", "json", at=tmp_path, code=ExitCode.BAD_INPUT).stdout)
    assert {"line": 8, "text": "[load] has no key 'topcs'; is topics meant?"} in as_json
    for command in ("run", "status", "load", "replay", "compact"):
        arguments = [command, "--job", "job.toml"]
        assert "job.toml:8:" in ottla(*arguments, at=tmp_path, code=ExitCode.BAD_INPUT).stderr


def test_missing_topics_are_reported_with_their_line(tmp_path: Path, broker: Broker, topic: str) -> None:
    path = job_file(tmp_path, broker.bootstrap, topic)
    assert "is valid" in ottla("check", "--online", at=tmp_path).stderr
    path.write_text(path.read_text().replace(topic, "no-such-topic"))
    assert "job.toml:8: " in ottla("check", "--online", at=tmp_path, code=ExitCode.BAD_INPUT).stderr
    path.write_text(path.read_text().replace(broker.bootstrap, "127.0.0.1:1"))
    assert "job.toml:2: cannot connect" in ottla("check", "--online", at=tmp_path, code=ExitCode.BAD_INPUT).stderr


@pytest.mark.spark
@pytest.mark.usefixtures("spark_java")
def test_a_job_loads_shows_its_status_replays_and_compacts(tmp_path: Path, broker: Broker, topic: str) -> None:
    job_file(tmp_path, broker.bootstrap, topic)
    ran = json.loads(ottla("run", "--format", "json", at=tmp_path).stdout)
    assert list(ran)[:2] == ["load", "compact"]
    (loaded,) = ran["load"]["result"]
    assert (loaded["rows"], loaded["quarantined"], loaded["lag"]) == (270, 30, 0)
    lake = tmp_path / "lake"
    assert sorted(offsets(lake / "orders") + offsets(lake / "orders_quarantine")) == EVERY_OFFSET

    status = json.loads(ottla("status", "--format", "json", at=tmp_path).stdout)
    assert [(s["position"], s["log_end"], s["lag"], s["late"]) for s in status] == [(100, 100, 0, 0)] * 3
    assert sum(s["quarantined"] for s in status) == 30
    assert "LAST COMMIT" in ottla("status", at=tmp_path).stdout

    fill(broker.bootstrap, topic, first=ROWS, rows=30)
    again = ottla("load", "--job", "job.toml", at=tmp_path)
    assert f"{topic} -> orders: 27 rows, 3 quarantined" in again.stdout
    assert again.stderr == "", "no progress without a terminal"
    assert "0 rows, 33 quarantined; lag 0" in ottla("replay", "--job", "job.toml", at=tmp_path).stdout
    merged = ottla("compact", "--job", "job.toml", "--keep", "0s", at=tmp_path).stdout
    assert "4 small files into 2, 4 expired" in merged


@pytest.mark.spark
def test_two_concurrent_loads_of_a_table_load_each_offset_once(tmp_path: Path, broker: Broker, topic: str) -> None:
    program = str(Path(sys.executable).with_name("ottla"))
    command = [program, "pipeline", "load", topic, "--lake", "lake", "--table", "orders", "-b", broker.bootstrap]
    both = [
        subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    ends = [(process.communicate(timeout=250), process.returncode) for process in both]
    for (_, errors), code in ends:
        assert code in {ExitCode.OK, ExitCode.FAILED}
        assert code == ExitCode.OK or "is already at work on orders" in errors, errors
    assert ExitCode.OK in {code for _, code in ends}
    lake = tmp_path / "lake"
    assert sorted(offsets(lake / "orders") + offsets(lake / "orders_quarantine")) == EVERY_OFFSET


@pytest.mark.spark
@pytest.mark.usefixtures("spark_java")
def test_topics_by_a_pattern_have_a_table_each(tmp_path: Path, broker: Broker, topic: str) -> None:
    fill(broker.bootstrap, f"{topic}.two", rows=3)
    where = ["--lake", "lake", "-b", broker.bootstrap]
    ran = ottla("load", "--pattern", f"{topic}.*", *where, "--format", "json", at=tmp_path)
    tables = [one["table"] for one in json.loads(ran.stdout)["load"]["result"]]
    name = topic.replace("-", "_")
    assert tables == [name, f"{name}_two"]
    assert len(offsets(tmp_path / "lake" / f"{name}_two")) == 2


def test_a_broker_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    ran = ottla("load", "a", "--lake", "lake", "-b", "127.0.0.1:1", at=tmp_path, code=ExitCode.CANNOT_CONNECT)
    assert ran.stderr.startswith("ottla: cannot connect to 127.0.0.1:1")


def test_a_topic_that_is_not_there_is_one_line(tmp_path: Path, broker: Broker) -> None:
    ran = ottla("load", "no-such", "--lake", "lake", "-b", broker.bootstrap, at=tmp_path, code=ExitCode.NOT_FOUND)
    assert "no topic no-such" in ran.stderr


@pytest.mark.spark
@pytest.mark.usefixtures("spark_java")
def test_a_failure_names_the_file_of_sparks_log(
    tmp_path: Path, broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that cannot be read is data, a directory that cannot be written is a failure of every task."""
    ottla("load", topic, "--lake", "lake", "-b", broker.bootstrap, "--to", "0", at=tmp_path)
    name = topic.replace("-", "_")
    (tmp_path / "lake" / name / "late=false").write_text("in the way")
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT")  # with a JVM of its own, and its log
    ran = ottla("load", topic, "--lake", "lake", "-b", broker.bootstrap, at=tmp_path, code=ExitCode.FAILED)
    assert len(ran.stderr.splitlines()) == 1
    log = ran.stderr.split("(details: ")[1].rstrip(")\n")
    assert "NotADirectoryError" in Path(log).read_text()


def test_settings_of_the_client_reach_the_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTTLA_CLIENT_SETTINGS", "security.protocol=SASL_SSL\nsasl.mechanism=GSSAPI")
    ran = ottla("load", "a", "--lake", "x", at=tmp_path, code=ExitCode.USAGE)
    assert "sasl.mechanism" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["load"], "no lake is given: add --lake DIR"),
        (["load", "--lake", "x"], "no topics are given: name them"),
        (["load", "a", "--lake", "x", "-o", "time.from=nowhere"], "from is one of record, field, pattern, format"),
        (["load", "a", "--lake", "x", "-o", "tme.from=field"], "no key 'tme'; is time meant?"),
        (["load", "a", "--lake", "x", "--from", "then"], "--from: 'then' is not an offset"),
        (
            ["load", "a", "--lake", "x", "--from", "start", "--every", "1s"],
            "--from and --to backfill a range once and exclude --every",
        ),
        (["load", "a", "--job", "job.toml"], "--job excludes topics and the options"),
        (["load", "a", "--lake", "x", "--every", "soon"], "--every: 'soon' is not a duration"),
        (["compact"], "no lake is given: add --lake DIR"),
        (["compact", "--lake", "x", "--table", "y", "--file-size", "big"], "'big' is not a size"),
        (["run", "--stage", "x", "--job", "made.toml"], "there is no stage x"),
    ],
)
def test_invalid_options_are_reported_before_brokers_are_asked(
    tmp_path: Path, arguments: list[str], expected: str
) -> None:
    (tmp_path / "made.toml").write_text('[lake]\npath = "x"\n')
    assert expected in ottla(*arguments, at=tmp_path, code=ExitCode.USAGE).stderr
