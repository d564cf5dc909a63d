"""The versions that pyproject.toml allows, those that `tools/run_matrix.py` tries, and those that pages name are the same."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture
def matrix(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    spec = importlib.util.spec_from_file_location("run_matrix", ROOT / "tools" / "run_matrix.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "run_matrix", module)
    spec.loader.exec_module(module)
    return module


def test_every_spark_that_may_be_installed_is_tried(matrix: ModuleType) -> None:
    (pin,) = [one for one in PROJECT["optional-dependencies"]["pipeline"] if one.startswith("pyspark")]
    first, last = matrix.SPARKS[0], matrix.SPARKS[-1]
    major, minor = map(int, last.split("."))
    assert pin == f"pyspark>={first},<{major}.{minor + 1}"
    assert [f"{major}.{n}" for n in range(minor + 1)] == list(matrix.SPARKS)
    assert f"PySpark {first} to {last}" in (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    assert f"SPARKS ?= {' '.join(matrix.SPARKS)}\n" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_the_lock_file_has_the_spark_that_the_official_connector_resolves_for(matrix: ModuleType) -> None:
    """Then `make test` compares with it: docs/decisions/0079."""
    assert re.search(rf"^pyspark=={re.escape(matrix.SPARKS[0])}\.", matrix.locked(), re.MULTILINE)
    assert "pyspark" not in matrix.locked(without=("pyspark",))


def test_the_pythons_of_the_classifiers_are_tried(matrix: ModuleType) -> None:
    named = [one.rpartition("3.")[2] for one in PROJECT["classifiers"] if "Python :: 3." in one]
    assert named == [str(n) for n in range(matrix.OLDEST, matrix.OLDEST + len(named))]
    assert int(named[-1]) <= matrix.NEWEST
    assert PROJECT["requires-python"] == f">=3.{matrix.OLDEST}"


def test_a_report_counts_tests_and_the_reasons_of_skips(matrix: ModuleType, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        "<testsuites><testsuite><testcase/><testcase><failure/></testcase>"
        "<testcase><skipped message='no Java'/></testcase><testcase><skipped message='no Java'/></testcase>"
        "<testcase/></testsuite></testsuites>"
    )
    outcome = matrix.Outcome("Python 3.12.1")
    matrix.count(matrix.ET.parse(report), outcome)
    assert matrix.summary(outcome) == "2 passed, 1 failed, 2 skipped"
    assert outcome.skipped == {"no Java": 2}
    assert matrix.summary(matrix.Outcome("", code=4)) == "no tests ran, exit code 4"
