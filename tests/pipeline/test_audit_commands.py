"""`ottla pipeline audit`, `declare-deleted` and loads with losses, against a broker and without Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType  # type: ignore[attr-defined]
from deltalake import DeltaTable

from ottla.cli.errors import ExitCode
from ottla.cli.main import run
from ottla.core.clock import SystemClock
from ottla.pipeline.job_file.job import read_job
from ottla.pipeline.loading import load
from ottla.pipeline.loading.on_loss import OnLoss
from ottla.pipeline.loading.plan import CannotLoad
from ottla.pipeline.progress import ProgressReporter
from tests.pipeline.staged_job import AUDIT, StagedJob
from tests.support.in_process_tasks import InThisProcess
from tests.support.lakes import directory_of
from tests.support.ottla_process import OttlaProcess
from tests.support.topics import create_topic, delete_topic

pytestmark = pytest.mark.slow


class Commands:
    """A job over a topic, and the commands on it."""

    def __init__(self, at: Path, server: OttlaProcess, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys
        host: Any = None
        self.job = StagedJob(at, server.bootstrap, "events", host, sections=AUDIT)

    def load(self, on_loss: OnLoss = OnLoss.FAIL) -> list[load.TopicLoad]:
        (spec,) = self.job.job.loads
        with ProgressReporter(SystemClock(), quiet=True).stage("load") as stage:
            outcome = load.load_topics(replace(spec, on_loss=on_loss), InThisProcess(), stage)
        for failure in outcome.failures:
            raise failure.error
        return outcome.done

    def ottla(self, command: str, *arguments: str, code: int = 0) -> str:
        self.capsys.readouterr()
        found = run(["pipeline", command, "--job", str(self.job.file), *arguments])
        printed = self.capsys.readouterr()
        assert found == code, printed
        return printed.out or printed.err

    def audit(self, code: int = 0) -> dict[str, Any]:
        (found,) = json.loads(self.ottla("audit", "--format", "json", code=code))
        assert isinstance(found, dict)
        return found


@pytest.fixture
def commands(tmp_path: Path, ottla_server: OttlaProcess, capsys: pytest.CaptureFixture[str]) -> Commands:
    made = Commands(tmp_path, ottla_server, capsys)
    made.job.send(range(20), reported=True)
    made.load()
    return made


def test_skipped_offsets_are_a_column_of_the_audit_for_ever(commands: Commands) -> None:
    commands.job.send(range(20, 30), reported=True)
    commands.job.delete_before(0, 26)
    with pytest.raises(CannotLoad) as failure:
        commands.load()
    assert "events-0: offsets 20 to 25 were deleted from the log before they were loaded. --on-loss skip" in str(
        failure.value
    )
    unread = commands.ottla("audit", code=ExitCode.FAILED)
    assert "partition 0, offsets 20 to 25: 6 offsets were deleted from the log before they were loaded" in unread
    (done,) = commands.load(OnLoss.SKIP)
    assert [r.text for r in done.lost] == ["offsets 20 to 25"]
    for _ in range(2):
        found = commands.audit()
        assert (found["total"]["skipped"], found["total"]["missing"], found["faults"]) == (6, 0, [])
        assert found["partitions"][0]["skipped_offsets"] == [{"first_offset": 20, "end_offset": 26}]
        text = commands.ottla("audit")
        assert (
            "skipped: 6 offsets were deleted from the log before they were loaded: partition 0, offsets 20 to 25"
            in text
        )
        commands.job.send(range(30, 31))
        commands.job.delete_before(0, 28)
        commands.load()


def test_rows_deleted_on_purpose_are_declared_and_distinguished_from_lost_ones(commands: Commands) -> None:
    DeltaTable(directory_of(commands.job.table)).delete('"offset" in (3, 4, 9) and "partition" = 1')
    assert "3 offsets" not in commands.ottla("audit", code=ExitCode.FAILED)
    printed = commands.ottla("declare-deleted", "events", "--offsets", "1:3-4", "--reason", "request 17")
    assert printed == "events-1: offsets 3 to 4\n"
    found = commands.audit(code=ExitCode.FAILED)
    assert (found["total"]["deleted"], found["total"]["missing"]) == (2, 1)
    assert [fault["text"] for fault in found["faults"]] == [
        "partition 1, offset 9: 1 records of the log are in neither table"
    ]
    (deletion,) = found["deletions"]
    assert (deletion["reason"], deletion["offsets"]) == (
        "request 17",
        [{"partition": 1, "first_offset": 3, "end_offset": 5}],
    )
    assert commands.ottla("declare-deleted", "events", "--missing", "--dry-run") == "events-1: offset 9\n"
    commands.audit(code=ExitCode.FAILED)
    commands.ottla("declare-deleted", "events", "--missing")
    assert commands.audit()["total"]["deleted"] == 3
    assert "deleted: 3 offsets without a row are declared: request 17" in commands.ottla("audit")
    nothing = json.loads(commands.ottla("declare-deleted", "events", "--missing", "--format", "json"))
    assert (nothing["id"], nothing["count"], nothing["offsets"]) == (None, 0, [])
    commands.ottla("declare-deleted", "events", "--withdraw", deletion["id"], "--dry-run")
    commands.audit()
    commands.ottla("declare-deleted", "events", "--withdraw", deletion["id"])
    assert commands.audit(code=ExitCode.FAILED)["total"]["missing"] == 2


def test_the_status_of_a_lake_shows_every_topic_that_its_tables_were_loaded_from(commands: Commands) -> None:
    options = ("--lake", str(commands.job.directory / "lake"), "--brokers", commands.job.bootstrap)
    assert run(["pipeline", "status", *options, "--format", "json"]) == ExitCode.OK
    lines = json.loads(commands.capsys.readouterr().out)
    assert [(line["topic"], line["table"], line["position"], line["lag"]) for line in lines] == [
        ("events", "events", 20, 0)
    ] * 2
    delete_topic(commands.job.bootstrap, "events")
    assert run(["pipeline", "status", *options]) == ExitCode.OK
    printed = commands.capsys.readouterr()
    assert "the lake has no table" in printed.out or "the lake has no table" in printed.err
    assert "warning: events: " in printed.err
    assert run(["pipeline", "status", "--job", "job.toml", *options]) == ExitCode.USAGE


def test_offsets_that_cannot_be_declared_are_refused(commands: Commands) -> None:
    for offsets, reason in (
        ("1:18-20", "partition 1, offsets 18 to 20: the table was loaded with offsets 0 to 19 of it"),
        ("7:1", "partition 7, offset 1: the table was loaded with nothing of it"),
        ("1-5", "'1-5' is not PARTITION:FIRST-LAST"),
        ("1:5-4", "'1:5-4' is not PARTITION:FIRST-LAST"),
    ):
        assert reason in commands.ottla("declare-deleted", "events", "--offsets", offsets, code=ExitCode.BAD_INPUT)
    commands.ottla("declare-deleted", "events", code=ExitCode.USAGE)
    commands.ottla("declare-deleted", "others", "--offsets", "0:1", code=ExitCode.BAD_INPUT)


def test_a_recreated_topic_is_named_by_the_audit_and_by_a_load_with_the_same_exit_code(commands: Commands) -> None:
    assert commands.audit()["complete_until"]
    delete_topic(commands.job.bootstrap, "events")
    create_topic(commands.job.bootstrap, "events", partitions=2)
    text = commands.ottla("audit", code=ExitCode.TOPIC_RECREATED)
    assert "THE TOPIC WAS DELETED AND CREATED AGAIN" in text
    found = commands.audit(code=ExitCode.TOPIC_RECREATED)
    assert found["recreated"]["table_topic_id"] != found["recreated"]["topic_id"]
    assert (found["balanced"], found["complete_until"]) == (False, None)
    assert commands.job.table.properties()["ottla.complete.until"] == ""
    refused = commands.ottla("load", code=ExitCode.TOPIC_RECREATED)
    assert "it was recreated" in refused


def test_an_audit_that_could_not_compare_has_another_exit_code_than_a_difference(commands: Commands) -> None:
    path = Path(commands.job.table.paths()[0])
    path.write_bytes(b"corrupt")
    commands.ottla("audit", code=ExitCode.AUDIT_INCOMPLETE)
    path.unlink()
    commands.ottla("audit", code=ExitCode.AUDIT_INCOMPLETE)
    delete_topic(commands.job.bootstrap, "events")
    commands.ottla("audit", code=ExitCode.NOT_FOUND)


def test_the_option_of_the_message_skips_what_was_deleted(commands: Commands) -> None:
    """`--on-loss` sets every load of the job, where `load`, `run` and `stream` take it."""
    from ottla.cli.pipeline_jobs import with_on_loss

    job, _ = read_job(commands.job.file.read_text(), directory=commands.job.directory, now_ms=0)
    assert job is not None
    assert [spec.on_loss for spec in with_on_loss(job, OnLoss.SKIP).loads] == [OnLoss.SKIP]
    for command in ("load", "run", "stream"):
        assert "--on-loss" in commands.ottla(command, "--on-loss", "perhaps", code=ExitCode.USAGE)


def test_a_record_with_a_time_to_come_makes_nothing_complete_until_then(commands: Commands) -> None:
    entry = ConfigEntry("message.timestamp.after.max.ms", str(1 << 62), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, commands.job.topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": commands.job.bootstrap})
    (altered,) = admin.incremental_alter_configs([resource]).values()
    altered.result(30)
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": commands.job.bootstrap})
    producer.produce(
        commands.job.topic,
        b"{}",
        partition=0,
        timestamp=2_082_758_400_000,
        on_delivery=lambda error, _: errors.append(error),
    )
    assert producer.flush(30) == 0
    assert errors == [None]
    commands.load()
    until = commands.audit()["complete_until"]
    assert until.startswith("20")
    assert datetime.fromisoformat(until).timestamp() <= SystemClock().wall_ms() / 1000
