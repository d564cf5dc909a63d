"""The sample project of examples/testing: its tests find each mistake, and pass where the mistakes are fixed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2] / "examples" / "testing"
TESTS = sorted(path.stem for path in (PROJECT / "tests").glob("test_*.py"))


def _outcomes(programs: str) -> dict[str, str]:
    """Run the project's tests on its programs of a directory; returns what became of each file's test."""
    command = [sys.executable, "-m", "pytest", "-rA", "-q", "-p", "no:xdist", "--tb=line"]
    environment = os.environ | {"SHOP": programs}
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
    found = re.findall(r"^(PASSED|FAILED|ERROR) tests/(\w+)\.py::", done.stdout, re.MULTILINE)
    return {file: outcome for outcome, file in found} or pytest.fail(done.stdout + done.stderr)


@pytest.mark.slow
def test_the_programs_pass_their_tests() -> None:
    assert _outcomes("fixed") == dict.fromkeys(TESTS, "PASSED")


@pytest.mark.slow
def test_each_mistake_fails_its_test() -> None:
    assert _outcomes("with_bugs") == dict.fromkeys(TESTS, "FAILED")


def test_there_is_a_fixed_form_of_each_program_and_the_page_names_it() -> None:
    page = (PROJECT / "README.md").read_text()
    for path in (PROJECT / "with_bugs" / "shop").glob("*.py"):
        assert (PROJECT / "fixed" / "shop" / path.name).read_text() != path.read_text()
        assert path.stem == "__init__" or f"shop/{path.name}" in page
    assert len(TESTS) == 7
