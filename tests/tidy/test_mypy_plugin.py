"""mypy reports where a value may come to a compiled function that its compiled form refuses and its plain form takes."""

from __future__ import annotations

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


@pytest.mark.parametrize("program", [SETS, ARGUMENTS], ids=["set operators", "arguments"])
def test_mypy_reports_the_lines_that_may_be_wrong_at_run_time(program: str, tmp_path: Path) -> None:
    source = tmp_path / "src" / "program.py"
    source.parent.mkdir()
    source.write_text(program)

    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), str(source)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    reported = {int(line) for line in re.findall(r"program\.py:(\d+): error", done.stdout)}
    assert reported == {at for at, line in enumerate(program.splitlines(), 1) if "# reported" in line}, done.stdout
