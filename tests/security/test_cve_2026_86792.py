"""CVE-2026-86792: a dotted path in a connection became a callable; a job file chooses nothing that is imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ottla.pipeline.job_file.job import SECTIONS, read_job
from ottla.pipeline.job_file.schema import SectionSchema
from ottla.pipeline.stages.stream import streams_of
from ottla.pipeline.stream.errors import InvalidFunction
from tests.processes.cli_runner import Cli

JOB = """\
[lake]
path = "lake"
[[load]]
topics = ["a"]
[[stream]]
name = "s"
from = "a"
window = "1m"
function = "planted_by_a_file:run"
"""
REFERENCE = "planted_by_a_file:run"
ALSO_ALLOWED = "planted_by_a_file:other"


def planted(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that notes that it was imported."""
    trace = directory / "imported"
    code = f"import pathlib\npathlib.Path({str(trace)!r}).touch()\ndef run(rows):\n    return rows\n"
    (directory / "planted_by_a_file.py").write_text(code)
    monkeypatch.syspath_prepend(directory)
    monkeypatch.setenv("PYTHONPATH", str(directory))
    monkeypatch.delitem(sys.modules, "planted_by_a_file", raising=False)
    return trace


def test_a_function_is_imported_only_if_the_command_allows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    trace = planted(tmp_path, monkeypatch)
    job, found = read_job(JOB, directory=tmp_path, now_ms=0)
    assert job is not None, found.faults
    for allowed in ((), ("planted_by_a_file",), (ALSO_ALLOWED,)):
        with pytest.raises(InvalidFunction, match="--function planted_by_a_file:run"):
            streams_of(replace(job, functions=frozenset(allowed)))
    assert not trace.exists()
    (stream,) = streams_of(replace(job, functions=frozenset({REFERENCE})))
    assert stream.stream.name == "s"
    assert trace.exists()


def test_no_command_imports_what_a_job_file_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = planted(tmp_path, monkeypatch)
    (tmp_path / "job.toml").write_text(JOB)
    cli = Cli("127.0.0.1:1", tmp_path)
    cli.out("pipeline", "check", "--job", str(tmp_path / "job.toml"))
    assert not trace.exists()


def _keys(section: SectionSchema) -> list[str]:
    inside = [f"{section.name}.{name}" for sub in section.sections for name in _keys(sub)]
    return [f"{section.name}.{key.name}" for key in section.keys] + inside


def test_no_other_key_of_a_job_file_names_code() -> None:
    keys = [key for section in SECTIONS for key in _keys(section)]
    assert len(keys) > 40
    words = ("class", "callable", "module", "import", "factory", "hook", "command", "function")
    assert [key for key in keys if any(word in key for word in words)] == ["stream.function"]
