"""A load that quarantines everything, or more than its share, ends with an exit code of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ottla.cli.errors import ExitCode
from ottla.cli.pipeline import app
from ottla.pipeline.errors import FailureKind
from ottla.pipeline.job_file.job import read_job
from ottla.pipeline.loading.load import LoadOutcome, TopicLoad
from ottla.pipeline.stages import load
from ottla.pipeline.stages.runner import Round, StageResult


@pytest.mark.parametrize(
    ("records", "quarantined", "options", "code"),
    [
        (10, 10, [], ExitCode.QUARANTINED),
        (10, 9, [], ExitCode.OK),
        (0, 0, [], ExitCode.OK),
        (1000, 51, ["-o", "quarantine_max=5%"], ExitCode.QUARANTINED),
        (1000, 50, ["-o", "quarantine_max=5%"], ExitCode.OK),
        (10, 1, ["-o", "quarantine_max=0%"], ExitCode.QUARANTINED),
        (10, 0, ["-o", "quarantine_max=0%"], ExitCode.OK),
    ],
)
@pytest.mark.parametrize("window", [[], ["--from", "start"]])
def test_the_exit_code_of_a_load(
    records: int,
    quarantined: int,
    options: list[str],
    code: ExitCode,
    window: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = TopicLoad("web", "web", records=records, rows=records - quarantined, quarantined=quarantined)
    monkeypatch.setattr(load, "load_topics", lambda *_arguments, **_options: LoadOutcome([done]))
    arguments = ["load", "web", "--lake", str(tmp_path), "--brokers", "127.0.0.1:1", *options, *window]
    ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == code, ran.output


def test_a_replay_may_leave_everything_in_the_quarantine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = TopicLoad("web", "web", records=3, quarantined=3)
    monkeypatch.setattr(load, "replay_topics", lambda *_arguments: LoadOutcome([done]))
    ran = CliRunner().invoke(app, ["replay", "web", "--lake", str(tmp_path), "--brokers", "127.0.0.1:1"])
    assert ran.exit_code == ExitCode.OK


def test_a_difference_in_the_audit_comes_before_quarantined_records() -> None:
    quarantined = StageResult("", ok=False, failure=FailureKind.QUARANTINED)
    assert Round({"load": quarantined}).failure is FailureKind.QUARANTINED
    assert Round({"load": quarantined, "audit": StageResult("", ok=False)}).failure is FailureKind.FAILED
    assert Round({"load": StageResult("")}).failure is None


@pytest.mark.parametrize("share", ["'101%'", "0.5", "'half'"])
def test_a_share_is_a_percentage(share: str, tmp_path: Path) -> None:
    text = f"[lake]\npath = 'x'\n[[load]]\ntopics = ['a']\nquarantine_max = {share}\n"
    job, found = read_job(text, directory=tmp_path, now_ms=0)
    assert job is None
    assert [(fault.line, fault.text[:28]) for fault in found.faults] == [(5, "quarantine_max must be a sha")]
