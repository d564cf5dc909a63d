"""Dead letters: each quarantined record once in the topic, with Connect's headers, and produced again by a redrive."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from ottla.cli.errors import ExitCode
from ottla.cli.main import run
from ottla.core.clock import SystemClock
from ottla.pipeline.lake.delta import DeltaLakeTable
from ottla.pipeline.lake.lake_table import Change
from ottla.pipeline.loading import dead_letters, load
from ottla.pipeline.progress import ProgressReporter
from tests.pipeline.staged_job import AUDIT, MINUTE_MS, TEN_MS, StagedJob
from tests.support.in_process_tasks import InThisProcess
from tests.support.lakes import directory_of
from tests.support.ottla_process import OttlaProcess
from tests.support.topics import ReadRow, read_with_librdkafka

pytestmark = pytest.mark.slow
LETTERS = "events-dead-letters"


class Bench:
    """A job over a topic whose quarantined records go to a dead-letter topic."""

    def __init__(self, at: Path, server: OttlaProcess, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys
        host: Any = None
        self.job = StagedJob(at, server.bootstrap, "events", host, sections=AUDIT)
        self.job.rewrite('on_loss = "fail"\n', 'on_loss = "fail"\ndead_letters = "{topic}-dead-letters"\n')

    def load(self) -> load.TopicLoad:
        (spec,) = self.job.job.loads
        with ProgressReporter(SystemClock(), quiet=True).stage("load") as stage:
            outcome = load.load_topics(replace(spec), InThisProcess(), stage)
        for failure in outcome.failures:
            raise failure.error
        (done,) = outcome.done
        return done

    def load_records(self, count: int) -> Counter[str]:
        """Load until so many records came: those of a transaction can be read a moment after its end."""
        found: Counter[str] = Counter()
        for _ in range(200):
            done = self.load()
            found.update(rows=done.rows, quarantined=done.quarantined, dead_letters=done.dead_letters)
            if found["rows"] + found["quarantined"] >= count:
                return +found
        raise AssertionError(f"only {found} came")

    def letters(self) -> list[ReadRow]:
        rows = [
            row
            for partition in range(2)
            for row in read_with_librdkafka(self.job.bootstrap, LETTERS, partition=partition, end_offset=1 << 60)
        ]
        return sorted(rows, key=lambda row: (dict(row.headers)["__connect.errors.partition"], row.offset))

    def redrive(self, *options: str, code: int = 0) -> dict[str, Any]:
        self.capsys.readouterr()
        found = run(["pipeline", "redrive", "--job", str(self.job.file), "--format", "json", *options])
        printed = self.capsys.readouterr()
        assert found == code, printed
        result: dict[str, Any] = json.loads(printed.out)["redrive"]["result"][0]
        return result


@pytest.fixture
def bench(tmp_path: Path, ottla_server: OttlaProcess, capsys: pytest.CaptureFixture[str]) -> Bench:
    made = Bench(tmp_path, ottla_server, capsys)
    made.job.send(range(10), bad=2)
    return made


def counts(rows: list[ReadRow]) -> Counter[tuple[str, str]]:
    """How often each record of the loaded topic is in the dead-letter topic, by partition and offset."""
    of = [{name: (value or b"").decode() for name, value in row.headers} for row in rows]
    return Counter((o["__connect.errors.partition"], o["__connect.errors.offset"]) for o in of)


ONCE = Counter([("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")])


def test_each_quarantined_record_is_a_dead_letter_once_with_the_headers_of_connect(bench: Bench) -> None:
    assert bench.load().dead_letters == 4
    assert bench.load().dead_letters == 0
    letters = bench.letters()
    assert counts(letters) == ONCE
    assert {(row.key, row.value) for row in letters} == {(None, b"no json")}
    assert [row.timestamp_ms for row in letters] == [TEN_MS, TEN_MS + MINUTE_MS] * 2
    assert dict(letters[1].headers) == {
        "__connect.errors.topic": b"events",
        "__connect.errors.partition": b"0",
        "__connect.errors.offset": b"1",
        "__connect.errors.connector.name": b"ottla-pipeline-events-events",
        "__connect.errors.task.id": b"0",
        "__connect.errors.stage": b"VALUE_CONVERTER",
        "__connect.errors.exception.class.name": b"org.apache.kafka.connect.errors.DataException",
        "__connect.errors.exception.message": b"not a JSON object",
    }


def test_a_load_that_died_after_the_dead_letters_does_not_repeat_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "_RECORDS_PER_TRANSACTION", 1)
    commit = DeltaLakeTable.commit

    def fail(self: DeltaLakeTable, change: Change) -> None:
        if change.what == "dead letters":
            raise OSError("killed")
        commit(self, change)

    with monkeypatch.context() as patched:
        patched.setattr(DeltaLakeTable, "commit", fail)
        with pytest.raises(OSError, match="killed"):
            bench.load()
    assert bench.load().dead_letters == 0
    assert counts(bench.letters()) == ONCE


def test_a_group_whose_offsets_were_forgotten_repeats_no_dead_letter(bench: Bench) -> None:
    bench.load()
    group = "ottla-pipeline-events-events-dead-letters"
    assert run(["group", "delete", group, "--brokers", bench.job.bootstrap]) == ExitCode.OK
    bench.job.send([20], bad=1)
    assert bench.load().dead_letters == 2
    assert max(counts(bench.letters()).values()) == 1


def test_a_redriven_record_is_loaded_again_and_given_up_after_as_many_times_as_may_be(bench: Bench) -> None:
    bench.load()
    assert bench.redrive("--dry-run")["redriven"] == 4
    for count in (1, 2):
        done = bench.redrive("--max", "2")
        assert (done["redriven"], done["given_up"]) == (4, 0)
        assert bench.load_records(4) == Counter(quarantined=4, dead_letters=4)
        assert {dict(row.headers).get("ottla.redrive.count") for row in bench.letters()[-1:]} == {b"%d" % count}
    done = bench.redrive("--max", "2")
    assert (done["redriven"], done["given_up"]) == (0, 4)
    assert bench.redrive("--max", "9")["redriven"] == 0
    assert bench.load().records == 0


def test_a_record_that_parses_now_is_loaded_after_a_redrive(bench: Bench) -> None:
    bench.load()
    bench.redrive()
    with (
        bench.job.rewritten('columns.n = "int"\n', 'format = "text"\n'),
        bench.job.rewritten('from = "field"\nfield = "at"', 'from = "record"'),
    ):
        assert bench.load_records(4) == Counter(rows=4)
    found = DeltaTable(directory_of(bench.job.table)).to_pyarrow_table()["text"].drop_null()
    assert found.to_pylist() == ["no json"] * 4


def test_headers_that_a_client_wrote_steer_no_redrive(bench: Bench) -> None:
    bench.load()
    bench.redrive()
    producer = Producer({"bootstrap.servers": bench.job.bootstrap})
    for topic, count in (("events", "-1"), ("events", "x"), ("others", "0"), ("events", "99999999999")):
        producer.produce(
            LETTERS, b"forged", headers={"__connect.errors.topic": topic, "ottla.redrive.count": count}, partition=0
        )
    producer.produce(LETTERS, b"no headers", partition=0)
    assert producer.flush(30) == 0
    done = bench.redrive()
    assert (done["redriven"], done["given_up"], done["of_others"]) == (0, 3, 2)


def test_a_load_without_dead_letters_says_so(bench: Bench) -> None:
    bench.load()
    with bench.job.rewritten('dead_letters = "{topic}-dead-letters"\n', ""):
        assert run(["pipeline", "redrive", "--job", str(bench.job.file)]) == ExitCode.FAILED
    assert "names no topic for them in dead_letters" in bench.capsys.readouterr().err
