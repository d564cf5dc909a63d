"""mypy reports where a value may come to a compiled function that its compiled form refuses and its plain form takes."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow

SETS = """
def names(frozen: frozenset[str], by_name: dict[str, int], more: set[str]) -> None:
    a: frozenset[str] = frozen | by_name.keys()  # reported
    b: frozenset[str] = frozen - by_name.keys()  # reported
    c: frozenset[str] = frozen | more
    d: frozenset[str] = frozen.union(by_name.keys())
"""
ARGUMENTS = """
import json
from typing import Any
from ottla.core.ids import TopicPartition, parse_id
from ottla.storage.config import LogConfig, topic_config
from ottla.wire.apis import ApiKey

def read(text: str, found: dict[str, Any], maybe: Any | None, sure: dict[str, str]) -> None:
    TopicPartition("web", json.loads(text))  # reported
    TopicPartition("web", int(json.loads(text)))
    parse_id(maybe)  # reported
    topic_config(LogConfig(), found)  # reported
    topic_config(LogConfig(), sure)
    LogConfig(**found)  # reported
    ApiKey(json.loads(text))
"""


IN_THE_BUILD = """
def names(frozen: frozenset[str], by_name: dict[str, int]) -> None:
    reveal_type(frozen | by_name.keys())
    reveal_type(frozen | {""})
"""


def mypy_says(program: str, directory: Path, *options: str) -> str:
    """Write a program below a directory `src`, as ours are, and return what mypy says of it."""
    source = directory / "src" / "program.py"
    source.parent.mkdir()
    source.write_text(program)
    command = [sys.executable, "-m", "mypy", *options, "--cache-dir", str(directory / "cache"), str(source)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize("program", [SETS, ARGUMENTS], ids=["set operators", "arguments"])
def test_mypy_reports_the_lines_that_may_be_wrong_at_run_time(program: str, tmp_path: Path) -> None:
    said = mypy_says(program, tmp_path)

    reported = {int(line) for line in re.findall(r"program\.py:(\d+): error", said)}
    assert reported == {at for at, line in enumerate(program.splitlines(), 1) if "# reported" in line}, said


def test_the_build_takes_the_type_that_an_operator_has_at_run_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mypyc checks every value that a module computes against the type that mypy gives to it."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    options = importlib.import_module("compile_modules").mypy_arguments(tmp_path)

    said = mypy_says(IN_THE_BUILD, tmp_path, *options)

    assert re.findall(r'Revealed type is "(\S+)\[', said) == ["typing.AbstractSet", "frozenset"], said
